"""Sampling and verification: where a distribution becomes a token.

* `warp`: logits -> distribution, temperature -> top-k -> top-p in transformers' order.
* `Uniforms`: u = f(seed, hash of the prompt ids, output position), drawn on the host by a
  counter-based generator (Philox), hence equal on every device and in any order.
* `pick`: inverse CDF in vocabulary order. Given u it is deterministic, so a decoder that
  reproduces the target's distributions and looks up the same u emits the very tokens of AR
  sampling.
* `verify_picks`: accept while the draft is the target's own pick for that u (PTP, arXiv
  2512.21323, the verification of Algorithm 1).
* `verify_rejection`: speculative sampling (Leviathan et al. 2023, Alg. 1; Chen et al. 2023).

Letters: R rows, V vocabulary, B sequences, K drafts per sequence (padded).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from decoders.core.types import Acceptance, Sampling

Stream = Literal["draw", "accept", "recover"]
_STREAMS: dict[Stream, int] = {"draw": 0, "accept": 1, "recover": 2}
_BLOCK = 256  # uniforms made at a time
_TOP = 64  # candidates top-p looks at before it sorts the whole vocabulary
MOST_VALUES = 2**24  # values of rows that are worked on at once: 128 MiB of float64


class Uniforms:
    """Uniforms in [0, 1) addressed by stream and output position (0 is the first new token).

    ``draw`` feeds `pick`, for AR, drafts and coupled verification alike; ``accept`` feeds the
    acceptance tests of rejection sampling and ``recover`` the token after the accepted ones, so
    that neither ever reuses a number that decided something else.
    """

    __slots__ = ("_blocks", "_key")

    def __init__(self, seed: int, prompt_ids: Sequence[int]) -> None:
        """Key the generator by the seed and the prompt's ids."""
        digest = hashlib.blake2b(np.asarray(prompt_ids, dtype="<i8").tobytes(), digest_size=8)
        prompt_key = int.from_bytes(digest.digest(), "little")
        self._key = np.array([seed % 2**64, prompt_key], dtype=np.uint64)
        self._blocks: dict[tuple[int, int, int], list[float]] = {}

    def at(self, stream: Stream, position: int, candidate: int = 0) -> float:
        """Return the uniform of one output position; each of several candidates has its own."""
        assert position >= 0, f"no uniform belongs to position {position}, inside the prompt"
        block, offset = divmod(position, _BLOCK)
        address = (_STREAMS[stream], block, candidate)
        values = self._blocks.get(address)
        if values is None:
            counter = np.array([0, block, address[0], candidate], dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            values = self._blocks[address] = generator.random(_BLOCK).tolist()
        return values[offset]


def warp(logits: Tensor, sampling: Sampling, *, ask: bool = True) -> Tensor:
    """Return the distribution ``[R, V]`` float32 that `sampling` makes of logits ``[R, V]``.

    It is one-hot at temperature 0. A row of logits that holds NaN or +infinity gives a distribution
    that holds NaN, of which `pick` picks V. `ask` is `nucleus`'s.
    """
    if sampling.greedy:
        best = logits.max(-1)
        certain = torch.where(best.values < torch.inf, 1.0, torch.nan).unsqueeze(-1)
        return torch.zeros_like(logits).scatter_(-1, best.indices.unsqueeze(-1), certain)
    probs = tempered(logits, sampling.temperature, sampling.top_k)
    return nucleus(probs, sampling.top_p, ask=ask) if sampling.top_p < 1 else probs


def likeliest(logits: Tensor) -> Tensor:
    """Return the likeliest tokens ``[R]``; V, which is none, where a row holds NaN or +infinity.

    So NaN reaches the host in the copy of the tokens themselves: finding it waits for nothing.
    """
    best = logits.max(-1)
    return torch.where(best.values < torch.inf, best.indices, logits.shape[-1])


def tempered(logits: Tensor, temperature: float | Tensor, top_k: int) -> Tensor:
    """The distribution ``[R, V]`` after temperature (one, or a column ``[R, 1]``) and top-k."""
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        threshold = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    return torch.softmax(logits, dim=-1)


def nucleus(probs: Tensor, top_p: float | Tensor, *, ask: bool = True) -> Tensor:
    """Keep each row's likeliest tokens until their mass reaches `top_p`, and renormalise.

    `top_p` is one for all rows, or a column ``[R, 1]``. Only the top 64 are sorted, except in rows
    whose top 64 hold less: a row's distribution never depends on the other rows, ties included.
    Whether there are such rows the host has to `ask`; else they are NaN.
    """
    num_sorted = min(_TOP, probs.shape[-1])
    values, ids = probs.topk(num_sorted, dim=-1)
    distribution = _cut(probs, values, ids, top_p)
    if num_sorted < probs.shape[-1]:
        short = (values.sum(-1, keepdim=True) < top_p).squeeze(-1)
        if not ask:
            return distribution.masked_fill_(short.unsqueeze(-1), torch.nan)
        if bool(short.any()):
            some = probs[short]
            values, ids = some.sort(dim=-1, descending=True, stable=True)
            distribution[short] = _cut(
                some, values, ids, top_p if isinstance(top_p, float) else top_p[short]
            )
    return distribution


def _cut(probs: Tensor, values: Tensor, ids: Tensor, top_p: float | Tensor) -> Tensor:
    above = values.cumsum(-1) - values  # the mass strictly above a token
    kept = values * (above < top_p)
    kept /= kept.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, ids, kept)


def one_hot(tokens: Tensor, vocab_size: int) -> Tensor:
    """Return one-hot distributions ``[R, V]`` of the tokens ``[R]``."""
    distribution = torch.zeros(
        (*tokens.shape, vocab_size), dtype=torch.float32, device=tokens.device
    )
    return distribution.scatter_(-1, tokens.unsqueeze(-1), 1.0)


def pick(probs: Tensor, u: Tensor) -> Tensor:
    """Invert the CDF in vocabulary order: the first token whose cumulative mass exceeds u.

    `probs` are weights ``[R, V]`` (u is scaled by their sum), `u` uniforms ``[R]`` float64. Returns
    ids ``[R]``, never of zero weight; V, which is no token, where weights are NaN or all zero.
    """
    return in_parts(_inverted, probs, u)


def in_parts(work: Callable[[Tensor, Tensor], Tensor], rows: Tensor, beside: Tensor) -> Tensor:
    """Join the results of `work` on parts of rows ``[R, V]`` and of what lies beside them ``[R]``.

    No part has many more values than `MOST_VALUES`: memory beside the rows is bounded.
    """
    count = -(-rows.numel() // MOST_VALUES)
    if count < 2:
        return work(rows, beside)
    parts = zip(rows.tensor_split(count), beside.tensor_split(count), strict=True)
    return torch.cat([work(*part) for part in parts])


def _inverted(probs: Tensor, u: Tensor) -> Tensor:
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1]
    # u * total may round up to total, where no token is left: step just below it
    level = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, level.unsqueeze(-1), right=True).squeeze(-1)


def verify_picks(picks: Sequence[int], drafts: Sequence[int]) -> Acceptance:
    """Verify K drafts by the target's own K + 1 picks for the same uniforms; else `ValueError`."""
    if len(picks) != len(drafts) + 1:
        raise ValueError(
            f"verify_picks got {len(picks)} picks for {len(drafts)} drafts; it needs one for every "
            f"draft and one after the last, {len(drafts) + 1}: read that many rows of the call"
        )
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == picks[accepted]:
        accepted += 1
    return Acceptance(accepted, picks[accepted])


def verify_rejection(
    target_probs: Tensor,
    draft_probs: Tensor,
    drafts: Tensor,
    num_drafts: Tensor,
    u_accept: Tensor,
    u_recover: Tensor,
    lenience: Tensor | None = None,
    certain: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Verify drafts of B sequences by speculative sampling, which keeps the target's distribution.

    Draft x_i stands with probability min(1, target(x_i) / draft(x_i)); after the first that falls
    the token is drawn from max(0, target - draft), after all stood from the target (the bonus).
    `lenience` and `certain` relax the test, and with them the distribution is another.

    Args:
        target_probs: ``[B, K + 1, V]``.
        draft_probs: ``[B, K, V]``, the distributions the drafts were really drawn from.
        drafts: ``[B, K]`` int64; columns from ``num_drafts`` on are padding.
        num_drafts: ``[B]`` int64.
        u_accept: ``[B, K]`` float64, one test each.
        u_recover: ``[B, K + 1]`` float64, by position of the token that follows.
        lenience: ``[B, 1]``, factor on draft(x_i) in the test.
        certain: bool ``[B, K]``, drafts that stand whatever their test says.

    Returns:
        ``(accepted [B], token [B])`` int64.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1.
    """
    num_sequences, max_drafts = drafts.shape
    columns = torch.arange(max_drafts, device=drafts.device)
    target_of = target_probs[:, :-1].gather(-1, drafts.unsqueeze(-1)).squeeze(-1)
    draft_of = draft_probs.gather(-1, drafts.unsqueeze(-1)).squeeze(-1)
    stands = u_accept * (draft_of if lenience is None else lenience * draft_of) < target_of
    if certain is not None:
        stands |= certain
    stands &= columns < num_drafts.unsqueeze(-1)
    accepted = stands.long().cumprod(-1).sum(-1)

    rows = torch.arange(num_sequences, device=drafts.device)
    after = target_probs[rows, accepted]
    # where nothing was drafted (the bonus, padding) there is nothing to subtract
    fell = (accepted < num_drafts).unsqueeze(-1)
    subtract = draft_probs[rows, accepted.clamp(max=max_drafts - 1)] * fell
    residual = (after - subtract).clamp(min=0)
    empty = residual.sum(-1, keepdim=True) == 0  # only by rounding, where both distributions agree
    residual = torch.where(empty, after, residual)
    return accepted, pick(residual, u_recover[rows, accepted])


def compare_distributions(target_probs: Tensor, draft_probs: Tensor, drafts: Tensor) -> Tensor:
    """Compare the drafts' distributions with the target's: ``[2, B, K]`` float64.

    The first plane is min(1, target(x) / draft(x)) of each draft x, the second the sum over the
    vocabulary of min(target, draft), its mean. Arguments as in `verify_rejection`.
    Source: the introspective acceptance rate of I-DLM (arXiv 2604.11035).
    """
    target_probs, at = target_probs[:, :-1], drafts.unsqueeze(-1)
    target_of = target_probs.gather(-1, at).squeeze(-1).double()
    draft_of = draft_probs.gather(-1, at).squeeze(-1).double()
    ratios = torch.where(target_of < draft_of, target_of / draft_of, 1.0)
    return torch.stack((ratios, torch.minimum(target_probs, draft_probs).sum(-1).double()))
