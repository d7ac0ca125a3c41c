"""The distribution of answers by enumeration: the oracle that sampled answers are held against."""

from decoders.core.sampling import warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling


def enumerated_distribution(
    model: TableModel, prompt: list[int], sampling: Sampling, num_tokens: int
) -> dict[tuple[int, ...], float]:
    """Probability of every answer of `num_tokens` tokens on a `TableModel`, by enumeration."""
    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for answer, mass in distribution.items():
            probs = warp(model.logits([*prompt, *answer]).unsqueeze(0), sampling)[0]
            for token, prob in enumerate(probs.double().tolist()):
                if prob > 0:
                    longer[(*answer, token)] = mass * prob
        distribution = longer
    return distribution
