"""Tables of a report on where the time goes, and on what a speed-up is made of. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.decompose import MOST_RESIDUAL, Decomposition, Split
from bench.phases import PHASES
from bench.reporting.tables import UNKNOWN, Cell, Table, number

_PASS = (
    "From an instrumented second pass over {} prompt(s), apart from the timed one: its clock is "
    "read around every call."
)
_AGAINST = "time against the timed pass"


def split(found: Sequence[Split]) -> Table | None:
    """Every decoder's time by phase, or None where no second pass was made."""
    if not found:
        return None
    rows = tuple(
        (
            Cell(item.decoder),
            Cell(number(item.time_per_token_s, ".2f", 1e3)),
            *(Cell(number(item.shares[phase], ".1f", 100)) for phase in PHASES),
            Cell(number(item.against_timed, unit="x")),
        )
        for item in found
    )
    note = (
        f"{_PASS.format(max(item.prompts for item in found))} Shares of the time from request "
        "start to last token, per cent. Prefill: all up to the first token (in batches: target "
        "calls on an empty cache); draft: calls of the draft model, and target calls that only "
        "propose; target calls: all others, which verify drafts or, where nothing is verified, "
        "predict; sampling: from logits to tokens and verdicts; "
        "scheduler: merging, cutting, counting; other: the decoder's own code. Time against the "
        "timed pass: this pass's time per token / that of the same answers in the timed pass; "
        "reading the clock costs a few per cent."
    )
    note = " ".join([note, *one_sided(found)])
    phases = [f"{'target calls' if phase == 'verify' else phase} %" for phase in PHASES]
    headings = ("decoder", "ms per token", *phases, _AGAINST)
    return Table(title="Where the time goes", note=note, headings=headings, rows=rows)


def one_sided(found: Iterable[Split]) -> list[str]:
    """That the second pass was faster than the timed one for all decoders, or slower; else empty.

    Faster, or slower by more than instruments can cost, it saw a machine of another speed: what
    decoders do differs, the machine's speed is common to them.
    """
    ratios = [item.against_timed for item in found if item.against_timed is not None]
    if len(ratios) < 2 or min(ratios) <= 1 <= max(ratios):
        return []
    which = "faster" if max(ratios) < 1 else "slower"
    why = "the machine's speed changed in between, so shares of time hold, milliseconds do not"
    if 1 < min(ratios) <= 1 + MOST_RESIDUAL:
        why = "reading the clock costs that much, and the milliseconds above include it"
    return [
        f"The second pass was {which} than the timed one for every decoder "
        f"({min(ratios):.2f}x to {max(ratios):.2f}x): {why}."
    ]


def parts(found: Sequence[Decomposition]) -> Table | None:
    """Every decoder's speed-up in parts, or None where there is nothing to take apart."""
    if not found:
        return None
    rows = []
    for item in found:
        residual = item.residual
        text = UNKNOWN if residual is None else f"{100 * residual:+.1f}"
        rows.append(
            (
                Cell(item.decoder),
                Cell(number(item.acceptance_length)),
                *(Cell(number(cost)) for cost in (item.verify, item.draft, item.overhead)),
                Cell(number(item.predicted, unit="x")),
                Cell(number(item.measured, unit="x")),
                Cell(text, residual is not None and abs(residual) > MOST_RESIDUAL),
            )
        )
    note = (
        "After the first token speed-up = tokens per step / (target calls + draft + overhead), "
        "where costs are of a step, in ar's seconds per token, and overhead is sampling, scheduler "
        f"and the decoder's own code. {_PASS.format(max(item.prompts for item in found))} "
        "Measured: the timed pass's ratio of totals of the same answers. Residual: measured / "
        "predicted - 1; "
        f"bold beyond {MOST_RESIDUAL:.0%}, where one of the two passes was disturbed. "
    )
    return Table(
        title="What the speed-up is made of",
        note=note,
        headings=(
            "decoder",
            "tokens per step",
            "target calls",
            "draft",
            "overhead",
            "predicted speed-up",
            "measured",
            "residual %",
        ),
        rows=tuple(rows),
    )
