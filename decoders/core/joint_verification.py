"""Verify drafts jointly: drawn trees by recursive rejection, chains as blocks.

Letters: B sequences, K drafts of each, W of them behind one row (both padded to the most), V
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from decoders.core.sampling import pick, pick_left


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
    left, proposal = target_probs[:, :-1].double(), draft_probs.double()
    shape = num_sequences, num, -1
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


def verify_block(
    target_probs: Tensor,
    draft_probs: Tensor,
    drafts: Tensor,
    num_drafts: Tensor,
    u_accept: Tensor,
    u_recover: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify the drafts of B sequences jointly, which keeps the target's distribution.

    The share of the first i drafts is w_i = min(1, w_(i-1) target(x_i) / draft(x_i)), w_0 = 1. The
    residual after them is max(0, w_i target - draft), without a draft w_i target; its mass is m_i.
    The drafts up to the last i that passes its test, with probability m_i / (m_i + 1 - w_i), are
    accepted, and the next token is drawn from the residual after them. A draft that fails its test
    may still be accepted, so tests behind the accepted drafts also decide: no two steps may share
    a uniform (`Uniforms.at_step`). The result is that of `verify_rejection`.

    Args:
        target_probs: ``[B, K + 1, V]``.
        draft_probs: ``[B, K, V]``, the distributions that the drafts were really drawn from.
        drafts: ``[B, K]`` int64, padded.
        num_drafts: ``[B]`` int64.
        u_accept: ``[B, K]`` float64, one for each test.
        u_recover: ``[B, K + 1]`` float64, one for each possible position of the next token.

    Source: Sun et al. 2024 (arXiv 2403.10444), Algorithm 2.
    """
    at, columns = drafts.unsqueeze(-1), torch.arange(drafts.shape[1] + 1, device=drafts.device)
    ratios = target_probs[:, :-1].gather(-1, at).double() / draft_probs.gather(-1, at).double()
    shares = [torch.ones_like(u_accept[:, 0])]
    for ratio in ratios.squeeze(-1).unbind(1):
        shares.append((shares[-1] * ratio).clamp(max=1))
    share = torch.stack(shares, 1)
    residual = share.to(target_probs.dtype).unsqueeze(-1) * target_probs
    residual[:, :-1] -= draft_probs * (columns[:-1] < num_drafts.unsqueeze(-1)).unsqueeze(-1)
    mass = residual.clamp_(min=0).sum(-1, dtype=torch.float64)
    stands = u_accept * (mass + 1 - share)[:, 1:] < mass[:, 1:]
    stands |= share[:, 1:] == 1  # then the chance is 1, also where rounding leaves no mass
    stands &= columns[1:] <= num_drafts.unsqueeze(-1)
    accepted = (stands * columns[1:]).amax(-1)
    rows = torch.arange(len(drafts), device=drafts.device)
    after = target_probs[rows, accepted], u_recover[rows, accepted]
    return accepted, pick_left(residual[rows, accepted], *after)
