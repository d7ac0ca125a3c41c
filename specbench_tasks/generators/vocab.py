"""Word pools shared by several families (``vocab.toml``), and pronouns of the names in them."""

from __future__ import annotations

from specbench_tasks.generators.base import texts

_POOLS = {name: tuple(text.split()) for name, text in texts("vocab").items()}
WOMEN = _POOLS["women"]
NAMES = (*WOMEN, *_POOLS["men"])
SURNAMES, CITIES, DAYS = _POOLS["surnames"], _POOLS["cities"], _POOLS["days"]
COLORS, JOBS, ANIMALS = _POOLS["colors"], _POOLS["jobs"], _POOLS["animals"]
THINGS, PLACES, NUMBER_WORDS = _POOLS["things"], _POOLS["places"], _POOLS["number_words"]


def he_or_she(name: str) -> str:
    """Return the subject pronoun of a name of `NAMES`, in lower case."""
    return "she" if name in WOMEN else "he"


def his_or_her(name: str) -> str:
    """Return the possessive pronoun of a name of `NAMES`, in lower case."""
    return "her" if name in WOMEN else "his"
