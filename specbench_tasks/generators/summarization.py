"""Short news items with a few facts that matter and some that do not, and their summary.

There are four kinds of item, each told in varied words and order among filler sentences. The
summary states the facts in a fixed order and wording, so all its content is copied from the item.
"""

from __future__ import annotations

import random

from specbench_tasks.generators.base import (
    ANIMALS,
    CITIES,
    COLORS,
    DAYS,
    NAMES,
    SURNAMES,
    Item,
    Split,
    key_split,
    pick,
    pick_distinct,
    single_turn,
    texts,
)

_TEXTS = texts("summarization")
_KINDS = _TEXTS["kinds"]


def draw(rng: random.Random, split: Split) -> Item:
    """Draw one news item, whose content key is its slots together."""
    while True:
        kind_index = rng.randrange(len(_KINDS))
        slots = _slots(rng)
        if key_split(f"summarization {kind_index} {sorted(slots.items())}") == split:
            break
    kind = _KINDS[kind_index]
    body = [pick(rng, fact) for fact in kind["facts"]]
    body += pick_distinct(rng, _TEXTS["fillers"], rng.choice((1, 2)))
    rng.shuffle(body)
    text = " ".join([pick(rng, kind["leads"]), *body]).format(**slots)
    prompt = pick(rng, _TEXTS["instructions"]).format(text=text)
    return single_turn(prompt, kind["summary"].format(**slots))


def _slots(rng: random.Random) -> dict[str, str]:
    city, place = pick_distinct(rng, CITIES, 2)
    building, other = pick_distinct(rng, _TEXTS["buildings"].split(), 2)
    team, rival = pick_distinct(rng, _TEXTS["teams"].split(), 2)
    return {
        "city": city,
        "place": place,
        "building": building,
        "other": other,
        "team": team,
        "rival": rival,
        "day": pick(rng, DAYS),
        "n": str(rng.randint(2, 99)),
        "first": pick(rng, NAMES),
        "last": pick(rng, SURNAMES),
        "color": pick(rng, COLORS[3:]),
        "animal": pick(rng, ANIMALS),
        "goods": pick(rng, _TEXTS["goods"].split()),
        "look": pick(rng, ("stronger", "higher", "longer", "safer")),
    }
