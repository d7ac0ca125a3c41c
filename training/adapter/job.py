"""Training an adapter on a causal LM: losses of windows, held-out report, export.

Letters: B rows, Q slots of a row, M slots that count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decoders.core.adapter.module import SlotAdapter
from training.adapter.best import Best
from training.adapter.blocks import BlockRules
from training.adapter.masked_report import RATIOS, RefineReport, StrideReport
from training.adapter.objectives import LOSSES, Outcome, clean_loss, predictions, run
from training.adapter.recipe import RunTable
from training.adapter.report import HeldOutReport, SlotTally
from training.adapter.student import Student
from training.adapter.windows import Windows, WindowSampling, draw_windows
from training.loop import Piece, TrainingProgress, muon_and_adamw
from training.reporter import Reporter
from training.text.data import Row, groups
from training.text.sources import Source
from training.workers import worker

EVAL_SEED = 20_512
_EVAL_SLOTS = 160


class AdapterJob:
    """What a loop trains where an adapter is trained: a student on the rows of a source.

    A step's rows are shared out among the workers and go through the student in groups of at most
    ``settings.max_tokens``; in every row windows of slots are drawn anew, whose losses are summed.
    An evaluation measures the adapter on rows held out and tells the reporter, and `best` if set.
    """

    def __init__(
        self,
        student: Student,
        source: Source,
        sampling: WindowSampling,
        settings: RunTable,
        reporter: Reporter,
        pad: int,
        blocks: BlockRules | None = None,
    ) -> None:
        """`pad` is any token id that can fill rows up; it is never looked at.

        `blocks` says how those of a refining adapter are drawn (None: of any other).
        """
        self.blocks = blocks
        self.student, self.source, self.sampling = student, source, sampling
        self.settings, self.reporter, self.pad = settings, reporter, pad
        self.report: HeldOutReport | None = None
        self.best: Best | None = None

    @property
    def trained(self) -> nn.Module:
        """The adapter."""
        return self.student.adapter

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Losses of this worker's groups of a step."""
        rows = sorted(self.source.rows(progress.step), key=lambda row: len(row.ids))
        rank, world = worker()
        rng = np.random.default_rng([self.settings.seed, progress.step, rank])
        for group in groups(rows[rank::world], self.settings.max_tokens):
            windows = self._windows(
                group, self.sampling, self.blocks, rng, length=self._length(progress.step)
            )
            piece = self._piece(group, windows)
            if piece is not None:
                yield piece

    def _piece(self, rows: Sequence[Row], windows: Windows) -> Piece | None:
        """The loss of a group's windows; None where no slot counts."""
        outcome = run(self.student, windows, self.sampling.top_k)
        num = len(outcome.target)
        return (self._loss(outcome, rows), num, windows.number.numel()) if num else None

    def _length(self, step: int) -> int:
        """Slots of a window: of the stride whose turn it is, if there are several."""
        strides = self.settings.strides
        if not strides:
            return self.student.adapter.config.num_slots
        return strides[step * len(strides) // self.settings.num_steps] - 1

    def _loss(self, outcome: Outcome, rows: Sequence[Row]) -> Tensor:
        """The objective's, its share of hard labels, and that of the token rows."""
        share, top_k = self.settings.label_share, self.sampling.top_k
        loss = LOSSES[self.settings.objective](self.student, outcome, top_k)
        if share:
            loss = (1 - share) * loss + share * LOSSES["one-hot"](self.student, outcome, top_k)
        weight = self.settings.clean
        if weight == 0:
            return loss
        width, num = outcome.windows.ids.shape[1], len(outcome.target)
        learn = [row.learn + [False] * (width - len(row.learn)) for row in rows]
        clean = clean_loss(self.student, outcome, torch.tensor(learn, device=loss.device))
        if weight == "auto":
            weight = (loss / num / clean).item()
        return loss + weight * num * clean

    def _windows(
        self,
        rows: Sequence[Row],
        sampling: WindowSampling,
        blocks: BlockRules | None,
        rng: np.random.Generator,
        *,
        length: int | None = None,
        aligned: bool = False,
    ) -> Windows:
        config = self.student.adapter.config
        return draw_windows(
            rows,
            num_slots=max(
                config.num_slots, _EVAL_SLOTS if aligned else self.settings.slots_per_row
            ),
            length=length or config.num_slots,
            sampling=sampling,
            pad=self.pad,
            rng=rng,
            variant=config.variant,
            standalone=config.standalone,
            aligned=aligned,
            blocks=blocks,
            stride=(length or config.num_slots) if self.settings.lean else 0,
        )

    def evaluate(self, progress: TrainingProgress) -> None:
        """Held-out accuracy by slot and leading-correct length (first worker only)."""
        if worker()[0] == 0:
            self.report = self.held_out()
            record = {
                "held_out": dataclasses.asdict(self.report),
                "parameters": self.student.adapter.num_parameters,
            }
            self.reporter.evaluation(progress, self.report.summary(), record)
            if self.best is not None:
                self.best.offer(progress.step, self.report.score, self.student.adapter)

    def held_out(self) -> HeldOutReport:
        """The report on held-out rows at the usual sampling, and on greedy windows if trained.

        isd: at temperature 1 too, and greedy in any case. Blocks: all masked, and in part.
        """
        match self.student.adapter.config.variant:
            case "isd":
                return StrideReport.of_strides(
                    self.tally(), self.tally(warp=(1.0, 1.0)), self.tally(greedy=True)
                )
            case "refine":
                by_ratio = {ratio: self.tally(ratio=ratio) for ratio in RATIOS}
                return RefineReport.of_blocks(self.tally(), by_ratio)
        return HeldOutReport.of(
            self.tally(), self.tally(greedy=True) if self.sampling.greedy else None
        )

    @torch.no_grad()
    def tally(
        self,
        *,
        greedy: bool = False,
        warp: tuple[float, float] | None = None,
        ratio: float | None = None,
    ) -> SlotTally:
        """Held-out rows, in order of their lengths.

        Args:
            greedy: in greedy windows alone.
            warp: temperature and top-p; None: the settings'.
            ratio: share of a block's tokens that are masked; None: all, the first one too.
        """
        temperature, top_p = warp or (self.settings.eval_temperature, self.settings.eval_top_p)
        sampling = dataclasses.replace(
            self.sampling,
            temperatures=(temperature, temperature),
            usual_temperature=None,
            top_ps=(top_p,),
            greedy=float(greedy),
            beta=1.0,
        )
        blocks = self.blocks
        if blocks is not None:
            share = 1.0 if ratio is None else ratio
            hidden = float(ratio is None)
            blocks = dataclasses.replace(
                blocks, sizes=(), hidden=hidden, ratios=(share, share), own=0.0
            )
        rows = rows_at(self.source.held_out(self.settings.eval_rows), 0 if greedy else temperature)
        rows.sort(key=lambda row: len(row.ids))
        tally = SlotTally(self.student.adapter.config.num_slots)
        rng = np.random.default_rng(EVAL_SEED)
        for group in groups(rows, self.settings.max_tokens):
            windows = self._windows(group, sampling, blocks, rng, aligned=True)
            outcome = run(self.student, windows, sampling.top_k)
            tally.add(outcome, predictions(self.student, outcome, sampling.top_k))
        return tally

    def export(self, folder: Path, base: dict[str, Any], dtype: torch.dtype) -> None:
        """Writes the adapter with its held-out report; the student is of no use afterwards.

        Ungated, the deltas belong to every row, so they go into the model's own weights: it is
        written to ``FOLDER/draft`` (a model of masks verifies itself: ``FOLDER/model``), and the
        adapter keeps its embedding alone.
        """
        report = self.report or self.held_out()
        trained = self.student.adapter
        if self.best is not None and (chosen := self.best.better_than(report.score)) is not None:
            trained.load_state_dict(chosen)
            report = self.held_out()
        config = dataclasses.replace(trained.config, base=base, measured=dataclasses.asdict(report))
        state = trained.state_dict()
        if not self.student.gated:
            name = "model" if trained.config.masked else "draft"
            self.student.merge().to(dtype).save_pretrained(folder / name)
            config = dataclasses.replace(config, rank=1, base={})  # no longer for its base model
            state = {name: part for name, part in state.items() if not name.startswith("lora_")}
        fresh = SlotAdapter(config)
        fresh.load_state_dict(state, strict=self.student.gated)
        fresh.save(folder, dtype)


def rows_at(rows: Sequence[Row], temperature: float) -> list[Row]:
    """Rows whose text was sampled at a temperature.

    All, for whatever distribution, where none was.
    """
    own = [row for row in rows if row.temperature == temperature]
    return own or [dataclasses.replace(row, temperature=None) for row in rows]


def optimizers(
    adapter: SlotAdapter, *, muon_lr: float, adamw_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon for the delta's factors, AdamW for the slot embedding."""
    matrices = [*adapter.lora_a.parameters(), *adapter.lora_b.parameters()]
    return muon_and_adamw(adapter, matrices, muon_lr=muon_lr, adamw_lr=adamw_lr)
