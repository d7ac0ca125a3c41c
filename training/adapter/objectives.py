"""What a parallel predictor is trained to do: the losses of PTP (arXiv 2512.21323, section 3).

* `one-hot`: cross-entropy of the token that u picks (O-PTP), or of the text's (all others).
* `kl`, `reverse-kl` (C-PTP by distillation, isd): a divergence between the teacher's distribution
  after the true tokens and the student's distribution after their uniforms, or after none.
* `overlap` (isd): how likely the teacher is to reject what the student draws, 1 - sum min(p, q).

Slots of blocks (refine) learn the text by `one-hot`. The independent predictor, PTP's control, is
`one-hot` with an adapter whose code is `constant`.

Letters: B rows, S places of a row, Q slots of a row, M slots that count, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.sampling import pick
from decoders.core.types import NO_UNIFORM
from training.adapter.blocks import Blocks
from training.adapter.student import ContextCache, Student, gather_rows
from training.adapter.windows import LEAST_MASS, Windows, carried_places, edges, explain, warped

ObjectiveName = Literal["one-hot", "kl", "reverse-kl", "overlap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a student said about windows.

    Attributes:
        windows: where the slots are.
        usable: bool ``[B, Q]``, the M slots that count.
        logits: float32 ``[M, V]``, the student's.
        target: int64 ``[M]``, the tokens that continue the text.
        teacher: hidden states ``[B, S, D]`` of the teacher (of blocks, which need none: the
            student's own).
        context: those of the student's own token rows; gated, it has no part in them.
    """

    windows: Windows
    usable: Tensor
    logits: Tensor
    target: Tensor
    teacher: Tensor
    context: Tensor


@dataclass(frozen=True, slots=True)
class SlotJudgement:
    """Judgements of the M slots that count.

    Whether each is `right` (or how likely it is to be), its `confidence`, and whether it `counts`:
    otherwise nothing it says is right or wrong.
    """

    right: Tensor
    confidence: Tensor
    counts: Tensor


def run(student: Student, windows: Windows, top_k: int) -> Outcome:
    """Teacher, uniforms, and the student's logits on windows, whose `top_k` is given."""
    variant = student.adapter.config.variant
    windows = windows.to(student.device)
    hidden, cache = student.context(windows.ids)
    if windows.blocks is not None:
        return _run_blocks(student, windows, windows.blocks, hidden, cache)
    teacher = student.teacher(windows.ids, hidden)
    before = (carried_places(windows, variant) - 1).clamp(min=0)
    with torch.no_grad():
        logits = student.teacher_logits(gather_rows(teacher, before))
        explained = explain(windows, logits, top_k, variant)
    states = student.states(cache, explained.u, windows)
    return Outcome(
        windows=windows,
        usable=explained.usable,
        logits=student.logits(states[explained.usable]),
        target=explained.target[explained.usable],
        teacher=teacher,
        context=hidden,
    )


def _run_blocks(
    student: Student, windows: Windows, blocks: Blocks, hidden: Tensor, cache: ContextCache
) -> Outcome:
    """Blocks; what the student itself shall be shown it predicts first, from masks."""
    u = torch.full(windows.place.shape, NO_UNIFORM, dtype=torch.float64, device=student.device)
    if bool(blocks.own.any()):
        with torch.no_grad():
            first = dataclasses.replace(windows, blocks=blocks.masked_own())
            said = student.logits(student.states(cache, u, first)).argmax(-1)
        windows = dataclasses.replace(windows, blocks=blocks.with_own(said))
    states = student.states(cache, u, windows)
    return Outcome(
        windows=windows,
        usable=blocks.learn,
        logits=student.logits(states[blocks.learn]),
        target=blocks.target[blocks.learn],
        teacher=hidden,
        context=hidden,
    )


def _one_hot_loss(student: Student, outcome: Outcome, top_k: int) -> Tensor:
    """Summed cross-entropy of the targets."""
    del student, top_k
    return F.cross_entropy(outcome.logits, outcome.target, reduction="sum")


def _kl_loss(student: Student, outcome: Outcome, top_k: int) -> Tensor:
    """Summed KL(teacher || student) between unwarped distributions.

    Greedy windows: the teacher's argmax.
    """
    del top_k
    teacher, greedy = _teacher_logits(student, outcome)
    log_student = outcome.logits.log_softmax(-1)
    distance = F.kl_div(log_student, teacher.log_softmax(-1), reduction="none", log_target=True)
    certain = F.nll_loss(log_student, teacher.argmax(-1), reduction="none")
    return torch.where(greedy, certain, distance.sum(-1)).sum()


def _reverse_kl_loss(student: Student, outcome: Outcome, top_k: int) -> Tensor:
    """Summed KL(student || teacher) between unwarped distributions.

    Greedy windows as in `_kl_loss`.
    """
    del top_k
    teacher, greedy = _teacher_logits(student, outcome)
    log_student = outcome.logits.log_softmax(-1)
    distance = F.kl_div(teacher.log_softmax(-1), log_student, reduction="none", log_target=True)
    certain = F.nll_loss(log_student, teacher.argmax(-1), reduction="none")
    return torch.where(greedy, certain, distance.sum(-1)).sum()


def _overlap_loss(student: Student, outcome: Outcome, top_k: int) -> Tensor:
    """Summed 1 - sum min(p, q) at the windows' temperatures; greedy windows as in `_kl_loss`.

    Top-k and top-p are left out: what they cut off would have no gradient.
    """
    del top_k
    teacher, greedy = _teacher_logits(student, outcome)
    temperature = outcome.windows.warp[outcome.usable][:, :1]
    p, q = ((logits / temperature).softmax(-1) for logits in (teacher, outcome.logits))
    certain = F.cross_entropy(outcome.logits, teacher.argmax(-1), reduction="none")
    return torch.where(greedy, certain, 1 - torch.minimum(p, q).sum(-1)).sum()


def clean_loss(student: Student, outcome: Outcome, learn: Tensor) -> Tensor:
    """Mean cross-entropy of the student's token rows, for tokens where `learn` ``[B, S]``."""
    logits = student.logits(outcome.context[:, :-1][learn[:, 1:]])
    return F.cross_entropy(logits, outcome.windows.ids[:, 1:][learn[:, 1:]])


def _teacher_logits(student: Student, outcome: Outcome) -> tuple[Tensor, Tensor]:
    """The teacher's logits ``[M, V]`` for the tokens slots predict, and which slots are greedy."""
    windows, usable = outcome.windows, outcome.usable
    before = (windows.place - 1).clamp(min=0)
    with torch.no_grad():
        return (
            student.teacher_logits(gather_rows(outcome.teacher, before)[usable]),
            windows.greedy[usable],
        )


def _own_logits(student: Student, outcome: Outcome) -> Tensor:
    """The student's own ``[M, V]`` for the tokens slots predict."""
    before = (outcome.windows.place - 1).clamp(min=0)
    return student.logits(gather_rows(outcome.context, before)[outcome.usable])


LOSSES: dict[ObjectiveName, Callable[[Student, Outcome, int], Tensor]] = {
    "one-hot": _one_hot_loss,
    "kl": _kl_loss,
    "reverse-kl": _reverse_kl_loss,
    "overlap": _overlap_loss,
}


@torch.no_grad()
def predictions(student: Student, outcome: Outcome, top_k: int) -> SlotJudgement:
    """What each counting slot proposes, against what the teacher says.

    O-PTP: the likeliest token. C-PTP: the token that u picks from the student's warped distribution
    (greedy
    windows: the likeliest), with a u of the text's own interval other than the carried ones. isd:
    what is drawn from its warped distribution stands with probability sum min(p, q) (greedy
    windows: if both have the same likeliest token). Blocks: the likeliest token, against the
    text's.
    """
    confidences, tokens = outcome.logits.softmax(-1).max(-1)
    variant, blocks = student.adapter.config.variant, outcome.windows.blocks
    if blocks is not None:
        return SlotJudgement(tokens == outcome.target, confidences, blocks.inside[outcome.usable])
    counts = torch.ones_like(outcome.target, dtype=torch.bool)
    if variant == "o-ptp":
        return SlotJudgement(tokens == outcome.target, confidences, counts)
    teacher, greedy = _teacher_logits(student, outcome)
    warp = outcome.windows.warp[outcome.usable]
    distribution = warped(outcome.logits, warp, top_k)
    if variant == "isd":
        if not student.gated:  # what verifies is the model that was trained, not its teacher
            teacher = _own_logits(student, outcome)
        overlap = torch.minimum(warped(teacher, warp, top_k), distribution).sum(-1)
        agrees = (tokens == teacher.argmax(-1)).to(overlap.dtype)
        return SlotJudgement(torch.where(greedy, agrees, overlap), confidences, counts)
    left, mass = edges(teacher, outcome.target, warp, top_k)
    noise = 1 - outcome.windows.noise[outcome.usable]
    drawn = torch.where(greedy, tokens, pick(distribution, left + mass * noise))
    target = torch.where(greedy, teacher.argmax(-1), outcome.target)
    confidences = torch.where(
        greedy, confidences, distribution.gather(1, drawn[:, None]).squeeze(1)
    )
    return SlotJudgement(drawn == target, confidences, greedy | (mass > LEAST_MASS))
