"""Judge a run (may its numbers be used?), and warn readers.

==========  =======================================================================================
DAMAGED     records that run.json counts, or implies, are missing
INVALID     a record breaks an invariant, the baseline answered nothing, or state survived an answer
WRONG       a decoder claims to be lossless and is not
INCOMPLETE  the run did not end, or a decoder answered nothing
VALID       the whole plan was measured, and nothing is broken
==========  =======================================================================================

If several verdicts apply, the first in this order counts. A run is judged whenever it is read.
Noise gives a warning, not a verdict. *Drift* is the slow-down of the baseline within the run
(`bench.stats.workers.drifts`); in a run with workers, it is the largest drift of a worker.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from bench.errors import Exit
from bench.records.invariants import broken_invariants
from bench.records.plan import (
    REFUTED,
    SAME_DISTRIBUTION,
    VERIFIED,
    WRONG,
    Cell,
    Difference,
    RunStatus,
    baseline_arms,
)
from bench.records.record import SampleRecord
from bench.records.run_folder import Run, is_stored
from bench.records.samples import SAMPLES, SAMPLES_TABLE, read_phases
from bench.stats.adapter_fit import draft_warnings, model_warnings
from bench.stats.answers import baseline_answers, state_leaks
from bench.stats.counters import group_by, repeated_texts
from bench.stats.intervals import Estimate
from bench.stats.workers import Part, drifts, noise_floor, run_parts
from bench.text import counted, factor, percent

MAX_OTHER_CORES = 0.5
_MAX_DRIFT = 0.05
_GAPS = (0.03, 0.06, 0.125, 0.25)
"""Distances from a tie. First differences are counted below each distance."""
_UNVERIFIED = {
    False: "not verified, as it leaves ar's tokens more often than rounding does",
    True: "not verified, as the run measured no rounding of its own to compare with",
}
"""Reason why a cell's differences are not verified: without a floor (True) or with one."""
_RESHAPED = "ar@rows"
"""Prefix of cells in which the baseline decodes with calls of another shape."""
UNKNOWN = "unknown"
VALID, INVALID, DAMAGED, INCOMPLETE = "VALID", "INVALID", "DAMAGED", "INCOMPLETE"
EXIT_CODES: Mapping[str, Exit] = {
    VALID: Exit.DONE,
    DAMAGED: Exit.INVALID,
    INVALID: Exit.INVALID,
    WRONG: Exit.REGRESSION,
    INCOMPLETE: Exit.INVALID,
}
"""Exit codes of commands that read or complete a run."""


def judge(run: Run) -> RunStatus:
    """Return a run's status with the verdict on its present measurements, and the reasons."""
    damage, state, failed = _damage(run), state_leaks(run, read_phases(run.path)), _failed(run)
    reasons = {
        DAMAGED: damage,
        INVALID: (*_broken(run), *filter(None, [failed.get(run.plan.baseline)]), *state),
        WRONG: _difference_lines(run.status, wrong=True),
        INCOMPLETE: () if damage else _unfinished(run, failed),
    }
    lines = tuple(dict.fromkeys(itertools.chain.from_iterable(reasons.values())))
    parts = run_parts(run.records, "worker")
    drift = max((p.drift for p in parts if p.drift is not None), key=abs, default=None)
    if not parts:
        drift = drifts({"": run.records})[""]
    errors = [record for record in run.records if record.error is not None]
    compiled = [line for line in run.events if line["event"] == "compiled"]
    return replace(
        run.status,
        verdict=next((verdict for verdict, lines in reasons.items() if lines), VALID),
        reasons=lines,
        warnings=(
            *_difference_lines(run.status, wrong=False),
            *draft_warnings(run.plan.cells, run.records),
            *(
                f"{cell} failed on {counted(len(of), 'answer')}, "
                f"e.g. {of[0].prompt}: {of[0].failure}"
                for cell, of in group_by(errors).items()
                if failed.get(cell) not in lines  # else a reason says so
            ),
            *_noise_warnings(run, parts, drift),
            *_repeat_warnings(run.records),
            *repeated_texts(run.plan.prompts),
            *_claim_warnings(run.plan.cells),
            *model_warnings(run.config, run.env.models, (p.num_tokens for p in run.plan.prompts)),
        ),
        num_errors=len(errors),
        drift=drift,
        num_graphs=sum(line["graphs"] for line in compiled) if compiled else None,
        compile_s=sum(line["seconds"] for line in compiled) if compiled else None,
    )


def _difference_lines(status: RunStatus, *, wrong: bool) -> tuple[str, ...]:
    """Describe how the wrong (or all other) cells differ from the baseline, one line per cell."""
    lines = []
    for difference in status.differences or ():
        if (difference.cell in status.wrong) != wrong:
            continue
        if difference.check:
            lines.append(
                f"{difference.cell} is WRONG: it claims to be lossless and fails the contract's "
                f"checks: {difference.check}"
            )
        if difference.num_answers is None:
            continue
        if not wrong and difference.num_tokens:
            lines.append(_parting_line(difference, status))
            continue
        num = difference.num_wrong
        ties = f", {num} of them beyond rounding" if num else ": near-ties" if num == 0 else ""
        lines.append(
            f"{difference.cell}{' is WRONG: it' if wrong else ''} claims to be lossless and gave "
            f"other tokens than ar on {difference.num_answers} of {difference.num_compared} "
            f"answers{ties}, e.g. {difference.example}"
        )
    return tuple(lines)


def _parting_line(difference: Difference, status: RunStatus) -> str:
    """Describe a cell's differences from the baseline that rounding may explain."""

    def same(each: Difference) -> str:
        compared = each.num_compared or 0
        share = 1 - (each.num_answers or 0) / max(1, compared)
        return f"{percent(share, '%', 0)} of {compared} answers"

    share = (difference.num_equal or 0) / (difference.num_tokens or 1)
    line = (
        f"{difference.cell} is identical to ar on {same(difference)} ({percent(share, '%', 0)} of "
        "their tokens precede the first difference; its median position is token "
        f"{median(difference.places):g})"
    )
    if difference.gaps:
        near = [f"{sum(gap < bound for gap in difference.gaps)} below {bound:g}" for bound in _GAPS]
        line += f"; distances from a tie in {len(difference.gaps)} checked differences: "
        line += f"{', '.join(near)}, at most {max(difference.gaps):.3g}"
    if (floor := status.floor) is not None:
        share = floor.num_same / max(1, floor.num_answers)
        off = difference.places_off
        far = "" if off is None else f", its farthest at {off:.2g}"
        line += (
            f". The run's own rounding moves ar's logits by up to {floor.moved:.2g} units of the "
            f"last place{far}; in calls of {floor.rows} rows, {percent(share, '%', 0)} of "
            f"{floor.num_answers} answers of ar stay the same"
        )
    if difference.num_wrong == 0:
        line += ": near-ties"
    elif not difference.num_wrong:
        line += f": {_UNVERIFIED[floor is None]}"
    floors = [each for each in status.differences or () if each.cell.startswith(_RESHAPED)]
    if floors and difference not in floors:
        line += f". ar itself, as {floors[0].cell}, is identical on {same(floors[0])}"
    return f"{line}; e.g. {difference.example}"


def _damage(run: Run) -> tuple[str, ...]:
    """Report missing records: run.json counts more, or calls the run complete."""
    planned, have, missing = run.status.num_records, len(run.records), _missing(run)
    file = SAMPLES_TABLE if is_stored(run.path) else SAMPLES
    if planned is not None and have < planned:
        lost = f"{file} holds {have:,} of the {planned:,} records that run.json counts"
    elif run.status.complete and missing:
        lost = f"run.json says that the run is complete, but {file} lacks records"
    else:
        return ()
    return (f"{lost}{f': {missing} are missing' if missing else ''}{_advice(run)}",)


def _unfinished(run: Run, failed: Mapping[str, str]) -> tuple[str, ...]:
    if run.status.complete:
        return tuple(failed[cell] for cell in failed if cell != run.plan.baseline)
    missing = _missing(run)
    lacking = f"{missing} were not measured" if missing else "it was stopped after its last answer"
    how = run.status.status or UNKNOWN
    return (f"the run did not end (status: {how}): {lacking}{_advice(run)}",)


def _advice(run: Run) -> str:
    """Advise how to resume the run, unless it is a side of `bench ab` or a stored run."""
    if run.status.ab or is_stored(run.path):
        return ""
    name = run.path.resolve().name  # a report must not depend on the reader's folder
    return f"; `bench resume {name}` (in the folder that holds the run) measures the rest"


def _missing(run: Run) -> str:
    """Name the planned measurements without records."""
    blocks = run.plan.blocks
    done = len({record.block for record in run.records if record.kind == "timing"})
    scored = sum(r.kind == "quality" for r in run.records)
    planned = len(run.plan.in_pass("quality")) * len(run.plan.cells)
    parts = []
    if done < len(blocks):
        parts.append(f"{len(blocks) - done:,} of {len(blocks):,} timing blocks")
    if scored < planned:
        parts.append(f"{planned - scored:,} of {planned:,} answers of the quality pass")
    return " and ".join(parts)


def _broken(run: Run) -> tuple[str, ...]:
    """List broken invariants by cell, or run.json's reasons if no record breaks an invariant."""
    max_new_tokens = run.config.get("max_new_tokens", sys.maxsize)
    broken: dict[str, list[str]] = {}
    lossy = {cell.cell for cell in run.plan.cells if not cell.lossless}
    for record in run.records:
        verified = record.decoder not in lossy
        for fault in broken_invariants(record, max_new_tokens, verified=verified):
            broken.setdefault(record.decoder, []).append(f"{fault} (prompt {record.prompt})")
    if broken or run.status.verdict != INVALID:
        return tuple(
            f"{cell}: {counted(len(each), 'broken invariant')}, e.g. {each[0]}"
            for cell, each in broken.items()
        )
    return run.status.reasons or ("run.json has this verdict",)


def _failed(run: Run) -> dict[str, str]:
    """Report the cells that failed on all prompts of a complete run, by cell."""
    answers = group_by(r for r in run.records if run.status.complete and r.kind == "timing")
    return {
        cell: f"{cell} answered none of its prompts, e.g. {of[0].prompt}: {of[0].failure}"
        for cell in dict.fromkeys([run.plan.baseline, *(each.cell for each in run.plan.cells)])
        if (of := answers.get(cell)) and all(record.error is not None for record in of)
    }


def _noise_warnings(run: Run, parts: Sequence[Part], drift: float | None) -> list[str]:
    """Warn of other load in blocks that count, and of an unsteady baseline."""
    attempts = {r.block: r.attempt for r in run.records if r.kind == "timing"}
    loads = [
        event
        for event in run.events
        if event["event"] == "load" and attempts.get(event["block"]) == event["attempt"]
    ]
    warnings, blocks = [], counted(len(loads), "block")
    cores = [load["other_cores"] for load in loads if load.get("other_cores") is not None]
    if num_loaded := sum(used > MAX_OTHER_CORES for used in cores):
        warnings.append(
            f"other processes used more than {MAX_OTHER_CORES} cores during {num_loaded} of "
            f"{blocks} (up to {max(cores):.1f}): times are noisy"
        )
    if throttled := [load["throttled"] for load in loads if load.get("throttled")]:
        line = f"the processor was slowed down during {len(throttled)} of {blocks}"
        warnings.append(f"{line} ({throttled[0]})")
    for part in parts:
        if drifted(part.drift):
            line = f"{_slower(part.drift)} of its blocks than at their start"
            warnings.append(f"worker {part.title} drifted: {line}")
        warnings += _unsteady(f"worker {part.title}", part.floor, run.plan.baseline)
    if not parts:
        if drifted(drift):
            line = f"{_slower(drift)} of the run than at its start"
            warnings.append(f"{line}: the machine's speed drifted")
        warnings += _unsteady("the machine", noise_floor(run.records), run.plan.baseline)
    return warnings


def drifted(drift: float | None) -> bool:
    """Return whether the baseline's time per token changed too much to compare times."""
    return drift is not None and abs(drift) > _MAX_DRIFT


def _slower(drift: float | None) -> str:
    drift = drift or 0.0
    how_much = "more" if drift > 0 else "less"
    return f"the baseline took {percent(abs(drift))} {how_much} time per token at the end"


def _unsteady(subject: str, floor: Estimate, name: str) -> list[str]:
    """Warn if the second arm of the baseline `name` was clearly faster or slower than its first."""
    if floor.value is None or not floor.differs_from_one or abs(floor.value - 1) <= _MAX_DRIFT:
        return []
    ends = f"[{factor(floor.low, '')}, {factor(floor.high, '')}]"
    return [f"{subject} is not steady: {name} against itself gave {factor(floor.value)} {ends}"]


def _claim_warnings(cells: Iterable[Cell]) -> list[str]:
    """Warn of distributions that no check verifies, and of steps that depend on past answers."""
    warnings = []
    for cell in cells:
        if cell.check_note is None or cell.checked == REFUTED:
            continue
        if cell.checked == VERIFIED:
            warnings.append(f"{cell.cell} is lossless, but {cell.check_note}")
        elif cell.guarantee == SAME_DISTRIBUTION:
            line = f"{cell.cell} claims ar's distribution; no check verified it: {cell.check_note}"
            warnings.append(line)
    return warnings


def _repeat_warnings(records: Sequence[SampleRecord]) -> list[str]:
    """Warn about a nondeterministic device: the baseline's two arms gave different tokens."""
    answers = baseline_answers(records, by_repeat=True)
    unequal = sum(len(each) > 1 for each in answers)
    if not unequal:
        return []
    arms = " and ".join(baseline_arms(r.decoder for r in records))
    return [f"{arms} gave different tokens for {unequal} of {len(answers)} answers"]
