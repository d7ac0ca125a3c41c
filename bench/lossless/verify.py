"""`bench verify`: whether decoders that claim to be lossless keep the claim (docs/verify.md).

Three kinds of evidence, cheapest first:

1. on a table of known laws: the contract's equality checks, and the law of drawn answers;
2. on the model: answers equal to AR's, greedy for all and sampled for coupled decoders, beside AR
   in another call shape;
3. with ``--law``, on the model: the law of drawn answers against exact probabilities.

Nothing is timed. An interruption leaves what was found: it is judged, printed and written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from bench.bounds import NumDraws, check
from bench.choice import choose_decoders
from bench.config import RunConfig
from bench.errors import BenchError, Exit
from bench.failures import error_line
from bench.lossless.divergence import MARGINS, edge_margin
from bench.lossless.equality import CURVE, Comparison, Reshaped
from bench.lossless.law import FALSE_ALARM, NUM_CONTEXTS, NUM_TOKENS, LawTest, unsure_places
from bench.lossless.subject import Subject
from bench.lossless.verdict import Report
from bench.planning import tokenise
from bench.progress import Progress
from bench.prompts import Prompt, count_lines
from bench.quality import batch_size
from bench.tasks import tasks_of
from bench.workbench import Arm, Workbench, open_workbench
from decoders.core.checks import table_draws
from decoders.core.draws import Draws
from decoders.core.goodness import POWER
from decoders.core.scheduler import Scheduler
from decoders.core.types import Generation, Outcome, Sampling

TEMPERATURE = 0.8
"""Of sampled checks, where the configuration says 0."""
NUM_DRAWS = 5000
TABLE_BATCH = 64

Opener = Callable[[RunConfig], Workbench]


def verify(
    config: RunConfig,
    progress: Progress,
    *,
    law: bool = False,
    num_draws: int = NUM_DRAWS,
    opener: Opener = open_workbench,
) -> Report:
    """Examine the decoders of a configuration.

    Args:
        config: as for a run; `repeats`, `batch_size` and `quality_limit` do not matter.
        progress: where it reports to.
        law: also test the law on the model itself.
        num_draws: draws of every law test.
        opener: opens the models.

    Errors: `BenchError` as a run's, before anything is examined.
    """
    check(num_draws, NumDraws, "--draws")
    config = choose_decoders(config, progress.note)
    bench = opener(config)
    tasks = tasks_of(
        config.tasks,
        limit=config.limit,
        seed=config.seed,
        quality_limit=0,
        columns=config.columns,
    )
    prompts, skipped = tokenise(bench, tasks.timing)
    for line in count_lines(prompts, skipped):
        progress.note(line)
    if not prompts:
        raise BenchError("no prompt is left to verify on: all were skipped", Exit.USAGE)
    work = _Work(bench, prompts, progress, num_draws)
    interrupted = False
    try:
        work.tables()
        work.answers(work.greedy)
        work.answers(work.sampled)
        if law:
            work.laws()
    except KeyboardInterrupt:
        interrupted = True
        progress.note("interrupted; what was found stands below")
    finally:
        progress.close()
    return work.report(interrupted)


class _Work:
    """The examination: what it works with, and its subjects, which keep what is found."""

    def __init__(
        self, bench: Workbench, prompts: Sequence[Prompt], progress: Progress, num_draws: int
    ) -> None:
        self._bench, self._prompts, self._progress = bench, prompts, progress
        self._num_draws, self._seed = num_draws, bench.config.seed
        self._dtype = bench.config.dtype or "float32"
        self._floor_every = 4 if self._dtype == "float32" else 1  # there it is only shown
        self._subjects = [Subject(arm) for arm in bench.arms.values()]
        self._floors: list[Comparison] = []
        self._expected: dict[str, tuple[int, ...]] = {}
        self.greedy = dataclasses.replace(bench.sampling, temperature=0.0)
        temperature = bench.sampling.temperature or TEMPERATURE
        self.sampled = dataclasses.replace(bench.sampling, temperature=temperature)

    def tables(self) -> None:
        """Equality and law on tables of known laws."""
        self._progress.start("tables", sum(s.lossless for s in self._subjects))
        for subject in self._subjects:
            if subject.lossless:
                subject.look_at_tables()
                if subject.keeps_law_only:
                    draws = table_draws(subject.arm.decoder, self._num_draws)
                    subject.draw(LawTest("on a table", draws), self._seed, TABLE_BATCH)
                self._progress.step(subject.name)

    def answers(self, sampling: Sampling) -> None:
        """Prompt by prompt: AR's answer, that of AR in another shape, and everyone else's."""
        baseline, *others = self._subjects
        floor = Comparison(decoder="ar in another shape", sampling=sampling, dtype=self._dtype)
        self._floors.append(floor)
        begun = [(subject.arm, subject.begin(sampling, self._dtype)) for subject in others]
        due = [(arm, comparison) for arm, comparison in begun if comparison is not None]
        reshaped = dataclasses.replace(baseline.arm, decoder=Reshaped())
        mode = "greedy" if sampling.greedy else "sampled"
        self._progress.start(f"{mode} answers", len(self._prompts))
        for number, prompt in enumerate(self._prompts):
            expected = _answer(baseline.arm, sampling, prompt)
            if not isinstance(expected, Generation):
                line = f"{prompt.name}: ar failed: {error_line(expected)}"
                for made in (floor, *(comparison for _, comparison in due)):
                    made.errors.append(line)
                self._progress.step(prompt.name)
                continue
            self._expected[prompt.name] = expected.tokens
            floors = [] if number % self._floor_every else [(reshaped, floor)]
            for arm, comparison in [*due, *floors]:
                outcome = _answer(arm, sampling, prompt)
                target = self._bench.models.target
                comparison.add(target, prompt.name, prompt.ids, outcome, expected.tokens)
            self._progress.step(prompt.name)

    def laws(self) -> None:
        """The law of short answers, where the target is least sure along AR's sampled answers."""
        sampling = dataclasses.replace(self.sampled, max_new_tokens=NUM_TOKENS)
        target = self._bench.models.target
        contexts = unsure_places(target, self._prompts, self._expected, sampling)
        subjects = [subject for subject in self._subjects if subject.keeps_law_only]
        self._progress.start("laws", len(subjects) * len(contexts))
        for name, ids in contexts:
            for subject in subjects:
                arm = subject.arm
                draws = Draws(arm.decoder, arm.models, ids, sampling, self._num_draws)
                test = LawTest(f"after {name}", draws, exact=self._dtype == "float32")
                subject.draw(test, self._seed, batch_size(self._bench))
                self._progress.step(subject.name)

    def report(self, interrupted: bool) -> Report:
        """Everything found, judged."""
        floors = {floor.sampling.temperature: floor for floor in self._floors}
        compared = [*self._floors, *(made for s in self._subjects for made in s.compared)]
        return Report(
            examined=[s.examined(floors, complete=not interrupted) for s in self._subjects],
            notes=self._notes(),
            places=CURVE,
            curves=[
                (f"{made.decoder}, T = {made.sampling.temperature:g}", made.survival())
                for made in compared
                if made.num_answers
            ],
            facts=self._facts(),
            interrupted=interrupted,
        )

    def _notes(self) -> list[str]:
        margin = MARGINS[self._dtype]
        edge = edge_margin(margin, self.sampled.temperature)
        return [
            f"{self._dtype}: a difference from ar is a near-tie where the two logits are less than "
            f"{margin:g} apart, or u less than {edge:.2g} from the token's share of the CDF.",
            f"What would be caught is caught with probability {POWER:g}: a wrong token in so many, "
            "or a law at that total-variation distance, whatever its direction.",
            f"A lossless decoder fails its law tests in {FALSE_ALARM:.1%} of examinations.",
        ]

    def _facts(self) -> Mapping[str, object]:
        return {
            "config": self._bench.config.model_dump(),
            "models": self._bench.facts,
            "dtype": self._dtype,
            "temperature": self.sampled.temperature,
            "margin_logits": MARGINS[self._dtype],
            "margin_cdf": edge_margin(MARGINS[self._dtype], self.sampled.temperature),
            "false_alarm": FALSE_ALARM,
            "num_prompts": len(self._prompts),
            "num_contexts": NUM_CONTEXTS,
            "noise_floor": [floor.as_data() for floor in self._floors],
        }


def _answer(arm: Arm, sampling: Sampling, prompt: Prompt) -> Outcome:
    scheduler = Scheduler(arm.decoder, arm.models, sampling, patience=arm.patience)
    with arm.patience.ticking():
        (outcome,) = scheduler.run([prompt.ids])
    return outcome
