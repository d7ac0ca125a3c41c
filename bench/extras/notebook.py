"""Offer a Python interface for scripts and notebooks: measure, open a run, or prompt a model.

`load_run` needs neither torch nor transformers. docs/notebooks.md has examples.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.errors import UsageError, as_error
from bench.extras.exports.export import answers
from bench.machine.openmp import shorten_spinning
from bench.progress import choose
from bench.records.run_folder import find_run
from bench.records.run_folder import load_run as read_run
from bench.report.findings import Findings
from bench.settings.config import load_config

if TYPE_CHECKING:
    from bench.plan.setup import Setup
    from bench.report.sections import Plot
    from decoders.core.types import Generation


@dataclass(frozen=True, eq=False)
class Results:
    """Show a run as data frames and figures, with the rest of its report in `findings`."""

    path: Path
    findings: Findings = field(repr=False)

    @property
    def verdict(self) -> str:
        """The verdict on the run: VALID, or the kind of problem."""
        return self.findings.verdict

    @property
    def summary(self) -> pd.DataFrame:
        """A row per decoder and family: the columns of ``summary.csv``."""
        return self.findings.summary.copy()

    @property
    def answers(self) -> pd.DataFrame:
        """A row per answer: its prompt, counts and times."""
        return answers(self.findings.run.records)

    @property
    def headline(self) -> pd.DataFrame:
        """The main table as printed, indexed by decoder."""
        table = self.findings.headline
        rows = [[cell.text for cell in row] for row in table.rows]
        return pd.DataFrame(rows, columns=list(table.headings)).set_index(table.headings[0])

    @cached_property
    def figures(self) -> Mapping[str, Plot]:
        """The figures of the report by name, each with a frame of its plotted numbers."""
        from bench.report.figures.gallery import draw_all

        return draw_all(self.findings).plots

    def _repr_html_(self) -> str:
        notes = (*self.findings.caveats, self.findings.headline.note)
        lines = (f"{self.verdict}: {self.path}", *notes)
        return "".join(f"<p>{html.escape(line)}</p>" for line in lines) + self.headline.to_html()


def run(
    decoders: str | Sequence[str] | None = None,
    *,
    output: str | Path = "results",
    progress: str = "none",
    **settings: Any,
) -> Results:
    """Measure decoders as `bench run` does, in a new folder below `output`, and open the results.

    Args:
        decoders: as for ``--decoders``, as one text or several; None: the default decoders.
        output: the parent of the new folder.
        progress: auto, rich, plain or none.
        settings: fields of `RunConfig`, such as ``limit=4``.

    Raises:
        BenchError: any failure before the first measurement.
        ValueError: `progress` is none of auto, rich, plain and none.
    """
    shorten_spinning()
    from bench.runs import run as measure

    configuration = load_config(None, {**settings, "decoders": decoders})
    with choose(progress) as shown:
        return load_run(measure(configuration, Path(output), shown).run_dir)


def load_run(run_dir: str | Path = "latest", *, output: str | Path = "results") -> Results:
    """Open a run by its folder, its name under `output`, or ``latest`` (`BenchError`)."""
    path = find_run(str(run_dir), Path(output))
    return Results(path, Findings(read_run(path)))


@dataclass(frozen=True, eq=False)
class Reply:
    """Hold a decoder's answer to one prompt: `text`, ids, and a frame of `steps`, a row each."""

    text: str
    steps: pd.DataFrame
    generation: Generation = field(repr=False)


@dataclass(frozen=True, eq=False)
class Loaded:
    """Hold a loaded model with its draft model and adapters, as returned by `load`."""

    setup: Setup = field(repr=False)

    def answer(self, decoder: str, prompt: str) -> Reply:
        """Answer a prompt, untimed, by a decoder such as ``spec:k=4``, in the chat template if any.

        Raises:
            UsageError: there is no such decoder, the decoder needs a model that is not loaded, or
                the prompt does not fit the model.
        """
        from bench.plan.make import tokenise
        from decoders.core.engine.models import check_models
        from decoders.core.engine.scheduler import generate
        from decoders.core.registry import build, parse_spec
        from specbench_tasks.task import OTHER, Conversation

        setup = self.setup
        with as_error(UsageError):
            method = build(parse_spec(decoder))
            check_models(method, setup.models, decoder)
        asking = Conversation(id="prompt", family=OTHER, turns=(prompt,), references=(None,))
        prompts, skipped = tokenise(setup, [asking])
        if skipped:
            raise UsageError(f"the prompt is refused: {skipped[0].reason}")
        generation = generate(method, prompts[0].ids, setup.sampling, setup.models)
        facts = ("drafted", "accepted", "target_calls", "draft_calls")
        rows = [
            {"text": setup.text(step.tokens), "tokens": len(step.tokens)}
            | {name: getattr(step, name) for name in facts}
            for step in generation.steps
        ]
        return Reply(setup.text(generation.tokens), pd.DataFrame(rows), generation)


def load(
    model: str = "zoo", decoders: str | Sequence[str] | None = None, **settings: Any
) -> Loaded:
    """Load a model and what `decoders` need (by default all that `bench run` would measure).

    `settings` are fields of `RunConfig`, such as ``max_new_tokens=64`` or ``temperature=0.7``.

    Raises:
        BenchError: the model or something that a decoder needs is missing, or does not fit.
    """
    shorten_spinning()
    from bench.plan.checks import check_first
    from bench.plan.setup import open_setup

    config = load_config(None, {"compile": False, **settings, "model": model, "decoders": decoders})
    return Loaded(open_setup(check_first(config, lambda note: None, reads_tasks=False)))
