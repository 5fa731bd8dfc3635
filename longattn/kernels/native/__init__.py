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
from longattn.kernels.native.memory import CpuMemory, cpu_memory, reuse_cpu_memory

__all__ = [
    "CALL_COST",
    "PAIR_COST",
    "CpuMemory",
    "backward",
    "computed_pairs",
    "cpu_memory",
    "forward",
    "known_missing",
    "missing",
    "reuse_cpu_memory",
    "unsupported_reason",
]
