"""The oracle: the textbook formula over an explicit mask (Vaswani et al. 2017, arXiv 1706.03762, sec. 3.2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from longattn.kernels.base import Kernel, Request


class Reference(Kernel):
    """softmax(Q Kᵀ · scale + bias) V with an L x S mask: slow, O(n²) memory, and plainly right."""

    name = "reference"

    @classmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        return None

    @classmethod
    def cost(cls, request: Request) -> float:
        pairs = request.bound.query_length * request.bound.key_length
        return 8.0 * pairs * request.batch * request.bound.num_heads

    @classmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        weights_BHLS, lse_BHL = attention_weights(q_BHLD, k_BHSD, request)
        out_BHLD = weights_BHLS @ v_BHSD.to(weights_BHLS.dtype)
        return out_BHLD.to(q_BHLD.dtype), lse_BHL


def attention_weights(q_BHLD: Tensor, k_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """Return weights_BHLS (after dropout, if any) and lse_BHL, both in `request.softmax_dtype`."""
    bound, dtype = request.bound, request.softmax_dtype
    scores_BHLS = q_BHLD.to(dtype) @ k_BHSD.to(dtype).transpose(-2, -1) * request.scale
    batch, head, query, key = grid(request)
    bias = request.bias_at(head, query, key)
    if bias is not None:
        scores_BHLS = scores_BHLS + bias
    if scores_BHLS.shape[-1] == 0:
        return scores_BHLS, scores_BHLS.sum(-1) - torch.inf
    scores_BHLS = scores_BHLS.masked_fill(~bound.mask(request.device), -torch.inf)
    highest_BHL1 = scores_BHLS.detach().amax(-1, keepdim=True)
    highest_BHL1 = torch.where(highest_BHL1 == -torch.inf, 0.0, highest_BHL1)
    powers_BHLS = torch.exp(scores_BHLS - highest_BHL1)
    total_BHL1 = powers_BHLS.sum(-1, keepdim=True)
    empty_BHL1 = total_BHL1 == 0
    safe_BHL1 = torch.where(empty_BHL1, 1.0, total_BHL1)
    weights_BHLS = powers_BHLS / safe_BHL1
    if request.dropout is not None:
        weights_BHLS = weights_BHLS * request.dropout.factors(batch, head, query, key, dtype)
    lse_BHL = torch.where(empty_BHL1, -torch.inf, highest_BHL1 + torch.log(safe_BHL1)).squeeze(-1)
    return weights_BHLS, lse_BHL


def grid(request: Request) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the indices (batch, head, query, key) of every pair, shaped to broadcast to (B, H, L, S)."""
    bound, device = request.bound, request.device
    return (
        torch.arange(request.batch, device=device)[:, None, None, None],
        torch.arange(bound.num_heads, device=device)[:, None, None],
        torch.arange(bound.query_length, device=device)[:, None],
        torch.arange(bound.key_length, device=device),
    )
