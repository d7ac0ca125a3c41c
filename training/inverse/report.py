"""C-PTP trained from scratch against an AR model of the same size, data and steps.

The report gives perplexities by slot n, on the same held-out windows: of the AR model given the
tokens before; of C-PTP given the context and the window's earlier *uniforms* (drawn from its own
intervals, averaged over draws); and the source's two bounds (`training.inverse.data`). The mean of
-log p over draws is an upper bound on the -log likelihood of C-PTP as a sampler (Jensen); Theorem 2
of PTP (arXiv 2512.21323) says that the bound is tight at the optimum. For acceptance, C-PTP drafts
in one call, and the AR model picks tokens with the same uniforms. A draft is accepted if it and all
earlier drafts equal the AR model's picks.

Letters: B rows, W windows of a row, N tokens of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.inverse.data import Trips
from training.inverse.model import SlotTransformer
from training.inverse.windows import Read, TextWindows, at_indices, draw_text, picked

SLOTS = (1, 2, 4, 8, 16)
EVAL_SEED = 20_512
_ROWS_AT_A_TIME = 32


def held_out_text(trips: Trips, rows: int, **sizes: int) -> list[TextWindows]:
    """Draw fixed held-out windows of `sizes` (see `draw_text`), split into parts of rows."""
    whole = draw_text(trips, np.random.default_rng(EVAL_SEED), rows=rows, **sizes)
    starts = range(0, rows, _ROWS_AT_A_TIME)
    return [whole.part(slice(start, start + _ROWS_AT_A_TIME)) for start in starts]


@torch.no_grad()
def ar_nats(model: SlotTransformer, text: list[TextWindows]) -> Tensor:
    """Return -log p ``[all windows, N]`` of the windows' tokens given the tokens before."""
    return _nats(lambda windows: Read(model, windows).window_logits(), text)


@torch.no_grad()
def c_ptp_nats(model: SlotTransformer, text: list[TextWindows], draws: int) -> Tensor:
    """Return -log p ``[all windows, N]`` of the windows' tokens given the uniforms before.

    The values are averaged over `draws` sets of uniforms from the model's own intervals.
    """
    generator = torch.Generator().manual_seed(EVAL_SEED)
    nats = []
    for windows in text:
        total = torch.zeros(windows.noise.shape)
        for _ in range(draws):
            noise = torch.rand(windows.noise.shape, generator=generator, dtype=torch.float64)
            again = TextWindows(windows.ids, windows.starts, noise)
            total += _nats(lambda part: Read(model, part).explained()[1], [again]).view_as(total)
        nats.append(total / draws)
    return torch.cat(nats).flatten(0, 1)


def source_nats(trips: Trips, text: list[TextWindows]) -> tuple[Tensor, Tensor]:
    """Return the two bounds, floor and blind, on the same windows, each ``[all windows, N]``."""

    def floor(windows: TextWindows) -> Tensor:
        distributions = torch.from_numpy(trips.floor(windows.ids.numpy()))
        return at_indices(distributions, windows.indices).log()

    return _nats(floor, text), _nats(partial(_blind, trips), text)


@torch.no_grad()
def acceptance(
    target: SlotTransformer, draft: SlotTransformer, trips: Trips, text: list[TextWindows]
) -> tuple[list[float], list[float]]:
    """Return P(the first n drafts equal the AR model's picks) for n = 1 … N.

    The first list is for C-PTP's drafts. The second is for those of the best independent predictor
    (blind distributions, each token picked by its own u).
    """
    coupled, independent = [], []
    for windows in text:
        u = windows.noise  # any uniforms will do
        truth = Read(target, windows).rolled(u)
        coupled.append(Read(draft, windows).drafted(u) == truth)
        independent.append(picked(_blind(trips, windows), u) == truth)
    return _survival(coupled), _survival(independent)


def compare(
    ar: SlotTransformer, c_ptp: SlotTransformer, trips: Trips, text: list[TextWindows], draws: int
) -> dict[str, Any]:
    """Return all figures of ``inverse.json``, with `draws` sets of uniforms per window."""
    num_rows, num_slots = sum(len(part.ids) for part in text), text[0].noise.shape[2]
    floor, blind = source_nats(trips, text)
    ar_values, c_values = ar_nats(ar, text), c_ptp_nats(c_ptp, text, draws)
    coupled, independent = acceptance(ar, c_ptp, trips, text)

    def figures(columns: slice) -> dict[str, float]:
        values, truth = c_values[:, columns], ar_values[:, columns]
        excess = values - truth
        # the error is over rows, because a row's windows overlap
        rows = excess.double().view(num_rows, -1).mean(1)
        return {
            "ar": _ppl(truth),
            "c_ptp": _ppl(values),
            "ratio": round(excess.mean().exp().item(), 5),
            "ratio_error": round(rows.std().item() / num_rows**0.5, 5),
            "floor": _ppl(floor[:, columns]),
            "blind": _ppl(blind[:, columns]),
        }

    all_slots = {
        name: [_ppl(column) for column in values.T]
        for name, values in (("ar", ar_values), ("c_ptp", c_values))
    }
    extra = sum(p.numel() for p in c_ptp.uniforms.parameters())  # AR does not use them
    shared = sum(p.numel() for p in c_ptp.parameters()) - extra
    return {
        "windows": len(c_values),
        "draws": draws,
        "parameters": {"shared": shared, "uniforms": extra},
        "perplexity": {**figures(slice(None)), "all_slots": all_slots},
        "slots": {str(n): figures(slice(n - 1, n)) for n in SLOTS if n <= num_slots},
        "acceptance": {
            "survival": coupled,
            "leading": round(sum(coupled), 4),
            "independent_survival": independent,
            "independent_leading": round(sum(independent), 4),
        },
    }


def _nats(logits: Callable[[TextWindows], Tensor], text: list[TextWindows]) -> Tensor:
    """Return -log p ``[all windows, N]`` of the windows' tokens under logits ``[B, W, N, V]``."""
    parts = []
    for windows in text:
        tokens, flat = windows.tokens, logits(windows).flatten(0, 2)
        nats = F.cross_entropy(flat, tokens.flatten(), reduction="none")
        parts.append(nats.view(tokens.shape))
    return torch.cat(parts).flatten(0, 1)


def _blind(trips: Trips, windows: TextWindows) -> Tensor:
    """Return the log distributions ``[B, W, N, V]`` of the best independent predictor."""
    length = windows.noise.shape[2]
    distributions = trips.blind(windows.ids.numpy(), windows.starts.numpy(), length)
    return torch.from_numpy(distributions).log()


def _survival(right: list[Tensor]) -> list[float]:
    """Return the share of windows that are right up to each token, from masks ``[B, W, N]``."""
    leading = torch.cat(right).flatten(0, 1).long().cumprod(-1)
    shares = leading.double().mean(0).tolist()
    return [round(share, 5) for share in shares]


def _ppl(nats: Tensor) -> float:
    return round(nats.double().mean().exp().item(), 5)
