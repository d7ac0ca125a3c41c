"""Sample and verify: turn distributions into tokens.

* `Uniforms`: u = f(seed, hash of the prompt ids, output position). A counter-based generator
  (Philox) draws u on the host, so u is the same on every device and in any order.
* `pick`: inverse CDF in vocabulary order, deterministic for a given u. Therefore a decoder that
  reproduces the target's distributions and looks up the same u emits exactly the tokens of AR
  sampling.

Letters: R rows, V vocabulary, B sequences, K drafts per sequence (padded).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from decoders.core.types import Sampling

Stream = Literal["draw", "accept", "recover"]
_STREAMS: dict[Stream, int] = {"draw": 0, "accept": 1, "recover": 2}
_BLOCK = 256  # uniforms generated at once
_TOP = 64  # candidates that top-p tries before it sorts the whole vocabulary
MAX_VALUES = 2**24  # most values processed at once: 128 MiB of float64


class Uniforms:
    """Generate uniforms in [0, 1) by stream and output position (0: the first new token).

    ``draw`` feeds `pick`, for AR, drafts and coupled verification. ``accept`` feeds the acceptance
    tests of rejection sampling, and ``recover`` draws the token after the accepted drafts. Neither
    of these two streams ever reuses a number that decided anything else.

    Position alone is enough if no draft behind the accepted ones influences a decision. Otherwise
    each step needs uniforms that no other step has: `at_step`.
    """

    __slots__ = ("_blocks", "_key", "_last", "_step")

    def __init__(self, seed: int, prompt_ids: Sequence[int]) -> None:
        """Key the generator by the seed and the prompt's ids."""
        digest = hashlib.blake2b(np.asarray(prompt_ids, dtype="<i8").tobytes(), digest_size=8)
        prompt_key = int.from_bytes(digest.digest(), "little")
        self._key = np.array([seed % 2**64, prompt_key], dtype=np.uint64)
        self._blocks: dict[tuple[int, int, int], list[float]] = {}
        self._step = 0
        self._last: Uniforms | None = None

    def at(self, stream: Stream, position: int, candidate: int = 0) -> float:
        """Return the uniform of an output position.

        Args:
            stream: the decision that uses the number, see the class.
            position: output position, from 0.
            candidate: number of a draft among several for this position, from 0.
        """
        assert position >= 0, f"no uniform belongs to position {position}, inside the prompt"
        block, offset = divmod(position, _BLOCK)
        address = (_STREAMS[stream], block, candidate)
        values = self._blocks.get(address)
        if values is None:
            # the lowest word counts within a block
            words = [self._step << 32, block, address[0], candidate]
            counter = np.array(words, dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            values = self._blocks[address] = generator.random(_BLOCK).tolist()
        return values[offset]

    def at_step(self, step: int) -> Uniforms:
        """Return uniforms that only this step has (step 0: those by position alone)."""
        if self._last is None or self._last._step != step:
            last = self._last = copy.copy(self)
            last._step, last._blocks, last._last = step, {}, None
        return self._last


def warp(logits: Tensor, sampling: Sampling, *, sync: bool = True) -> Tensor:
    """Warp logits ``[R, V]`` into float32 distributions ``[R, V]``, as `sampling` specifies.

    A row with NaN or +infinity gives a distribution with NaN, for which `pick` returns V.

    Args:
        logits: raw logits of R rows.
        sampling: temperature (0: one-hot distributions), top-k, top-p: transformers' order.
        sync: synchronize to check whether any row needs a full sort (see `nucleus`).
    """
    if sampling.greedy:
        values, ids = highest(logits)
        certain = torch.where(values < torch.inf, 1.0, torch.nan).unsqueeze(-1)
        return torch.zeros_like(logits).scatter_(-1, ids.unsqueeze(-1), certain)
    probs = tempered(logits, sampling.temperature, sampling.top_k)
    return nucleus(probs, sampling.top_p, sync=sync) if sampling.top_p < 1 else probs


def likeliest(logits: Tensor) -> Tensor:
    """Return the likeliest tokens ``[R]``, or V (no token) for rows with NaN or +infinity.

    Thus the host learns of NaN from the copied tokens, without another wait.
    """
    values, ids = highest(logits)
    return torch.where(values < torch.inf, ids, logits.shape[-1])


def highest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's highest value ``[R]`` (NaN is highest) and its index (on a CPU the first).

    On a CPU, NumPy takes a seventh of torch's time.
    """
    if rows.device.type != "cpu":
        return rows.max(-1)
    ids = torch.from_numpy((rows if rows.itemsize > 2 else rows.float()).numpy().argmax(-1))
    return rows.gather(-1, ids.unsqueeze(-1)).squeeze(-1), ids


def tempered(logits: Tensor, temperature: float | Tensor, top_k: int) -> Tensor:
    """Return distributions ``[R, V]`` after temperature and top-k.

    Args:
        logits: ``[R, V]``.
        temperature: a number, or ``[R, 1]``, above 0.
        top_k: number of likeliest tokens to keep (more in a tie for the last place); 0: all.
    """
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        threshold = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    return torch.softmax(logits, dim=-1)


def nucleus(probs: Tensor, top_p: float | Tensor, *, sync: bool = True) -> Tensor:
    """Keep each row's likeliest tokens until their mass reaches `top_p`, and renormalise.

    A row sorts its top 64 tokens, or all tokens if the top 64 have less mass than `top_p`, so no
    row depends on other rows, even in ties.

    Args:
        probs: ``[R, V]``.
        top_p: a number, or ``[R, 1]``, above 0.
        sync: synchronize to check whether any row needs a full sort; if false, these become NaN.
    """
    num_sorted = min(_TOP, probs.shape[-1])
    values, ids = probs.topk(num_sorted, dim=-1)
    distribution = _cut(probs, values, ids, top_p)
    if num_sorted < probs.shape[-1]:
        short = (values.sum(-1, keepdim=True) < top_p).squeeze(-1)
        if not sync:
            return distribution.masked_fill_(short.unsqueeze(-1), torch.nan)
        if bool(short.any()):
            some = probs[short]
            values, ids = some.sort(dim=-1, descending=True, stable=True)
            mass = top_p if isinstance(top_p, float) else top_p[short]
            distribution[short] = _cut(some, values, ids, mass)
    return distribution


def _cut(probs: Tensor, values: Tensor, ids: Tensor, top_p: float | Tensor) -> Tensor:
    above = values.cumsum(-1) - values  # the mass of the tokens ranked before a token
    kept = values * (above < top_p)
    kept /= kept.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, ids, kept)


def one_hot(tokens: Tensor, vocab_size: int) -> Tensor:
    """Return one-hot distributions ``[R, V]`` of the tokens ``[R]``."""
    zeros = torch.zeros(*tokens.shape, vocab_size, dtype=torch.float32, device=tokens.device)
    return zeros.scatter_(-1, tokens.unsqueeze(-1), 1.0)


def pick(probs: Tensor, u: Tensor) -> Tensor:
    """Invert the CDF in vocabulary order: pick the first token whose cumulative mass exceeds u.

    `probs` are weights ``[R, V]`` (u is scaled by their sum), `u` are uniforms ``[R]`` float64.
    Returns ids ``[R]``, never of zero weight, or V (no token) if weights are NaN or all zero.
    """
    return in_parts(_inverted, probs, u)


def in_parts(work: Callable[[Tensor, Tensor], Tensor], rows: Tensor, beside: Tensor) -> Tensor:
    """Run work on parts of rows and concatenate the results, to bound the memory besides the rows.

    Args:
        work: a function of some of the rows and the same ones of `beside`.
        rows: ``[R, V]``, of which a part has hardly more than `MAX_VALUES` values.
        beside: ``[R]`` or ``[R, …]``, such as uniforms.
    """
    count = -(-rows.numel() // MAX_VALUES)
    if count < 2:
        return work(rows, beside)
    parts = zip(rows.tensor_split(count), beside.tensor_split(count), strict=True)
    return torch.cat([work(*part) for part in parts])


def _inverted(probs: Tensor, u: Tensor) -> Tensor:
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1]
    # u * total may round up to total, beyond the last token: step just below total
    level = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, level.unsqueeze(-1), right=True).squeeze(-1)


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

    Draft x_i is accepted with probability min(1, target(x_i) / draft(x_i)). After the first
    rejected draft the next token is drawn from max(0, target - draft); if all are accepted, from
    the target (the bonus). `lenience` and `certain` relax the test and change the distribution.

    Args:
        target_probs: ``[B, K + 1, V]``.
        draft_probs: ``[B, K, V]``, the distributions that the drafts were really drawn from.
        drafts: ``[B, K]`` int64; columns from ``num_drafts`` on are padding.
        num_drafts: ``[B]`` int64.
        u_accept: ``[B, K]`` float64, one for each test.
        u_recover: ``[B, K + 1]`` float64, one for each possible position of the next token.
        lenience: ``[B, 1]``, factor on draft(x_i) in the test.
        certain: bool ``[B, K]``, drafts that are accepted regardless of their test.

    Returns:
        ``(accepted [B], token [B])`` int64.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1; Chen et al. 2023.
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
    # positions without a draft (the bonus, padding) have nothing to subtract
    fell = (accepted < num_drafts).unsqueeze(-1)
    subtract = draft_probs[rows, accepted.clamp(max=max_drafts - 1)] * fell
    residual = (after - subtract).clamp(min=0)
    return accepted, pick_left(residual, after, u_recover[rows, accepted])


def pick_left(residual: Tensor, target_probs: Tensor, u: Tensor) -> Tensor:
    """Pick from residuals, or from the target where rounding left no residual.

    Args:
        residual: ``[B, V]``, not normalised.
        target_probs: ``[B, V]``.
        u: ``[B]`` float64.
    """
    empty = residual.sum(-1, keepdim=True) == 0
    return pick(torch.where(empty, target_probs, residual), u)


def compare_distributions(target_probs: Tensor, draft_probs: Tensor, drafts: Tensor) -> Tensor:
    """Compare the drafts' distributions with the target's: ``[2, B, K]`` float64.

    The first plane is min(1, target(x) / draft(x)) of each draft x. The second is its mean, the sum
    of min(target, draft) over the vocabulary.

    Args:
        target_probs: ``[B, K + 1, V]``.
        draft_probs: ``[B, K, V]``.
        drafts: ``[B, K]`` int64, padded.

    Source: the introspective acceptance rate of I-DLM (arXiv 2604.11035).
    """
    target_probs, at = target_probs[:, :-1], drafts.unsqueeze(-1)
    target_of = target_probs.gather(-1, at).squeeze(-1).double()
    draft_of = draft_probs.gather(-1, at).squeeze(-1).double()
    ratios = torch.where(target_of < draft_of, target_of / draft_of, 1.0)
    return torch.stack((ratios, torch.minimum(target_probs, draft_probs).sum(-1).double()))
