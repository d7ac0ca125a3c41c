"""Verify drawn trees of drafts by recursive rejection.

Letters: B sequences, K drafts of each, W of them behind one row (both padded to the most), V
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from decoders.core.sampling import pick


def verify_tree(
    target_probs: Tensor,
    draft_probs: Tensor,
    tokens: Tensor,
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
        target_probs: p after every row, ``[B, K + 1, V]``.
        draft_probs: q after every row but the last, ``[B, K, V]``.
        tokens: ``[B, K + 1]`` int64; row 0, where a path begins, is no draft.
        children: rows of the drafts behind each row but the last, ``[B, K W]``; 0 is padding.
        u_accept: ``[B, K W]`` float64, one for each test.
        u_recover: ``[B, K + 1]`` float64, one for the token after each row.

    Returns:
        Accepted rows (padded with the last row), then the token, ``[B, K + 2]`` int64.

    Source: SpecInfer (arXiv 2305.09781), Algorithm 3; without replacement: arXiv 2402.14160.
    """
    device, (num_sequences, num) = tokens.device, draft_probs.shape[:2]
    left, proposal, shape = (
        target_probs[:, :-1].double(),
        draft_probs.double(),
        (num_sequences, num, -1),
    )
    rows = after = torch.arange(num, device=device).expand(num_sequences, num)
    tests = zip(children.view(shape).unbind(-1), u_accept.view(shape).unbind(-1), strict=True)
    for child, u in tests:
        proposal = proposal / proposal.sum(-1, keepdim=True)
        token, is_tested = tokens.gather(1, child).unsqueeze(-1), (child > 0) & (after == rows)
        stands = u.unsqueeze(-1) * proposal.gather(-1, token) < left.gather(-1, token)
        after = torch.where(is_tested & stands.squeeze(-1), child, after)
        residual = (left - proposal).clamp(min=0)
        mass = residual.sum(-1, keepdim=True)  # 0 only by rounding, if both distributions agree
        left = torch.where(is_tested.unsqueeze(-1) & (mass > 0), residual / mass, left)
        proposal = proposal.scatter(-1, token, 0.0)
    after, path = pad(after, (0, 1), value=num), [torch.zeros_like(tokens[:, :1])]
    for _ in range(num):
        path.append(after.gather(1, path[-1]))
    left = torch.cat((left, target_probs[:, -1:].double()), 1)
    weights = left[torch.arange(num_sequences, device=device), path[-1].squeeze(1)]
    picks = pick(weights, u_recover.gather(1, path[-1]).squeeze(1))
    return torch.cat((*path, picks.unsqueeze(1)), 1)
