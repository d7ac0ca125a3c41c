"""Closed-book questions: every fact is seen in training, each test phrasing is not.

The held-out phrasings are listed apart, so no test question can occur in training. An answer tells
where the country lies and its flag, but never a fact of another asked kind, which would let a
wrong answer score.
"""

from __future__ import annotations

import random

from specbench_tasks.generators.base import Item, Split, pick, single_turn
from specbench_tasks.generators.facts import COUNTRIES, Country
from specbench_tasks.generators.vocab import NAMES

TOPICS = {
    "capital": "the capital of {c}",
    "language": "the main language of {c}",
    "currency": "the currency of {c}",
    "dish": "a famous dish from {c}",
}
FRAMES: dict[Split, tuple[str, ...]] = {
    "train": (
        "What is {topic}?",
        "Tell me {topic}.",
        "Can you name {topic}?",
        "Do you know {topic}?",
        "Please name {topic}.",
        "What do you call {topic}?",
        "I want to know {topic}.",
        "Give me the name of {topic}, please.",
        "My friend asked me about {topic}. What is it?",
    ),
    "test": (
        "Please tell me the name of {topic}.",
        "Can you tell me the name of {topic}?",
        "I want to call a friend. What is {topic}?",
        "Do you know the name of {topic}?",
    ),
}
PHRASINGS: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "capital": (
            "Which city is the capital of {c}?",
            "The government of {c} sits in which city?",
            "In {c}, which city is the capital?",
            "What is the capital city of {c}?",
            "Which city do people in {c} call the capital?",
            "Where is the government of {c}?",
        ),
        "language": (
            "Which language do people speak in {c}?",
            "What do people in {c} speak?",
            "In {c}, which language do most people speak?",
            "What language do you need in {c}?",
            "In which language do people in {c} write?",
            "What is the language of most people in {c}?",
            "How do you speak with people in {c}?",
        ),
        "currency": (
            "Which money do people use in {c}?",
            "How do people pay in {c}?",
            "In {c}, which currency do people use?",
            "What money do you need in {c}?",
            "I want to buy bread in {c}. Which money do I need?",
            "What is the name of the money in {c}?",
            "What do you pay with in {c}?",
        ),
        "dish": (
            "Which famous dish do people eat in {c}?",
            "What do people like to eat in {c}?",
            "In {c}, which dish is famous?",
            "What dish is from {c}?",
            "I am hungry in {c}. Which famous dish can I eat?",
            "Which famous dish was first made in {c}?",
            "What do hungry people eat in {c}?",
        ),
    },
    "test": {
        "capital": ("Which city has the government of {c}?", "Which capital does {c} have?"),
        "language": (
            "Which language is the main language in {c}?",
            "What do most people speak in {c}?",
        ),
        "currency": ("Which currency do people use to pay in {c}?", "What is the money of {c}?"),
        "dish": ("Which dish is famous in {c}?", "What famous dish do people in {c} like to eat?"),
    },
}
LEADS: tuple[str, ...] = (
    "Question: {q}",
    "Please answer the question. {q}",
    "{name} asked me: {q}",
    "I need to know this. {q}",
    "{name} wants to know it. {q}",
)
"""Sentences that may come before a question, in either split."""
_CLAIMS = {
    "capital": "The capital of {c} is {a}.",
    "language": "The main language of {c} is {a}.",
    "currency": "The currency of {c} is the {a}.",
    "dish": "A famous dish from {c} is {a}.",
}
_DETAILS = (
    "{c} lies in {region}, close to {neighbor}, and its flag is {flag}.",
    "{c} is a country in {region} with a flag in {flag}, and {neighbor} is not far away.",
)


def draw(rng: random.Random, split: Split) -> Item:
    """One question about one country."""
    country, kind = pick(rng, COUNTRIES), pick(rng, tuple(TOPICS))
    if rng.random() < 0.6:
        question = pick(rng, FRAMES[split]).format(topic=TOPICS[kind])
    else:
        question = pick(rng, PHRASINGS[split][kind])
    question = question.format(c=country.name)
    if rng.random() < 0.3:
        question = pick(rng, LEADS).format(q=question, name=pick(rng, NAMES))
    return single_turn(question, answer(country, kind), getattr(country, kind))


def answer(country: Country, kind: str) -> str:
    """The claim, where the country lies, and the claim's answer again."""
    gold = getattr(country, kind)
    details = _DETAILS[len(country.name) % 2].format(
        c=country.name, region=country.region, neighbor=country.neighbor, flag=country.flag
    )
    claim = _CLAIMS[kind].format(c=country.name, a=gold)
    topic = TOPICS[kind].format(c=country.name)
    return f"You ask about {topic}. {claim} {details} So the answer is {gold}."
