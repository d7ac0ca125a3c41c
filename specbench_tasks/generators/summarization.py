"""Short news items with a few facts that matter and some that do not, and their summary.

Four kinds of item, each told in varied words and order among filler sentences; the summary states
the facts in a fixed order and wording, so all its content is copied from the item.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from specbench_tasks.generators.base import (
    Item,
    Split,
    pick,
    pick_distinct,
    single_turn,
    split_of,
    words,
)
from specbench_tasks.generators.vocab import ANIMALS, CITIES, COLORS, DAYS, NAMES, SURNAMES

INSTRUCTIONS = (
    "Summarize this text: {text}",
    "Please summarize the text. {text}",
    "Write a short summary of this text: {text}",
    "Give a summary of the news. {text}",
    "Sum up this report: {text}",
    "What are the main points of this text? {text}",
)
_BUILDINGS = words(
    "library museum school hospital bridge theater station market hotel park pool stadium"
)
_TEAMS = ("Lions", "Bears", "Wolves", "Eagles", "Sharks", "Tigers", "Foxes", "Hawks")
_GOODS = ("bread", "boats", "clocks", "shoes", "chairs", "bikes", "lamps", "toys")
_FILLERS = (
    "The weather was warm and dry.",
    "It was a cold and windy day.",
    "Many people came to watch.",
    "Some visitors brought their children.",
    "A band played music in the street.",
    "There was free coffee for all.",
    "The local radio talked about it for hours.",
    "A few people were not happy about it.",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of news: the leads (one is told first), the facts (any order), and the summary."""

    leads: tuple[str, ...]
    facts: tuple[tuple[str, ...], ...]
    summary: str


KINDS = (
    Kind(
        leads=(
            "The city of {city} opened a new {building} on {day}.",
            "On {day}, a new {building} was opened in {city}.",
            "There is a new {building} in {city}, open since {day}.",
        ),
        facts=(
            ("The work cost {n} million dollars.", "It took {n} million dollars to build."),
            (
                "Mayor {first} {last} gave a speech.",
                "The mayor, {first} {last}, was proud and gave a speech.",
            ),
            (
                "Next year, the city wants to build a {other}.",
                "A {other} will be built next year.",
            ),
        ),
        summary="The text is about a new {building} in {city}. "
        "On {day}, {city} opened a new {building} for {n} million dollars. Mayor {first} "
        "{last} gave a speech. Next year, {city} will build a {other}.",
    ),
    Kind(
        leads=(
            "The {team} played against the {rival} in {city} on {day}.",
            "On {day}, the {team} and the {rival} met in {city}.",
            "In {city}, the {team} had a game against the {rival} on {day}.",
        ),
        facts=(
            (
                "The {team} won by {n} points.",
                "In the end, the {team} were {n} points ahead.",
            ),
            (
                "{first} {last} was the best player.",
                "The best player of the day was {first} {last}.",
            ),
            (
                "The next game is in {place}.",
                "Next week, both teams will play in {place}.",
            ),
        ),
        summary="The text is about a game of the {team}. "
        "On {day}, the {team} beat the {rival} in {city} by {n} points. The best player was "
        "{first} {last}. The next game will be played in {place}.",
    ),
    Kind(
        leads=(
            "A {color} {animal} ran away from the zoo in {city} on {day}.",
            "On {day}, the zoo in {city} lost a {color} {animal}.",
            "The zoo in {city} has been looking for a {color} {animal} since {day}.",
        ),
        facts=(
            (
                "It was found after {n} hours.",
                "The search took {n} hours.",
            ),
            (
                "{first} {last} saw it near the {building}.",
                "It sat near the {building}, where {first} {last} saw it.",
            ),
            (
                "The zoo will now build a {look} fence.",
                "A {look} fence is now planned.",
            ),
        ),
        summary="The text is about a {animal} in {city}. "
        "On {day}, a {color} {animal} ran away from the zoo in {city}. After {n} hours, "
        "{first} {last} found it near the {building}. The zoo will build a {look} fence.",
    ),
    Kind(
        leads=(
            "A company from {city} will sell {goods} in {place} from {day} on.",
            "From {day} on, people in {place} can buy {goods} made by a company from {city}.",
            "A company in {city} makes {goods}, and from {day} on it will sell them in {place}.",
        ),
        facts=(
            (
                "It was founded by {first} {last}.",
                "{first} {last} started the company.",
            ),
            (
                "There will be {n} new jobs.",
                "The company is looking for {n} new workers.",
            ),
            (
                "The first shop is next to the {building}.",
                "It has rented a shop next to the {building}.",
            ),
        ),
        summary="The text is about a company that makes {goods}. "
        "From {day} on, a company from {city} will sell {goods} in {place}. It was founded "
        "by {first} {last} and needs {n} new workers. Its shop is next to the {building}.",
    ),
)


def draw(rng: random.Random, split: Split) -> Item:
    """One news item; its slots together are the content key."""
    while True:
        kind_index = rng.randrange(len(KINDS))
        slots = _slots(rng)
        if split_of(f"summarization {kind_index} {sorted(slots.items())}") == split:
            break
    kind = KINDS[kind_index]
    body = [pick(rng, fact) for fact in kind.facts]
    body += pick_distinct(rng, _FILLERS, rng.choice((1, 2)))
    rng.shuffle(body)
    text = " ".join([pick(rng, kind.leads), *body]).format(**slots)
    return single_turn(pick(rng, INSTRUCTIONS).format(text=text), kind.summary.format(**slots))


def _slots(rng: random.Random) -> dict[str, str]:
    city, place = pick_distinct(rng, CITIES, 2)
    building, other = pick_distinct(rng, _BUILDINGS, 2)
    team, rival = pick_distinct(rng, _TEAMS, 2)
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
        "goods": pick(rng, _GOODS),
        "look": pick(rng, ("stronger", "higher", "longer", "safer")),
    }
