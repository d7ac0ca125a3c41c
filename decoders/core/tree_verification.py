"""Verification of drawn trees of drafts by recursive rejection.

Letters: B sequences, N rows of one, P of them with drafts behind them, W drafts behind a row (all
padded to the most), V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.core.sampling import pick


def verify_tree(
    target_probs: Tensor,
    draft_probs: Tensor,
    tokens: Tensor,
    parents: Tensor,
    children: Tensor,
    u_accept: Tensor,
    u_recover: Tensor,
) -> Tensor:
    """Verify a tree of each sequence, all rows at once, which keeps the target's distribution.

    The drafts behind a row are tested in order. Draft x is accepted with probability min(1, p(x) /
    q(x)). If x is rejected, p becomes max(0, p - q), normalised, and q loses x, because the next
    draft was drawn without x. If all are rejected, the token is drawn from the remaining p. The
    output follows the target's distribution p exactly if the drafts behind every row were drawn
    without replacement from that row's q, and if their number does not depend on anything drawn at
    their depth or deeper.

    Args:
        target_probs: p after every row, ``[B, N, V]``.
        draft_probs: q after each of P rows, ``[B, P, V]``.
        tokens: ``[B, N]`` int64; row 0, where a path begins, is no draft.
        parents: these P rows, all different, ``[B, P]`` int64.
        children: rows of the drafts behind them, ``[B, P W]`` int64; 0 is padding.
        u_accept: ``[B, P W]`` float64, one for each test.
        u_recover: ``[B, N]`` float64, one for the token after each row.

    Returns:
        Accepted rows, the last one repeated, and tokens, ``[B, P + 2]`` int64.

    Source: SpecInfer (arXiv 2305.09781), Algorithm 3; without replacement: arXiv 2402.14160.
    """
    (num, size), shape = target_probs.shape[1:], (*parents.shape, -1)
    left = target_probs.gather(1, parents.unsqueeze(-1).expand(-1, -1, size)).double()
    proposal, after = draft_probs.double(), parents
    tests = zip(children.view(shape).unbind(-1), u_accept.view(shape).unbind(-1), strict=True)
    for child, u in tests:
        proposal = proposal / proposal.sum(-1, keepdim=True)
        token, is_tested = tokens.gather(1, child).unsqueeze(-1), (child > 0) & (after == parents)
        stands = u.unsqueeze(-1) * proposal.gather(-1, token) < left.gather(-1, token)
        after = torch.where(is_tested & stands.squeeze(-1), child, after)
        residual = (left - proposal).clamp(min=0)
        mass = residual.sum(-1, keepdim=True)  # 0 only by rounding, if both distributions agree
        left = torch.where(is_tested.unsqueeze(-1) & (mass > 0), residual / mass, left)
        proposal = proposal.scatter(-1, token, 0.0)
    sequences, rows = (torch.arange(each, device=tokens.device) for each in (len(tokens), num))
    next_rows, path = (
        rows.expand_as(tokens).scatter(1, parents, after),
        [torch.zeros_like(tokens[:, :1])],
    )
    for _ in range(parents.shape[1]):
        path.append(next_rows.gather(1, path[-1]))
    is_last = parents == path[-1]
    kept = left[sequences, is_last.long().argmax(1)]
    whole = target_probs[sequences, path[-1].squeeze(1)].double()
    weights = torch.where(is_last.any(1, keepdim=True), kept, whole)
    picks = pick(weights, u_recover.gather(1, path[-1]).squeeze(1))
    return torch.cat((*path, picks.unsqueeze(1)), 1)
