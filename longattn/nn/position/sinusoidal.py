"""Fixed sines and cosines, added to the embeddings (Vaswani et al. 2017, arXiv 1706.03762, sec. 3.5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longattn.errors import ConfigError
from longattn.nn.position.base import Position, inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Position):
    """Even dimensions hold sin(position * base ** (-2 i / d_model)), odd ones the cosine."""

    name = "sinusoidal"

    base: float = 10_000.0
    """Ratio of the longest to the shortest wavelength."""

    def __post_init__(self) -> None:
        if not self.base > 1.0:
            raise ConfigError(f"Sinusoidal: base must be > 1, got {self.base!r}")

    def check_dimensions(self, d_model: int, num_heads: int) -> None:
        if d_model % 2:
            raise ConfigError(f"Sinusoidal needs an even d_model, got {d_model}")

    def embedding(self, d_model: int) -> nn.Module:
        return SinusoidalEmbedding(d_model, self.base)


class SinusoidalEmbedding(nn.Module):
    """Computes the waves at the positions asked for; has no buffer that `.to(bfloat16)` could round."""

    def __init__(self, d_model: int, base: float) -> None:
        super().__init__()
        self.d_model, self.base = d_model, base

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the waves at `position_ids` (B, L) as fp32, (B, L, d_model)."""
        frequencies = inverse_frequencies(self.d_model, self.base, position_ids.device)
        angles = position_ids.to(torch.float64).unsqueeze(-1) * frequencies
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(torch.float32)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, base={self.base}"
