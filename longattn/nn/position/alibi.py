"""Attention with linear biases (Press et al. 2022, arXiv 2108.12409, sec. 3), the same in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from longattn.kernels import ScoreBias
from longattn.nn.position.base import Position


@dataclass(frozen=True, kw_only=True)
class Alibi(Position):
    """Lowers each score by the distance times a slope of the head: -slope * |query - key|."""

    name = "alibi"
    uses_position_ids = False

    def bias(self, num_heads: int) -> ScoreBias:
        return AlibiBias(num_heads)


@dataclass(frozen=True)
class AlibiBias:
    """The bias of `Alibi` for a number of heads; equal values are interchangeable, so kernels may cache by it."""

    num_heads: int
    is_relative: ClassVar[bool] = True

    def __call__(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return -slope(head) * |query - key| as fp32."""
        return -self.slopes(head) * (query - key).abs()

    def slopes(self, head: Tensor) -> Tensor:
        """Return the slopes of the heads, fp32: 2 ** (-8 (head + 1) / num_heads) for a power of two.

        Other counts take those of the next lower power of two, and for the rest every other slope of the next higher
        one, as the paper's code does.
        """
        power = 1 << (self.num_heads.bit_length() - 1)
        index = head.to(torch.float32)
        exponent = torch.where(head < power, 2 * (index + 1), 2 * (index - power) + 1)
        return torch.exp2(exponent * (-4.0 / power))
