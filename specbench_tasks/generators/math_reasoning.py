"""Word problems of one to three steps on numbers below 100, with the working written out.

Sums are split into tens and ones (``47 + 25 = 60 + 12 = 72``, ``72 - 18 = 62 - 8 = 54``), so each
digit follows from few others. Everything in an answer is determined by the question.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from specbench_tasks.generators.base import (
    NAMES,
    Item,
    Split,
    he_or_she,
    pick,
    single_turn,
    split_of,
    texts,
)

_TEXTS = texts("math_reasoning")
_DRILL_SHARE = 0.15
"""Share of bare sums among the training items (never among the held-out ones)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change: `sign` is ``+`` or ``-`` and `amount` is what is added or taken away."""

    sign: str
    amount: int


def working(value: int, step: Step) -> tuple[str, int]:
    """Write out the working of one step from `value`; return it with the new value."""
    tens, ones = step.amount // 10 * 10, step.amount % 10
    if step.sign == "+":
        total = value + step.amount
        parts = f"{value // 10 * 10 + tens} + {value % 10 + ones}"
        return f"{value} + {step.amount} = {parts} = {total}", total
    total = value - step.amount
    middle = f" = {value - tens} - {ones}" if tens else ""
    return f"{value} - {step.amount}{middle} = {total}", total


def _draw_steps(rng: random.Random, value: int, num: int) -> list[Step]:
    """Draw `num` changes that keep the running value between 1 and 99."""
    steps = []
    for _ in range(num):
        low = value < 20 or (value < 80 and rng.random() < 0.5)
        amount = rng.randint(2, min(99 - value, 60) if low else min(value - 1, 60))
        steps.append(Step("+" if low else "-", amount))
        value += amount if low else -amount
    return steps


def draw(rng: random.Random, split: Split) -> Item:
    """Draw one word problem (or, in training only, now and then a bare sum)."""
    drill = split == "train" and rng.random() < _DRILL_SHARE
    while True:
        packed = not drill and rng.random() < 0.35
        num_steps = 1 if drill or packed else 2
        num_steps += not drill and rng.random() < 0.2
        boxes, each = rng.randint(2, 9), rng.randint(2, 9)
        start = boxes * each if packed else rng.randint(8, 90)
        steps = _draw_steps(rng, start, num_steps)
        if drill and rng.random() < 0.3:
            if split_of(f"math {boxes}*{each}") == split:
                return _times(boxes, each)
            continue
        key = (f"{boxes}*{each}" if packed else str(start)) + "".join(
            f"{s.sign}{s.amount}" for s in steps
        )
        if split_of(f"math {key}") == split:
            break
    if drill:
        return _drill(rng, start, steps[0])
    return _story(rng, start, (boxes, each) if packed else None, steps)


def _times(boxes: int, each: int) -> Item:
    text = f"{boxes} * {each}"
    answer = f"{text} = {boxes * each}. The answer is {boxes * each}."
    return single_turn(f"What is {text}?", answer, str(boxes * each))


def _drill(rng: random.Random, start: int, step: Step) -> Item:
    text, total = working(start, step)
    opening = pick(rng, ("What is", "Work out", "Calculate"))
    mark = "?" if opening == "What is" else "."
    prompt = f"{opening} {start} {step.sign} {step.amount}{mark}"
    return single_turn(prompt, f"{text}. The answer is {total}.", str(total))


def _story(
    rng: random.Random, start: int, packed: tuple[int, int] | None, steps: list[Step]
) -> Item:
    name = pick(rng, NAMES)
    items, boxes = pick(rng, _TEXTS["items"].split()), pick(rng, _TEXTS["boxes"].split())
    he = he_or_she(name)
    if packed:
        a, b = packed
        prompt = [pick(rng, _TEXTS["packed"]).format(name=name, a=a, b=b, boxes=boxes, items=items)]
        answer = [f"{name} has {a} {boxes} with {b} {items} each: {a} * {b} = {start}."]
    else:
        prompt = [pick(rng, _TEXTS["starts"]).format(name=name, n=start, items=items)]
        answer = [f"{name} starts with {start} {items}."]
    value = start
    for index, step in enumerate(steps):
        verb, tail = pick(rng, _TEXTS["more" if step.sign == "+" else "less"])
        what = f"{verb} {step.amount} {tail}".rstrip()
        opener = ("", "Then ", "After that, ")[index]
        he_now = he if opener else he.capitalize()
        text, value = working(value, step)
        prompt.append(f"{opener}{he_now} {what}.")
        answer.append(f"{opener}{he_now} {what}: {text}.")
    prompt.append(pick(rng, _TEXTS["questions"]).format(name=name, items=items))
    answer.append(f"So {name} has {value} {items} now. The answer is {value}.")
    return single_turn(" ".join(prompt), " ".join(answer), str(value))
