"""The English-German lexicon of the translation family, with gender, verb forms and declension."""

from __future__ import annotations

from dataclasses import dataclass

from specbench_tasks.generators.base import words


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun: English, German, and gender ``m``, ``f`` or ``n`` (all decline regularly)."""

    english: str
    german: str
    gender: str


@dataclass(frozen=True, slots=True)
class Verb:
    """A transitive verb: English 3rd person, past and base; German 3rd person, participle, base."""

    english: str
    past: str
    base: str
    german: str
    participle: str
    infinitive: str


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(Noun(*entry.split(":")) for entry in text.split())


PEOPLE = _nouns(
    "farmer:Bauer:m teacher:Lehrer:m doctor:Arzt:m king:König:m man:Mann:m woman:Frau:f "
    "girl:Mädchen:n child:Kind:n queen:Königin:f painter:Maler:m baker:Bäcker:m "
    "grandmother:Großmutter:f uncle:Onkel:m aunt:Tante:f singer:Sänger:m friend:Freund:m "
    "mother:Mutter:f father:Vater:m brother:Bruder:m sister:Schwester:f"
)
OBJECTS = _nouns(
    "apple:Apfel:m table:Tisch:m letter:Brief:m hat:Hut:m key:Schlüssel:m ball:Ball:m "
    "chair:Stuhl:m dog:Hund:m car:Auto:n book:Buch:n picture:Bild:n bread:Brot:n "
    "horse:Pferd:n dress:Kleid:n boat:Boot:n lamp:Lampe:f flower:Blume:f cat:Katze:f "
    "clock:Uhr:f bottle:Flasche:f cup:Tasse:f bag:Tasche:f coat:Mantel:m egg:Ei:n "
    "map:Karte:f shirt:Hemd:n guitar:Gitarre:f cake:Kuchen:m bird:Vogel:m fish:Fisch:m"
)
VERBS = tuple(
    Verb(*entry.split(":"))
    for entry in words(
        "sees:saw:see:sieht:gesehen:sehen buys:bought:buy:kauft:gekauft:kaufen "
        "finds:found:find:findet:gefunden:finden takes:took:take:nimmt:genommen:nehmen "
        "brings:brought:bring:bringt:gebracht:bringen "
        "sells:sold:sell:verkauft:verkauft:verkaufen paints:painted:paint:malt:gemalt:malen "
        "holds:held:hold:hält:gehalten:halten carries:carried:carry:trägt:getragen:tragen "
        "draws:drew:draw:zeichnet:gezeichnet:zeichnen shows:showed:show:zeigt:gezeigt:zeigen "
        "loses:lost:lose:verliert:verloren:verlieren gets:got:get:bekommt:bekommen:bekommen "
        "forgets:forgot:forget:vergisst:vergessen:vergessen "
        "chooses:chose:choose:wählt:gewählt:wählen"
    )
)
MODALS = (("wants to", "will"), ("can", "kann"), ("must", "muss"))
LOOKS = tuple(
    tuple(entry.split(":"))
    for entry in words(
        "old:alt new:neu small:klein big:groß red:rot green:grün blue:blau white:weiß "
        "black:schwarz beautiful:schön heavy:schwer cheap:billig yellow:gelb brown:braun"
    )
)
TRAITS = tuple(
    tuple(entry.split(":"))
    for entry in words(
        "old:alt young:jung friendly:freundlich rich:reich poor:arm nice:nett clever:klug "
        "small:klein happy:glücklich"
    )
)
PLACES = (
    ("in the garden", "im Garten"),
    ("in the house", "im Haus"),
    ("in the city", "in der Stadt"),
    ("in the kitchen", "in der Küche"),
    ("at the market", "auf dem Markt"),
    ("in the forest", "im Wald"),
    ("at the station", "am Bahnhof"),
    ("in the park", "im Park"),
    ("in the village", "im Dorf"),
    ("on the bridge", "auf der Brücke"),
    ("in the museum", "im Museum"),
    ("in the church", "in der Kirche"),
    ("on the beach", "am Strand"),
    ("in the hotel", "im Hotel"),
)
TIMES = (
    ("Today", "Heute"),
    ("In the morning", "Am Morgen"),
    ("In the evening", "Am Abend"),
    ("On Monday", "Am Montag"),
    ("On Friday", "Am Freitag"),
    ("On Sunday", "Am Sonntag"),
    ("Every day", "Jeden Tag"),
    ("In summer", "Im Sommer"),
    ("In winter", "Im Winter"),
)
PAST_TIMES = (
    ("Yesterday", "Gestern"),
    ("Last week", "Letzte Woche"),
    ("Last year", "Letztes Jahr"),
    ("On Monday", "Am Montag"),
    ("In summer", "Im Sommer"),
)
_DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das"},
    "acc": {"m": "den", "f": "die", "n": "das"},
}
_INDEFINITE = {
    "nom": {"m": "ein", "f": "eine", "n": "ein"},
    "acc": {"m": "einen", "f": "eine", "n": "ein"},
}
_STRONG = {"nom": {"m": "er", "f": "e", "n": "es"}, "acc": {"m": "en", "f": "e", "n": "es"}}


def _adjective_ending(case: str, gender: str, definite: bool) -> str:
    """The ending after ``der`` (weak) or ``ein`` (mixed), nominative or accusative singular."""
    if definite:
        return "en" if case == "acc" and gender == "m" else "e"
    return _STRONG[case][gender]


def noun_phrase(noun: Noun, adjective: str, case: str, definite: bool) -> str:
    """Article, declined adjective (none if empty) and noun, e.g. ``einen roten Apfel``."""
    article = (_DEFINITE if definite else _INDEFINITE)[case][noun.gender]
    if not adjective:
        return f"{article} {noun.german}"
    return f"{article} {adjective}{_adjective_ending(case, noun.gender, definite)} {noun.german}"
