"""Warns of precisions that the machine computes far more slowly than fp32."""

from __future__ import annotations

import logging

import torch

_log = logging.getLogger(__name__)


def warn_if_slow(precision: str, device: torch.device) -> None:
    """Log a warning if `precision`, as Lightning names it, needs instructions that the CPU `device` has not."""
    if device.type != "cpu":
        return
    for name, supported in (
        ("bf16", torch.ops.mkldnn._is_mkldnn_bf16_supported),
        ("16", torch.ops.mkldnn._is_mkldnn_fp16_supported),
    ):
        if precision.startswith(name):
            if not supported():
                _log.warning(
                    "precision %s: this CPU has no instructions for it, so that a step may take 100 times as long as "
                    "in fp32; use --trainer.precision 32-true",
                    precision,
                )
            return
