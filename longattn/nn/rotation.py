"""Turns pairs of dimensions of queries and keys by given angles (Su et al. 2021, arXiv 2104.09864, sec. 3.4.2).

Shapes: B batch (1 where all rows are alike), H heads, L tokens, D head dimension, R = D / 2 pairs, G chosen tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Rotation:
    """The angles of a batch, made once and shared by its layers; fp32 (fp64 for fp64) whatever the model's dtype."""

    cos_BLR: Tensor
    sin_BLR: Tensor

    def __call__(self, x_BHLD: Tensor) -> Tensor:
        """Return `x_BHLD` turned, in its own dtype; the arithmetic is done in the dtype of the tables."""
        rotated: Tensor = _Rotate.apply(x_BHLD, self.cos_BLR.unsqueeze(1), self.sin_BLR.unsqueeze(1))  # type: ignore[no-untyped-call]
        return rotated

    def at(self, index_BG: Tensor) -> Rotation:
        """Return the rotation of the tokens `index_BG` alone."""
        batch = torch.zeros_like(index_BG) if self.cos_BLR.shape[0] == 1 else _rows_like(index_BG)
        return Rotation(cos_BLR=self.cos_BLR[batch, index_BG], sin_BLR=self.sin_BLR[batch, index_BG])


class _Rotate(torch.autograd.Function):
    """Keeps nothing but the shared tables for the backward pass, which turns the gradient back."""

    @staticmethod
    def forward(ctx: Any, x_BHLD: Tensor, cos_B1LR: Tensor, sin_B1LR: Tensor) -> Tensor:
        ctx.save_for_backward(cos_B1LR, sin_B1LR)
        wide_BHLD = x_BHLD.to(cos_B1LR.dtype)
        first_BHLR, second_BHLR = wide_BHLD.chunk(2, dim=-1)
        out_BHLD = torch.empty_like(wide_BHLD)
        out_first_BHLR, out_second_BHLR = out_BHLD.chunk(2, dim=-1)
        torch.mul(first_BHLR, cos_B1LR, out=out_first_BHLR).addcmul_(second_BHLR, sin_B1LR, value=-1)
        torch.mul(second_BHLR, cos_B1LR, out=out_second_BHLR).addcmul_(first_BHLR, sin_B1LR)
        return out_BHLD.to(x_BHLD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        cos_B1LR, sin_B1LR = ctx.saved_tensors
        gradient: Tensor = _Rotate.apply(gradients[0], cos_B1LR, -sin_B1LR)  # type: ignore[no-untyped-call]
        return gradient, None, None


def _rows_like(index_BG: Tensor) -> Tensor:
    return torch.arange(index_BG.shape[0], device=index_BG.device)[:, None].expand_as(index_BG)
