"""A part of a plan: what one of several machines measures, to be joined by `bench merge`.

Part I of N has every N-th block and every N-th prompt of the quality pass, so each has some of
every repeat and family. No torch here.
"""

from __future__ import annotations

from dataclasses import replace

from bench.errors import UsageError
from bench.records.plan import Plan


def parse_part(text: str) -> tuple[int, int]:
    """``I/N`` as numbers, I from 1 to N.

    Raises:
        BenchError: exit 2.
    """
    which, _, of = text.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        line = f"--part {text!r} is not I/N with I from 1 to N, e.g. 2/4"
        raise UsageError(line)
    return int(which), int(of)


def part_of(plan: Plan, text: str) -> Plan:
    """The plan of part ``I/N``; block numbers and all prompts stay as they are in the whole.

    Raises:
        BenchError: exit 2, also where nothing is left to time.
    """
    which, of = parse_part(text)
    scored = [planned.prompt for planned in plan.in_pass("quality")]
    mine = set(scored[which - 1 :: of])
    chosen = []
    for planned in plan.prompts:
        keeps = planned.prompt in mine
        passes = tuple(name for name in planned.passes if name != "quality" or keeps)
        chosen.append(replace(planned, passes=passes))
    blocks = plan.blocks[which - 1 :: of]
    if not blocks:
        line = f"--part {text} holds nothing: the plan has {len(plan.blocks)} blocks"
        raise UsageError(line)
    return replace(
        plan, blocks=blocks, prompts=tuple(chosen), parts=(f"{which}/{of}",), whole=plan.digest
    )
