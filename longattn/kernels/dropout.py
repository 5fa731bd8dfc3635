"""Dropout of attention weights as a function of (seed, batch, head, query, key), so that every kernel drops the same.

Counter-based as in Salmon et al. 2011 (Parallel random numbers: as easy as 1, 2, 3): no state, nothing kept for the
backward pass, and independent of the order in which tiles are computed. The mixer is the 32-bit finaliser of
C. Wellons (hash-prospector, `lowbias32`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longattn.errors import ConfigError


@dataclass(frozen=True)
class Dropout:
    """Drop attention weights with probability `p`, and scale the rest by 1 / (1 - p)."""

    p: float
    seed: int
    """Any integer of 31 bits; another one for each call."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.p < 1.0:
            raise ConfigError(f"dropout must be in [0, 1), got {self.p}")

    @property
    def threshold(self) -> int:
        """The int32 below which a lot keeps its weight; lots are uniform over the int32 range."""
        return min(int((1.0 - self.p) * 2**32) - 2**31, 2**31 - 1)

    @property
    def factor(self) -> float:
        """What kept weights are multiplied by."""
        return 1.0 / (1.0 - self.p)

    def factors(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0 or 1 / (1 - p) for int64 positions that broadcast against each other."""
        row = _mix(_mix(_mix(query.to(torch.int32) ^ self.seed) + head.to(torch.int32)) + batch.to(torch.int32))
        lot = _mix(row ^ _mix(key.to(torch.int32) + 0x3C6EF372))
        return (lot < self.threshold).to(dtype) * self.factor


def _mix(value: Tensor) -> Tensor:
    """Map int32 onto int32 one-to-one so that neighbours land far apart; wraps around on overflow."""
    value = value ^ _shift_right(value, 16)
    value = value * 0x7FEB352D
    value = value ^ _shift_right(value, 15)
    value = value * -0x7B935975
    return value ^ _shift_right(value, 16)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Shift as if unsigned."""
    return (value >> bits) & ((1 << (32 - bits)) - 1)
