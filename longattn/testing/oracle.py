"""Attention written out from its definition, for any precision: the judge of every kernel, the reference one too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """What attention gives, forward and backward, from given gradients of both results."""

    out_BHLD: Tensor
    lse_BHL: Tensor
    grad_q_BHLD: Tensor
    grad_k_BHSD: Tensor
    grad_v_BHSD: Tensor

    def named(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return dict(vars(self))


def naive_attention(
    inputs: tuple[Tensor, Tensor, Tensor],
    visible_BHLS: Tensor,
    grad_out_BHLD: Tensor,
    grad_lse_BHL: Tensor,
    bias_BHLS: Tensor | float = 0.0,
) -> AttentionResult:
    """Return attention over the visible pairs in the precision of `inputs` (q, k, v), with its exact gradients.

    Rows without a visible key give output 0, lse -inf, and no gradient.
    """
    q_BHLD, k_BHSD, v_BHSD = inputs
    scale = 1.0 / math.sqrt(q_BHLD.shape[-1])
    scores_BHLS = q_BHLD @ k_BHSD.transpose(-2, -1) * scale + bias_BHLS
    scores_BHLS = scores_BHLS.masked_fill(~visible_BHLS, -math.inf)
    empty_BHL = ~visible_BHLS.any(-1)
    weights_BHLS = torch.softmax(scores_BHLS, -1).masked_fill(empty_BHL[..., None], 0.0)
    out_BHLD = weights_BHLS @ v_BHSD
    grad_weights_BHLS = grad_out_BHLD @ v_BHSD.transpose(-2, -1)
    row_sum_BHL = (grad_weights_BHLS * weights_BHLS).sum(-1)
    grad_scores_BHLS = weights_BHLS * (grad_weights_BHLS - (row_sum_BHL - grad_lse_BHL)[..., None])
    return AttentionResult(
        out_BHLD=out_BHLD,
        lse_BHL=torch.logsumexp(scores_BHLS, -1),
        grad_q_BHLD=grad_scores_BHLS @ k_BHSD * scale,
        grad_k_BHSD=grad_scores_BHLS.transpose(-2, -1) @ q_BHLD * scale,
        grad_v_BHSD=weights_BHLS.transpose(-2, -1) @ grad_out_BHLD,
    )
