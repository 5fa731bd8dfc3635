"""Helpers for tests of patterns and kernels, ours and those that users add."""

from __future__ import annotations

from longattn.testing.cases import PATTERN_CASES, Condition, conditions_for
from longattn.testing.oracle import AttentionResult, naive_attention
from longattn.testing.tolerance import assert_within_budget

__all__ = [
    "PATTERN_CASES",
    "AttentionResult",
    "Condition",
    "assert_within_budget",
    "conditions_for",
    "naive_attention",
]
