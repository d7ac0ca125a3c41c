"""A decoder under examination by `bench verify`: the checks due, and the findings so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.plan.setup import Arm
from bench.records.failures import error_line
from bench.records.plan import BASELINE
from bench.verify.distribution import DistributionTest, findings
from bench.verify.equality import EqualityCheck
from bench.verify.self_draft import SelfDraft
from bench.verify.verdict import CheckOutcome, Examination, Finding
from decoders.core.checks import equality_checks
from decoders.core.types import Sampling


@dataclass(slots=True)
class Subject:
    """One decoder; findings are kept at once, so that an interruption loses nothing."""

    arm: Arm
    tables: list[Finding] = field(default_factory=list)
    compared: list[EqualityCheck] = field(default_factory=list)
    own_drafts: list[SelfDraft] = field(default_factory=list)
    distributions: list[DistributionTest] = field(default_factory=list)
    failed: list[Finding] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return its cell."""
        return self.arm.cell.cell

    @property
    def lossless(self) -> bool:
        """Return whether it claims to be."""
        return self.arm.decoder.lossless

    @property
    def keeps_distribution_only(self) -> bool:
        """Return whether its distribution is tested: AR's own, or uncoupled."""
        return self.lossless and (self.name == BASELINE or not self.arm.decoder.coupled)

    def look_at_tables(self) -> None:
        """Run the contract's equality checks, up to the first that does not hold."""
        checks = equality_checks(self.arm.decoder)
        names = [check.__name__.removeprefix("check_").replace("_", " ") for check in checks]
        words = ", ".join(names)
        outcome: CheckOutcome = "passed"
        for name, check in zip(names, checks, strict=True):
            try:
                check(self.arm.decoder)
            except AssertionError as error:
                words, outcome = f"{name}: {error}", "wrong"
                break
            except Exception as error:
                words, outcome = f"{name}: {error_line(error)}", "open"
                break
        self.tables.append(Finding("equality on a table", outcome, words, {"checks": names}))

    def begin(self, sampling: Sampling, precision: str) -> EqualityCheck | None:
        """Begin a comparison with AR, where one is due."""
        if not (sampling.greedy or (self.lossless and self.arm.decoder.coupled)):
            return None
        made = EqualityCheck(decoder=self.name, sampling=sampling, precision=precision)
        self.compared.append(made)
        return made

    def draw(self, test: DistributionTest, first_seed: int, num_rows: int) -> None:
        """Draw; an interrupted test counts, a failed one does not."""
        self.distributions.append(test)
        try:
            test.draws.draw(first_seed, num_rows)
        except Exception as error:
            self.distributions.remove(test)
            check = f"distribution {test.where}"
            self.failed.append(Finding(check, "open", error_line(error)))

    def examined(self, floors: Mapping[float, EqualityCheck], *, complete: bool) -> Examination:
        """Return all findings; `floors` are the noise floors by temperature."""
        compared = [
            made.finding(self.lossless, floors[made.sampling.temperature]) for made in self.compared
        ]
        if self.name == BASELINE:
            failures = [floor.failures() for floor in floors.values()]
            compared += [failed for failed in failures if failed is not None]
            compared += [floor.shapes() for floor in floors.values() if floor.num_answers]
        return Examination(
            decoder=self.name,
            lossless=self.lossless,
            findings=[
                *self.tables,
                *compared,
                *(control.finding() for control in self.own_drafts),
                *findings(self.distributions),
                *self.failed,
            ],
            complete=complete,
        )
