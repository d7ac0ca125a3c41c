"""Train an adapter on a causal LM: losses of windows, held-out report, export.

Letters: B rows, S tokens of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from decoders.core.adapter.module import SlotAdapter
from training.adapter.objectives import predictions, run, slot_loss
from training.adapter.recipe import AdapterRunTable
from training.adapter.report import HeldOutReport, SlotTally
from training.adapter.student import Student
from training.adapter.windows import BlockRules, Windows, WindowSampling, draw_windows
from training.loop import JudgedJob, Piece, muon_and_adamw
from training.reporter import Reporter, TrainingProgress
from training.text.data import Row, groups, worker_groups
from training.text.sources import Source
from training.workers import worker


class AdapterJob(JudgedJob):
    """Train a student on a source's rows, with new random windows of slots in every row."""

    trained: SlotAdapter

    def __init__(
        self,
        student: Student,
        source: Source,
        sampling: WindowSampling,
        settings: AdapterRunTable,
        reporter: Reporter,
        pad: int,
        blocks: BlockRules | None = None,
    ) -> None:
        """Take any token id as `pad`, and `blocks` only for a refining adapter."""
        self.blocks, self.student, self.source, self.sampling = blocks, student, source, sampling
        self.run, self.reporter, self.pad, self.trained = settings, reporter, pad, student.adapter

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Muon for the delta's factors, AdamW for all other weights."""
        matrices = [*self.trained.lora_a.parameters(), *self.trained.lora_b.parameters()]
        return muon_and_adamw(self.trained, matrices, self.run)

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the losses of this worker's groups of a step."""
        rng = np.random.default_rng([self.run.seed, progress.step, worker()[0]])
        for group in worker_groups(self.source.rows(progress.step), self.run.max_tokens):
            piece = self._piece(group, self._windows(group, self.sampling, self.blocks, rng))
            if piece is not None:
                yield piece

    def _piece(self, rows: Sequence[Row], windows: Windows) -> Piece | None:
        """Return the loss of a group's windows, or None if no slot is usable."""
        outcome = run(self.student, windows, self.sampling.top_k)
        if not (num := len(outcome.target)):
            return None
        share = self.run.label_share
        loss = slot_loss(self.student, outcome, self.run.objective)
        if share:
            loss = (1 - share) * loss + share * slot_loss(self.student, outcome, "one-hot")
        return loss, num, windows.number.numel()

    def _windows(
        self,
        rows: Sequence[Row],
        sampling: WindowSampling,
        blocks: BlockRules | None,
        rng: np.random.Generator,
        *,
        aligned: bool = False,
    ) -> Windows:
        config = self.trained.config
        return draw_windows(
            rows,
            num_slots=max(config.num_slots, 160 if aligned else self.run.slots_per_row),
            length=config.num_slots,
            sampling=sampling,
            pad=self.pad,
            rng=rng,
            variant=config.variant,
            standalone=config.standalone,
            aligned=aligned,
            blocks=blocks,
            stride=config.num_slots if self.run.lean else 0,
        )

    def held_out(self) -> HeldOutReport:
        """Return the held-out report, with greedy windows too for isd or if they are trained."""
        isd = self.trained.config.variant == "isd"
        greedy = self.blocks is None and (isd or self.sampling.greedy)
        tallies = self.tally(), self.tally(greedy=True) if greedy else None
        return HeldOutReport.of(*tallies, strides=isd)

    @torch.no_grad()
    def tally(self, *, greedy: bool = False) -> SlotTally:
        """Tally held-out rows, with only greedy windows if `greedy`, and blocks fully masked."""
        temperature = self.run.eval_temperature
        sampling = WindowSampling(
            temperatures=(temperature, temperature),
            top_ps=(self.run.eval_top_p,),
            top_k=self.sampling.top_k,
            greedy=float(greedy),
        )
        blocks = self.blocks
        if blocks is not None:
            blocks = blocks.model_copy(update={"sizes": (), "hidden": 1.0})
        rows = rows_at(self.source.held_out(self.run.eval_rows), 0 if greedy else temperature)
        tally = SlotTally(self.trained.config.num_slots)
        rng = np.random.default_rng(20_512)  # every evaluation draws the same windows
        for group in groups(rows, self.run.max_tokens):
            windows = self._windows(group, sampling, blocks, rng, aligned=True)
            outcome = run(self.student, windows, sampling.top_k)
            tally.add(outcome, predictions(self.student, outcome, sampling.top_k))
        return tally


def rows_at(rows: Sequence[Row], temperature: float) -> list[Row]:
    """Return the rows sampled at a temperature, or all rows without their temperatures."""
    group = [row for row in rows if row.temperature == temperature]
    return group or [dataclasses.replace(row, temperature=None) for row in rows]
