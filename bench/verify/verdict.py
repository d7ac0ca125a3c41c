"""Report the outcome of `bench verify`: findings, a verdict per decoder, and the exit code.

=============  ====================================================================================
lossless       the decoder passed every check
lossy          the decoder claims to be lossy: its differences are measured
wrong          it claims to be lossless and is not, or depends on earlier prompts or the batch
inconclusive   a check failed, or could not have detected a fault
=============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.errors import Exit

SCHEMA = 1
CheckOutcome = Literal["passed", "wrong", "open", "measured", "noted", "elsewhere"]
"""`noted`: passed, with a note on steps that change no token. `elsewhere`: the decoder cannot run
this check, and other checks judge the decoder."""
Losslessness = Literal["lossless", "lossy", "wrong", "inconclusive"]
_STYLES = {"lossless": "green", "lossy": "yellow", "wrong": "bold red", "inconclusive": "magenta"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold one check of one decoder, with the fault that it could detect (`power`)."""

    check: str
    outcome: CheckOutcome
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    power: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Hold all findings about one decoder."""

    decoder: str
    lossless: bool
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Losslessness:
        """Return the verdict in one word."""
        outcomes = {finding.outcome for finding in self.findings}
        if "wrong" in outcomes:
            return "wrong"
        expected = {"passed"} if self.lossless else {"measured"}
        if not expected <= outcomes <= expected | {"noted", "elsewhere"}:
            return "inconclusive"
        return "lossless" if self.lossless else "lossy"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Hold the findings of all decoders, and notes on the method.

    `notes` are sentences on margins and levels, `facts` are further entries of the JSON.
    """

    examined: Sequence[Examination]
    notes: Sequence[str]
    facts: Mapping[str, Any]

    @property
    def exit_code(self) -> Exit:
        """Return the exit code of the worst verdict."""
        verdicts = {examined.verdict for examined in self.examined}
        if "wrong" in verdicts:
            return Exit.REGRESSION
        return Exit.INVALID if "inconclusive" in verdicts else Exit.DONE

    def as_json(self) -> dict[str, Any]:
        """Return the whole report as JSON data."""
        return {
            "schema": SCHEMA,
            "exit_code": int(self.exit_code),
            **self.facts,
            "notes": list(self.notes),
            "decoders": [
                {
                    "decoder": examined.decoder,
                    "claims": "lossless" if examined.lossless else "lossy",
                    "verdict": examined.verdict,
                    "findings": [asdict(finding) for finding in examined.findings],
                }
                for examined in self.examined
            ],
        }

    def print(self, console: Console) -> None:
        """Print the verdicts, and the notes behind them."""
        shown: list[Table | Text] = [_columns(headed=True)]
        for examined in self.examined:
            checks = _columns(headed=False)
            for finding in examined.findings or [Finding("", "open", "nothing was checked")]:
                mark = "" if finding.outcome in ("passed", "measured") else f"{finding.outcome}: "
                line = Text(mark + finding.text)
                checks.add_row(Padding(Text(finding.check), (0, 0, 0, 2)), line, finding.power)
            verdict = Text(examined.verdict, style=_STYLES[examined.verdict])
            shown += [Text.assemble(examined.decoder, ": ", verdict), checks, Text()]
        console.print(Group(*shown, *(Text(note) for note in self.notes)))


def _columns(*, headed: bool) -> Table:
    """Make an empty table of checks, as wide as all other tables, with long names folded."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=headed, expand=True)
    table.add_column("check", width=23, overflow="fold")
    table.add_column("found", ratio=1, overflow="fold")
    table.add_column("would catch", width=20)
    return table
