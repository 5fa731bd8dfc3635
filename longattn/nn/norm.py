"""Normalisation: LayerNorm (Ba et al. 2016, arXiv 1607.06450), RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467)."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from longattn.errors import ConfigError

Norm = Literal["layer_norm", "rms_norm"]


def make_norm(norm: Norm, d_model: int, eps: float) -> nn.Module:
    """Return the normalisation over the last axis; ConfigError for an unknown name."""
    if norm == "layer_norm":
        return nn.LayerNorm(d_model, eps=eps)
    if norm == "rms_norm":
        return nn.RMSNorm(d_model, eps=eps)
    raise ConfigError(f"norm must be one of {', '.join(get_args(Norm))}, got {norm!r}")
