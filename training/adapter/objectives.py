"""Compute losses of parallel predictors (PTP, arXiv 2512.21323, section 3).

* `one-hot`: cross-entropy with the token that u picks (O-PTP), or the text's token (all others).
* `kl`, `reverse-kl` (C-PTP by distillation, isd): a divergence between the teacher's distribution
  given the true tokens and the student's distribution given their uniforms (isd: given masks).

Slots of blocks (refine) learn the text with `one-hot`. The independent predictor, PTP's control, is
`one-hot` with an adapter whose code is `constant`.

Letters: B rows, S tokens of a row, Q slots of a row, M usable slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.sampling import pick
from decoders.core.types import MASKED, NO_UNIFORM
from training.adapter.student import Student, gather_rows
from training.adapter.windows import MIN_MASS, Windows, edges, explain, sources, warped

ObjectiveName = Literal["one-hot", "kl", "reverse-kl"]
Judgement = tuple[Tensor, Tensor, Tensor]
"""For M slots: whether right (or with which probability), confidence, mask of counted slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold a student's logits ``[M, V]`` and targets ``[M]`` at the `usable` slots ``[B, Q]``.

    `teacher` has the teacher's hidden states ``[B, S, D]`` (with blocks, which need no teacher, the
    student's).
    """

    windows: Windows
    usable: Tensor
    logits: Tensor
    target: Tensor
    teacher: Tensor


def run(student: Student, windows: Windows, top_k: int) -> Outcome:
    """Return the student's predictions on windows sampled with `top_k`."""
    variant = student.adapter.config.variant
    windows = windows.to(student.device)
    hidden, cache = student.context(windows.ids)
    if windows.blocks is None:
        teacher, before = student.teacher(windows.ids, hidden), sources(windows, variant)
        with torch.no_grad():
            logits = student.teacher_logits(gather_rows(teacher, (before - 1).clamp(min=0)))
            left, mass = edges(logits, windows.ids.gather(1, before), windows.warp, top_k)
            u, target, usable = explain(windows, logits.argmax(-1), left, mass, variant)
    else:
        blocks, u = windows.blocks, torch.full_like(windows.noise, NO_UNIFORM)
        teacher, target, usable = hidden, blocks.target, blocks.learn
        if bool(blocks.is_own.any()):  # the student first predicts its own tokens from masks
            masked = replace(blocks, shown=blocks.shown.masked_fill(blocks.is_own, MASKED))
            with torch.no_grad():
                states = student.states(cache, u, replace(windows, blocks=masked))
                predicted = student.logits(states).argmax(-1)
            before = F.pad(predicted, (1, 0))[:, :-1]  # a slot predicts the token after its own
            shown = torch.where(blocks.is_own, before, blocks.shown)
            windows = replace(windows, blocks=replace(blocks, shown=shown))
    states = student.states(cache, u, windows)
    return Outcome(
        windows=windows,
        usable=usable,
        logits=student.logits(states[usable]),
        target=target[usable],
        teacher=teacher,
    )


def slot_loss(student: Student, outcome: Outcome, objective: ObjectiveName) -> Tensor:
    """Return the summed loss of the usable slots.

    Divergences are between unwarped distributions. Greedy windows learn the teacher's argmax.
    """
    logits = outcome.logits
    if objective == "one-hot":
        return F.cross_entropy(logits, outcome.target, reduction="sum")
    teacher, greedy = _teacher_logits(student, outcome)
    logs = logits.log_softmax(-1)
    certain = F.nll_loss(logs, teacher.argmax(-1), reduction="none")
    pair = logs, teacher.log_softmax(-1)
    below, above = pair if objective == "kl" else reversed(pair)  # KL(above || below)
    distance = F.kl_div(below, above, reduction="none", log_target=True)
    return torch.where(greedy, certain, distance.sum(-1)).sum()


def _teacher_logits(student: Student, outcome: Outcome) -> tuple[Tensor, Tensor]:
    """Return the teacher's logits ``[M, V]`` for the slots' targets, and a mask of greedy slots."""
    windows, usable = outcome.windows, outcome.usable
    with torch.no_grad():
        states = gather_rows(outcome.teacher, windows.position)[usable]
        return student.teacher_logits(states), windows.greedy[usable]


@torch.no_grad()
def predictions(student: Student, outcome: Outcome, top_k: int) -> Judgement:
    """Compare the proposal of each usable slot with the teacher.

    O-PTP and blocks propose the likeliest token. C-PTP proposes the token that u picks from the
    student's warped distribution (greedy: the likeliest), with a u from the text's own interval
    that no slot carries. isd's draw is accepted with probability sum min(p, q) of the warped
    distributions (greedy: if both have the same likeliest token).
    """
    confidences, tokens = outcome.logits.softmax(-1).max(-1)
    windows, usable, variant = outcome.windows, outcome.usable, student.adapter.config.variant
    if windows.blocks is not None:
        inside = windows.blocks.inside[usable]
        return tokens == outcome.target, confidences, inside
    counts = torch.ones_like(outcome.target, dtype=torch.bool)
    if variant == "o-ptp":
        return tokens == outcome.target, confidences, counts
    teacher, greedy = _teacher_logits(student, outcome)
    warp = windows.warp[usable]
    distribution = warped(outcome.logits, warp, top_k)
    if variant == "isd":
        overlap = torch.minimum(warped(teacher, warp, top_k), distribution).sum(-1)
        agrees = (tokens == teacher.argmax(-1)).to(overlap.dtype)
        return torch.where(greedy, agrees, overlap), confidences, counts
    left, mass = edges(teacher, outcome.target, warp, top_k)
    picks = torch.where(
        greedy, tokens, pick(distribution, left + mass * (1 - windows.noise[usable]))
    )
    target = torch.where(greedy, teacher.argmax(-1), outcome.target)
    chances = distribution.gather(1, picks[:, None]).squeeze(1)
    confidences = torch.where(greedy, confidences, chances)
    return picks == target, confidences, greedy | (mass > MIN_MASS)
