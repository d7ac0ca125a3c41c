"""Word pools shared by several families. Small on purpose: nearly every word becomes one token."""

from __future__ import annotations

from specbench_tasks.generators.base import words

WOMEN = words(
    "Anna Lily Clara Emma Nora Alice Julia Laura Sophie Marie Helen Grace Ruth Eva Maya "
    "Iris Olivia Rose Diana Sarah Jane Lucy Kate Amy Zoe Ella Mia Hanna Nina Paula Carla "
    "Vera Greta Ida Lena Martha Rita Tina Wendy Molly"
)
_MEN = words(
    "Tom Ben Paul Peter Max Jack Leo Sam Adam Oscar Felix Simon David Daniel Henry George "
    "Oliver Noah Lucas Erik Ivan Hugo Karl Otto Frank Mark Luke Robert James Victor "
    "Philip Martin Anton Bruno Nils Ralph Theo Walter Dennis Finn"
)
NAMES = (*WOMEN, *_MEN)
_WOMEN = frozenset(WOMEN)
SURNAMES = words(
    "Stone Baker Fisher Young Wood Hill Brown Green White King Carter Miller Cook Hunter "
    "Walker Field Brook Marsh Lane Price Reed Ward West North Moore"
)
CITIES = words(
    "Dover Milton Ashford Weston Kendal Norwood Easton Oakland Bristol Salem Clifton "
    "Durham Hampton Lincoln Preston Winslow Riverton Bedford Camden Linden"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLORS = ("red", "green", "blue", "white", "black", "yellow", "brown", "purple", "silver", "golden")
JOBS = words(
    "baker farmer teacher doctor painter singer gardener driver pilot nurse writer cook "
    "dentist lawyer tailor plumber"
)
ANIMALS = words(
    "fox dragon goose rabbit bear wolf cat dog horse mouse duck swan turtle goat parrot "
    "donkey frog tiger lion whale"
)
THINGS = words(
    "lantern key map clock boat ring book mirror bell feather coin crown letter basket "
    "candle drum flute kite ladder saddle bottle rope shell stone sword violin wheel "
    "whistle blanket compass"
)
PLACES = words(
    "forest village garden castle desert harbor island library market mountain museum "
    "valley tower school meadow cave"
)
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def he_or_she(name: str) -> str:
    """The subject pronoun of a name of `NAMES`, in lower case."""
    return "she" if name in _WOMEN else "he"


def his_or_her(name: str) -> str:
    """The possessive pronoun of a name of `NAMES`, in lower case."""
    return "her" if name in _WOMEN else "his"
