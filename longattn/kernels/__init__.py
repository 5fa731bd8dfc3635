"""Kernels: how attention over a pattern is computed. A new one is a file in this folder; it is found by its name."""

from __future__ import annotations

from longattn.kernels.base import Kernel, Request, ScoreBias
from longattn.kernels.dropout import Dropout
from longattn.kernels.merge import merge
from longattn.kernels.select import attention, available, check_kernel_name, kernels, select

__all__ = [
    "Dropout",
    "Kernel",
    "Request",
    "ScoreBias",
    "attention",
    "available",
    "check_kernel_name",
    "kernels",
    "merge",
    "select",
]
