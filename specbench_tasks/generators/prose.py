"""Sentence patterns of the mt_bench family: stories, diary pages, sequels and letters.

A pattern's ``<pool>`` draws a random word; ``{slot}`` is what the conversation is about. Sentences
hold exactly one full stop each, so that counting them is well defined.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from specbench_tasks.generators.base import pick, words

_POOLS = {
    "look": words(
        "wise small big young strange friendly clever hungry lonely beautiful tired quiet"
    ),
    "mood": words("happy sad proud nervous calm curious angry excited afraid brave"),
    "when": words("morning evening night winter summer spring autumn afternoon"),
    "where": words(
        "river bridge tree hill road house door kitchen window lake wall fire station church shop"
    ),
    "food": words("bread soup cake honey apples cheese berries nuts fish tea"),
    "verb": words("sang danced laughed slept waited walked played worked listened smiled"),
    "how": words("slowly quickly quietly loudly gently happily sadly carefully"),
    "sky": words("sun moon wind rain snow storm stars fog"),
    "num": words("two three four five six seven"),
    "thing": words("gift secret song dream story plan promise treasure riddle game"),
}


@dataclass(frozen=True, slots=True)
class Prose:
    """The sentence pools of one kind of text; `demanded` patterns carry the word asked for."""

    openings: tuple[str, ...]
    demanded: tuple[str, ...]
    middles: tuple[str, ...]
    endings: tuple[str, ...]


_MIDDLES = (
    "They <verb> near the <where> for <num> days.",
    "The <sky> came over the {place} and all was <look>.",
    "{He} felt <mood> but <how> went on.",
    "They shared some <food> and talked about a <thing>.",
    "In the <when>, the <look> {animal} <verb> <how>.",
    "Behind the <where>, they heard a <look> voice.",
    "The {animal} told {name} a <thing> about the <sky>.",
    "{His} heart was <mood> because of the <thing>.",
    "For <num> hours, {he} <verb> by the <where>.",
)
STORY = Prose(
    openings=(
        "One <when>, {name} met a <look> {animal} in the {place}.",
        "Once upon a time, {name} and a <look> {animal} lived near the {place}.",
        "In a <look> {place}, {name} saw a {animal} by the <where>.",
        "Last <when>, a <look> {animal} came to the house of {name}.",
        "{name} was <mood> when a {animal} <verb> near the <where>.",
        "Long ago, a <look> {animal} waited for {name} at the <where>.",
    ),
    demanded=(
        "The {animal} gave {name} a <look> {word}.",
        "By the <where>, they found a {word} and <verb> <how>.",
        "{He} took the {word} and <how> went to the <where>.",
        "A <look> {word} lay behind the <where>.",
        "With the {word}, they <verb> until the <when>.",
        "{name} had lost a {word} near the <where> and was <mood>.",
        "The {word} was hidden under the <look> <where>.",
    ),
    middles=_MIDDLES,
    endings=(
        "In the end, {name} and the {animal} <verb> under the <sky>.",
        "That <when>, {name} went home and was very <mood>.",
        "From then on, the {animal} and {name} were <mood> friends.",
        "At last, {name} <verb> and the {animal} was <mood>.",
        "So {name} kept the <thing> for <num> years.",
    ),
)
DIARY = Prose(
    openings=(
        "Dear diary, today I met a <look> {animal} near the <where>.",
        "Dear diary, this <when> a {animal} came to my <where>.",
        "Dear diary, I am <mood> because a {animal} <verb> in my garden.",
        "Dear diary, a <look> {animal} and I <verb> in the {place}.",
    ),
    demanded=(
        "It gave me a <look> {word}.",
        "I found a {word} by the <where> and <verb> <how>.",
        "I had a {word} with me and felt <mood>.",
        "We hid the {word} under the <look> <where>.",
        "Then I saw a {word} near the <where>.",
    ),
    middles=(
        "We ate some <food> and <verb> near the <where>.",
        "The <sky> was <look> and I felt <mood>.",
        "It told me a <thing> about the <sky>.",
        "For <num> hours, we <verb> <how>.",
        "I want to write a <thing> about it in the <when>.",
    ),
    endings=(
        "Tonight I am <mood>, your {name}.",
        "I hope to see it again in the <when>, your {name}.",
        "Now I am tired and <mood>, your {name}.",
        "Tomorrow I will bring some <food>, your {name}.",
    ),
)
SEQUEL = Prose(
    openings=(
        "The next <when>, {name} went back to the <where>.",
        "After <num> days, the {animal} came to see {name} again.",
        "Soon {name} had a <look> dream about the {animal}.",
        "Then {name} and the {animal} <verb> by the <where>.",
        "One <when>, {name} thought of the {animal} again.",
    ),
    demanded=STORY.demanded,
    middles=_MIDDLES,
    endings=STORY.endings,
)
LETTER = Prose(
    openings=(
        "Dear {friend}, I must tell you about a <look> {animal}.",
        "Dear {friend}, last <when> I met a {animal} by the <where>.",
        "Dear {friend}, you will not believe my <thing> about the {animal}.",
        "Dear {friend}, I am <mood> and want to tell you a <thing>.",
    ),
    demanded=(
        "Please bring a <look> {word} when you come in <when>.",
        "I send you a {word} from the <where>.",
        "We found a {word} and <verb> <how>.",
        "Do not forget the {word} near the <where>.",
        "The {animal} gave me a <look> {word} and <verb>.",
    ),
    middles=(
        "We ate some <food> and <verb> near the <where>.",
        "The <sky> was <look> and I felt <mood>.",
        "For <num> days, we <verb> <how>.",
        "The {animal} knows a <thing> about the <sky>.",
        "Come soon and we will eat some <food>.",
    ),
    endings=(
        "I am <mood> and hope to see you in the <when>, yours, {name}.",
        "Write to me soon, yours, {name}.",
        "With <look> wishes from the {place}, {name}.",
        "Think of me when you see the <sky>, yours, {name}.",
    ),
)
WHO = (
    "The hero is {name}, and the animal in the text is a {animal}. {name} and the {animal} meet, "
    "and that is how it all begins.",
    "The name of the hero is {name}. The animal that {name} meets in the text is a {animal}.",
)


def fill(rng: random.Random, pattern: str, slots: dict[str, str]) -> str:
    """A pattern with its random words drawn and its slots put in."""
    drawn = re.sub(r"<(\w+)>", lambda match: pick(rng, _POOLS[match[1]]), pattern)
    return drawn.format(**slots)
