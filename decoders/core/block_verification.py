"""Block verification of drafts (Sun et al. 2024, arXiv 2403.10444).

Letters: V vocabulary, B sequences, K drafts per sequence (padded).
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.core.sampling import pick_left


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
    a uniform (`Uniforms.at_step`). Arguments and result are those of `verify_rejection`.

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
