"""Merges attention over disjoint sets of keys into attention over their union, exactly, by the log-sum-exp of each row.

The online softmax of Milakov & Gimelshein 2018 (arXiv 1805.02867), as used between devices by Liu et al. 2023 (Ring
Attention, arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge (out_BHLD, lse_BHL) pairs computed over disjoint keys; differentiable.

    A row that no part sees (lse -inf in all) stays output 0 and lse -inf, with gradient 0.
    """
    lse_PBHL = torch.stack([lse for _, lse in parts])
    highest_BHL = lse_PBHL.detach().amax(0)
    highest_BHL = torch.where(highest_BHL == -torch.inf, 0.0, highest_BHL)
    weight_PBHL = torch.exp(lse_PBHL - highest_BHL)
    total_BHL = weight_PBHL.sum(0)
    empty_BHL = total_BHL == 0
    safe_BHL = torch.where(empty_BHL, 1.0, total_BHL)
    share_PBHL = weight_PBHL / safe_BHL
    out_BHLD = torch.stack([out.to(lse_PBHL.dtype) for out, _ in parts])
    merged_BHLD = (share_PBHL.unsqueeze(-1) * out_BHLD).sum(0).to(parts[0][0].dtype)
    return merged_BHLD, torch.where(empty_BHL, -torch.inf, highest_BHL + torch.log(safe_BHL))
