"""What adapters of mask slots are worth on held-out windows, beyond `training.adapter.report`.

Letters: N the stride of isd, C_k the chance that a stride's first k specs stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.adapter.report import HeldOutReport, SlotTally, leading

_STRIDES = (4, 8)
RATIOS = (0.25, 0.5, 0.75)


def tokens_per_call(survival: Sequence[float], stride: int) -> float | None:
    """Tokens per call of introspective strided decoding; None where too few slots were trained.

    ``(2 + C_1 + ... + C_{N-2}) / (2 - C_{N-1})``: rounds whose specs all stood are followed by
    rounds that verify, the others by one that only proposes.

    Args:
        survival: C_1, C_2, ...
        stride: N, 2 or above.

    Source: I-DLM (arXiv 2604.11035), for chances that differ by depth.
    """
    if len(survival) < stride - 1:
        return None
    return round((2 + sum(survival[: stride - 2])) / (2 - survival[stride - 2]), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrideReport(HeldOutReport):
    """Held-out figures of an isd adapter.

    Of `HeldOutReport`'s fields those of sampled windows are about
    the evaluation's distribution: `accuracy` is the mean over windows of sum min(p, q) by depth,
    which is how often strict verification accepts, `survival` its product along a window.

    Attributes:
        open_accuracy: as `accuracy`, at temperature 1 and without a nucleus.
        open_survival: as `survival`.
        tokens_per_call: by stride and distribution (``sampled``, ``open``, ``greedy``), see there.
    """

    open_accuracy: list[float | None]
    open_survival: list[float]
    tokens_per_call: Mapping[str, Mapping[str, float]]

    @classmethod
    def of_strides(cls, sampled: SlotTally, opened: SlotTally, greedy: SlotTally) -> StrideReport:
        """The report of tallies at the evaluation's distribution, at temperature 1, and greedy."""
        distributions = {"sampled": sampled, "open": opened, "greedy": greedy}
        by_stride: dict[str, dict[str, float]] = {}
        for stride in _STRIDES:
            by_distribution = {
                distribution: tokens_per_call(t.survival(), stride)
                for distribution, t in distributions.items()
            }
            known = {
                distribution: value
                for distribution, value in by_distribution.items()
                if value is not None
            }
            by_stride |= {str(stride): known} if known else {}
        return cls(
            **cls.fields_of(sampled, greedy),
            open_accuracy=opened.accuracy(),
            open_survival=opened.survival(),
            tokens_per_call=by_stride,
        )

    def summary(self) -> str:
        """One line for the terminal."""
        strides = "; ".join(
            f"N = {stride}: "
            + ", ".join(
                f"{distribution} {value:.2f}" for distribution, value in by_distribution.items()
            )
            for stride, by_distribution in self.tokens_per_call.items()
        )
        shown = " ".join(f"{value:.2f}" for value in self.accuracy if value is not None)
        return f"overlap by depth {shown}; tokens per call: {strides or 'none of these strides'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineReport(HeldOutReport):
    """Held-out figures of a refining adapter.

    `HeldOutReport`'s are about fully masked blocks, against the text: `accuracy` by place, from the
    second token of a block on.

    Attributes:
        by_ratio: share of masked tokens predicted right where so large a share of a block is
            masked.
    """

    by_ratio: Mapping[str, float | None]

    @classmethod
    def of_blocks(cls, hidden: SlotTally, by_ratio: Mapping[float, SlotTally]) -> RefineReport:
        """The report of tallies of fully masked blocks, and by share of masks."""
        shares: dict[str, float | None] = {}
        for ratio, tally in by_ratio.items():
            judged, right = tally.counts[:2].sum(1).tolist()
            shares[f"{ratio:g}"] = round(right / judged, 5) if judged else None
        return cls(**cls.fields_of(hidden, None), by_ratio=shares)

    def summary(self) -> str:
        """One line for the terminal."""
        shares = ", ".join(
            f"{share:.3f} at {ratio}" for ratio, share in self.by_ratio.items() if share is not None
        )
        shown = " ".join(f"{value:.2f}" for value in self.every_few())
        line = f"fully masked: leading correct {leading(self.survival, len(self.survival)):.2f}"
        return f"{line}, accuracy by place {shown}; by share of masks: {shares}"
