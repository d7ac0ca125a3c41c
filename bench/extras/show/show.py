"""Print answers of a run token by token, each step in one colour (`bench show`).

Consecutive steps alternate between two backgrounds; the prefill's token has a third. Accepted
drafts are bold, tokens that the model added are not. Without colours (a pipe, a file, NO_COLOR),
bars separate the steps. Only the run folder is read: no model, no tokenizer, no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from bench.errors import UsageError, did_you_mean
from bench.records.plan import WRONG, Plan
from bench.records.prompts import kept_prompts, read_pieces
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.stats.counters import Tally
from bench.stats.summary import decoder_order
from bench.stats.validity import VALID, judge
from bench.text import colourless, counted, printable
from decoders.core.nearest import nearest

_FEW = 3
"""Number of prompts shown by default."""
_PREFILL = "black on rgb(190,190,190)"
_STEPS = ("black on rgb(168,205,240)", "black on rgb(250,212,150)")
_INDENT = (0, 0, 0, 2)


def show_run(
    run_dir: Path,
    console: Console,
    *,
    prompt: str | None = None,
    decoders: Sequence[str] | None = None,
) -> None:
    """Print answers step by step: the first repeat without an error, timed if possible.

    Args:
        run_dir: the run's folder.
        console: where they are printed; without colours, bars separate the steps.
        prompt: CONVERSATION#TURN, or a conversation; None: a few prompts.
        decoders: cells whose answers are printed; None: all.

    Raises:
        BenchError: the folder is not a run, or a prompt or decoder is unknown (exit 2).
    """
    run = load_run(run_dir)
    wrong, status = run.status.wrong, judge(run)
    cells = decoder_order(run)
    for name in decoders or ():
        if name not in cells:
            raise UsageError(f"no decoder {name!r} in this run; {did_you_mean(name, cells)}")
    answers: dict[str, dict[str, SampleRecord]] = {}
    for record in sorted(run.records, key=lambda r: (r.error is not None, r.kind != "timing")):
        answers.setdefault(record.prompt, {}).setdefault(record.decoder, record)
    names = _choose_prompts(prompt, run.plan, answers)
    if status.verdict != VALID:
        reasons = [f"  {reason}" for reason in status.reasons]
        console.print(Text(printable("\n".join([str(status.verdict), *reasons])), style="bold red"))
    if not names:
        console.print(Text("nothing is measured yet"))
        return
    pieces = read_pieces(run_dir)
    kept = kept_prompts(run_dir).items()
    prompts = {name: "".join(map(pieces, each.ids)) for name, each in kept}
    legend = Text.assemble(
        ("prefill", _PREFILL), " ", ("step", _STEPS[1]), ("next step", _STEPS[0]), "  ",
        ("accepted draft", f"bold {_STEPS[1]}"), (" added by the model", _STEPS[1]),
    )  # fmt: skip
    if colourless(console):
        legend = Text("| marks the start of a step; the text before the first | is the prefill's")
    console.print(legend)
    for name in names:
        by_cell = answers[name]
        family = next(iter(by_cell.values())).family
        console.print(Text(printable(f"\n{name} ({family})"), style="bold underline"))
        if name in prompts:
            console.print(Padding(Text(prompts[name].strip(), style="dim"), _INDENT))
        for decoder in [d for d in cells if d in by_cell and d in (decoders or cells)]:
            _show_answer(by_cell[decoder], console, pieces, wrong=decoder in wrong)


def coloured(record: SampleRecord, pieces: Callable[[int], str], *, bars: bool = False) -> Text:
    """Colour an answer's text by step, with `bars` before every step but the first."""
    text, tokens, steps = Text(), record.tokens or (), record.steps
    if steps is None:
        return text
    start, num_leading = 0, steps.undrafted or (0,) * len(steps.emitted)
    columns = zip(steps.emitted, num_leading, steps.accepted, strict=True)
    for number, (emitted, first, accepted) in enumerate(columns):
        style = _STEPS[number % 2] if number else _PREFILL
        if bars and number:
            text.append("|")
        for i, token in enumerate(tokens[start : start + emitted]):
            drafted = first <= i < first + accepted
            text.append(pieces(token), style=f"bold {style}" if drafted else style)
        start += emitted
    return text


def _show_answer(
    record: SampleRecord, console: Console, pieces: Callable[[int], str], *, wrong: bool
) -> None:
    head = Text(f"\n{record.decoder}", style="bold")
    if wrong:
        head.append(f" {WRONG}", style="bold red")
    if record.error is not None or record.steps is None:
        why = printable(record.failure or "no steps recorded")
        console.print(head.append(f"  {why}", style="red"))
        return
    tally, emitted = Tally.of(record), record.steps.emitted
    facts = [counted(tally.emitted, "token"), counted(tally.target_calls, "target call")]
    if tally.acceptance_length is not None:
        facts.append(f"{tally.acceptance_length:.2f} tokens per step")
    facts += [f"stopped by {record.stop}"] if record.stop else []
    console.print(head.append("  " + ", ".join(facts), style="not bold dim"))
    console.print(Padding(coloured(record, pieces, bars=colourless(console)), _INDENT))
    later = " ".join(map(str, emitted[1:])) or "none"
    if len(emitted) > 4 and len(set(emitted[1:])) == 1:
        later = f"{len(emitted) - 1} times {emitted[1]}"
    line = f"tokens per step: prefill {emitted[0] if emitted else 0}, then {later}"
    console.print(Padding(Text(line, style="dim"), _INDENT))


def _choose_prompts(
    prompt: str | None, plan: Plan, answers: Mapping[str, Mapping[str, SampleRecord]]
) -> list[str]:
    """Return the names of the prompts to show, in the plan's order."""
    names = [each.prompt for each in plan.prompts if each.prompt in answers] or list(answers)
    if prompt is None:
        families: dict[str, str] = {}
        for name in names:
            families.setdefault(next(iter(answers[name].values())).family, name)
        return [*families.values()][:_FEW]
    if turns := [name for name in names if prompt in (name, name.rpartition("#")[0])]:
        return turns
    near = f"{nearest(prompt, names)}there are {len(names)}, e.g. {', '.join(names[:3])}"
    raise UsageError(f"no answer to a prompt {prompt!r} in this run; {near}")
