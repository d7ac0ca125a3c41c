"""Word problems of one to three steps on numbers below 100, with the working written out.

Sums are split into tens and ones (``47 + 25 = 60 + 12 = 72``, ``72 - 18 = 62 - 8 = 54``), so each
digit depends on few others. The question determines the whole answer.
"""

from __future__ import annotations

import random

from specbench_tasks.generators.base import (
    NAMES,
    Item,
    Split,
    he_or_she,
    key_split,
    pick,
    single_turn,
    texts,
)

_TEXTS = texts("math_reasoning")
_DRILL_SHARE = 0.15
"""Share of bare sums among the training items (never among the held-out ones)."""


def working(value: int, step: int) -> tuple[str, int]:
    """Write out the working of one change of `value` and return it with the new value."""
    amount, total = abs(step), value + step
    tens, ones = amount // 10 * 10, amount % 10
    if step > 0:
        parts = f"{value // 10 * 10 + tens} + {value % 10 + ones}"
        return f"{value} + {amount} = {parts} = {total}", total
    middle = f" = {value - tens} - {ones}" if tens else ""
    return f"{value} - {amount}{middle} = {total}", total


def _draw_steps(rng: random.Random, value: int, num: int) -> list[int]:
    """Draw `num` changes that keep the running value between 1 and 99."""
    steps = []
    for _ in range(num):
        low = value < 20 or (value < 80 and rng.random() < 0.5)
        amount = rng.randint(2, min(99 - value, 60) if low else min(value - 1, 60))
        steps.append(amount if low else -amount)
        value += steps[-1]
    return steps


def draw(rng: random.Random, split: Split) -> Item:
    """Draw one word problem, or sometimes a bare sum (only in training)."""
    drill = split == "train" and rng.random() < _DRILL_SHARE
    while True:
        packed = not drill and rng.random() < 0.35
        num_steps = 1 if drill or packed else 2
        num_steps += not drill and rng.random() < 0.2
        boxes, each = rng.randint(2, 9), rng.randint(2, 9)
        start = boxes * each if packed else rng.randint(8, 90)
        steps = _draw_steps(rng, start, num_steps)
        if drill and rng.random() < 0.3:
            if key_split(f"math {boxes}*{each}") == split:
                return _times(boxes, each)
            continue
        key = (f"{boxes}*{each}" if packed else str(start)) + "".join(f"{s:+}" for s in steps)
        if key_split(f"math {key}") == split:
            break
    if drill:
        return _drill(rng, start, steps[0])
    return _story(rng, start, (boxes, each) if packed else None, steps)


def _times(boxes: int, each: int) -> Item:
    text = f"{boxes} * {each}"
    answer = f"{text} = {boxes * each}. The answer is {boxes * each}."
    return single_turn(f"What is {text}?", answer, str(boxes * each))


def _drill(rng: random.Random, start: int, step: int) -> Item:
    text, total = working(start, step)
    opening = pick(rng, ("What is", "Work out", "Calculate"))
    mark = "?" if opening == "What is" else "."
    prompt = f"{opening} {start} {'+' if step > 0 else '-'} {abs(step)}{mark}"
    return single_turn(prompt, f"{text}. The answer is {total}.", str(total))


def _story(
    rng: random.Random, start: int, packed: tuple[int, int] | None, steps: list[int]
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
        verb, tail = pick(rng, _TEXTS["more" if step > 0 else "less"])
        action = f"{verb} {abs(step)} {tail}".rstrip()
        opener = ("", "Then ", "After that, ")[index]
        he_now = he if opener else he.capitalize()
        text, value = working(value, step)
        prompt.append(f"{opener}{he_now} {action}.")
        answer.append(f"{opener}{he_now} {action}: {text}.")
    prompt.append(pick(rng, _TEXTS["questions"]).format(name=name, items=items))
    answer.append(f"So {name} has {value} {items} now. The answer is {value}.")
    return single_turn(" ".join(prompt), " ".join(answer), str(value))
