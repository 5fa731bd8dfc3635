"""Attention over block layouts in C++, compiled for the CPU at hand when it is first used."""

from __future__ import annotations

from longattn.kernels.native.engine import (
    CALL_COST,
    PAIR_COST,
    backward,
    computed_pairs,
    forward,
    unsupported_reason,
)
from longattn.kernels.native.library import known_missing, missing

__all__ = [
    "CALL_COST",
    "PAIR_COST",
    "backward",
    "computed_pairs",
    "forward",
    "known_missing",
    "missing",
    "unsupported_reason",
]
