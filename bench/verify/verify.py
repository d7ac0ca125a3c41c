"""Test the claims of lossless decoders, for `bench verify` (docs/verify.md).

There are three kinds of evidence, cheapest first:

1. on a table of known distributions: equality checks, acceptance of drafts that the target itself
   makes, and the distribution of drawn answers;
2. on the model: equality with AR's answers (greedy for all decoders, sampled for coupled ones),
   compared with AR in another call shape;
3. with ``--distribution``: the distribution of drawn answers against the model's probabilities.

Calls are compiled where `bench run` compiles them, except the large batches of 3. Nothing is timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bench.errors import UsageError
from bench.plan.checks import check_first
from bench.plan.compiling import open_with_graphs
from bench.plan.make import batch_size, tokenise
from bench.plan.numerics import default_dtype, describe_numerics, open_device
from bench.plan.select import ResolvedRun
from bench.plan.setup import Opener, Setup, open_setup
from bench.plan.sources import checkpoint
from bench.plan.tokenise import count_lines, read_tasks
from bench.progress import Progress
from bench.records.plan import BASELINE
from bench.records.prompts import Prompt
from bench.records.samples import error_line
from bench.settings.bounds import NumDraws, check
from bench.settings.config import RunConfig
from bench.text import percent
from bench.verify.divergence import MARGINS, edge_margin
from bench.verify.equality import RESHAPED, EqualityCheck
from bench.verify.subject import (
    FALSE_ALARM,
    NUM_CONTEXTS,
    NUM_TOKENS,
    DistributionTest,
    Subject,
    answer,
    uncertain_contexts,
)
from bench.verify.verdict import VerifyReport
from decoders.core.checks import (
    check_perfect_drafts_are_accepted,
    check_real_tensors,
    checks_for,
    equality_checks,
)
from decoders.core.decoder import SelfDriven
from decoders.core.testing.check_models import table_draws
from decoders.core.testing.goodness import POWER, Draws
from decoders.core.types import Generation, Sampling

_TEMPERATURE = 0.8
"""Temperature of sampled checks if the configuration's is 0."""
NUM_DRAWS = 5000
_TABLE_BATCH = 64
_TABLE_SHARE = 2
"""Draws on a table per draw on the model: tables are faster, and their answers have more cells."""


def verify(
    config: RunConfig,
    progress: Progress,
    *,
    distribution: bool = False,
    num_draws: int = NUM_DRAWS,
    opener: Opener = open_setup,
) -> VerifyReport:
    """Examine the decoders of a configuration (raises as `bench.runs.run`).

    Args:
        config: `repeats`, `batch_size` and `quality_limit` are ignored.
        progress: the display of the course.
        distribution: also test the distribution of answers on the model itself.
        num_draws: answers per test of a distribution.
        opener: opens the models.
    """
    check(num_draws, NumDraws, "--draws")
    brings = opener is not open_setup
    config = config.with_values(baseline=None)
    run = check_first(config, progress.note, brings_models=brings)
    setup = open_with_graphs(exact_by_default(run, brings_models=brings), opener, progress)
    progress.note(describe_numerics(config, setup.config))
    tasks = read_tasks(config)
    prompts, skipped = tokenise(setup, tasks.timing)
    counts = count_lines(prompts, skipped)
    for line in (*tasks.notes, *counts):
        progress.note(line)
    if not prompts:
        raise UsageError(f"no prompt is left to verify on, all were skipped: {'; '.join(counts)}")
    work = _Work(setup, prompts, progress, num_draws)
    work.tables()
    if BASELINE in run.decoders:
        work.answers(work.greedy)
        work.answers(work.sampled)
        with setup.models.uncompiled():  # large batches would compile further graphs
            work.distributions(everyone=distribution)
    return work.report()


def exact_by_default(run: ResolvedRun, *, brings_models: bool = False) -> ResolvedRun:
    """Choose row-invariant numerics in half precision, unless set or a decoder is self-driven."""
    config, decoders = run.config, run.decoders.values()
    if config.numerics is not None or any(isinstance(each, SelfDriven) for each in decoders):
        return run
    device = open_device(config.device).type
    source = config.model if brings_models else checkpoint(config.model)
    dtype = config.dtype or default_dtype(config, device, source)
    return run if dtype == "float32" else run.with_values(numerics="invariant")


class _Work:
    """Run one examination, whose subjects keep the findings."""

    def __init__(
        self, setup: Setup, prompts: Sequence[Prompt], progress: Progress, num_draws: int
    ) -> None:
        self._setup, self._prompts, self._progress = setup, prompts, progress
        self._num_draws, self._seed = num_draws, setup.config.seed
        self._precision = setup.precision(setup.baseline)
        self._exact = self._precision in ("float32", "invariant")
        self._floor_every = 4 if self._exact else 1  # exact numerics: every fourth prompt is enough
        self._subjects = [Subject(arm) for arm in setup.arms.values()]
        self._floors: list[EqualityCheck] = []
        self._expected: dict[str, tuple[int, ...]] = {}
        self.greedy = dataclasses.replace(setup.sampling, temperature=0.0)
        temperature = setup.sampling.temperature or _TEMPERATURE
        self.sampled = dataclasses.replace(setup.sampling, temperature=temperature)

    def tables(self) -> None:
        self._progress.start("tables", len(self._subjects))
        for subject in self._subjects:
            decoder = subject.arm.decoder
            subject.run("equality on a table", equality_checks(decoder))
            subject.run("equality on a tiny Llama", [check_real_tensors])
            if check_perfect_drafts_are_accepted in checks_for(decoder):
                perfect = [check_perfect_drafts_are_accepted]
                subject.run("perfect drafts on a table", perfect, failure="open")
            if subject.tests_distribution and subject.runs_on_tables:
                # draws of a self-driven decoder are never merged
                share = 1 if isinstance(decoder, SelfDriven) else _TABLE_SHARE
                draws = table_draws(decoder, self._num_draws * share)
                subject.draw(DistributionTest("on a table", draws), self._seed, _TABLE_BATCH)
            self._progress.step(subject.name)

    def answers(self, sampling: Sampling) -> None:
        baseline, *rest = self._subjects
        floor = EqualityCheck(
            decoder="ar in another shape", sampling=sampling, precision=self._precision
        )
        self._floors.append(floor)
        due = [
            (subject.arm, comparison, subject.arm.decoder.memory())
            for subject in rest
            if (comparison := subject.begin(sampling, self._setup.precision(subject.name)))
        ]
        reshaped = dataclasses.replace(baseline.arm, decoder=RESHAPED)
        mode = "greedy" if sampling.greedy else "sampled"
        self._progress.start(f"{mode} answers", len(self._prompts))
        for number, prompt in enumerate(self._prompts):
            expected = answer(baseline.arm, sampling, prompt)
            if not isinstance(expected, Generation):
                line = f"{prompt.name}: ar failed: {error_line(expected)}"
                for comparison in (floor, *(comparison for _, comparison, _ in due)):
                    comparison.errors.append(line)
                self._progress.step(prompt.name)
                continue
            self._expected[prompt.name] = expected.tokens
            floors = [] if number % self._floor_every else [(reshaped, floor, None)]
            for arm, comparison, memory in [*due, *floors]:
                outcome = answer(arm, sampling, prompt, memory)
                target = self._setup.models.target
                comparison.add(target, prompt.name, prompt.ids, outcome, expected.tokens)
            self._progress.step(prompt.name)

    def distributions(self, *, everyone: bool) -> None:
        """Draw on the model for all decoders, or only for decoders that no table can judge."""
        subjects = [subject for subject in self._subjects if subject.tests_distribution]
        subjects = [subject for subject in subjects if everyone or not subject.runs_on_tables]
        if not subjects:
            return
        sampling = dataclasses.replace(self.sampled, max_new_tokens=NUM_TOKENS)
        target = self._setup.models.target
        contexts = uncertain_contexts(target, self._prompts, self._expected, sampling)
        self._progress.start("distributions", len(subjects) * len(contexts))
        for name, ids in contexts:
            for subject in subjects:
                arm = subject.arm
                draws = Draws(arm.decoder, arm.models, ids, sampling, self._num_draws)
                test = DistributionTest(f"after {name}", draws, exact=self._exact)
                subject.draw(test, self._seed, batch_size(self._setup))
                self._progress.step(subject.name)

    def report(self) -> VerifyReport:
        floors = {floor.sampling.temperature: floor for floor in self._floors}
        margin = MARGINS[self._precision]
        edge = edge_margin(margin, self.sampled.temperature)
        ties = "Row-invariant numerics: any difference from ar is wrong, even a near-tie."
        if self._setup.baseline != BASELINE:
            ties = "A target of masks has no ar: the contract alone is checked."
        elif margin:
            ties = (
                f"{self._precision}: a difference from ar is a near-tie where the two logits are "
                f"less than {margin:g} apart, or u less than {edge:.2g} from the token's share of "
                "the CDF."
            )
        return VerifyReport(
            examined=[subject.examined(floors) for subject in self._subjects],
            notes=[
                ties,
                f"'would catch' is what is caught with probability {POWER:g}: one wrong token in "
                "so many, or a distribution at that total-variation distance in any direction.",
                f"A lossless decoder fails these tests in {percent(FALSE_ALARM)} of all "
                "verifications.",
            ],
            facts={
                "config": self._setup.config.model_dump(),
                "models": dataclasses.asdict(self._setup.facts),
                "dtype": self._setup.config.dtype or "float32",
                "precision": self._precision,
                "temperature": self.sampled.temperature,
                "margin_logits": margin,
                "margin_cdf": edge,
                "false_alarm": FALSE_ALARM,
                "num_prompts": len(self._prompts),
                "num_contexts": NUM_CONTEXTS,
                "noise_floor": [floor.as_data() for floor in self._floors],
            },
        )
