"""Rotary positions (Su et al. 2021, arXiv 2104.09864, sec. 3.2), with scaling for documents longer than trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from longattn.errors import ConfigError
from longattn.nn.position.base import Position, inverse_frequencies, table_dtype
from longattn.nn.rotation import Rotation

Scaling = Literal["none", "linear", "ntk"]


@dataclass(frozen=True, kw_only=True)
class Rope(Position):
    """Turns pairs of dimensions of queries and keys by an angle that grows with the position.

    A score then depends on the distance alone. Pairs are dimension i with i + head_dim / 2 (as GPT-NeoX and
    transformers have them), so imported weights need no permutation.
    """

    name = "rope"

    base: float = 10_000.0
    """Ratio of the slowest to the fastest rotation; larger reaches further (ModernBERT's dense layers: 160,000)."""

    scaling: Scaling = "none"
    """How `factor` stretches a trained model to longer documents: "linear" divides the positions (Chen et al. 2023,
    arXiv 2306.15595), "ntk" raises the base, which keeps near distances sharp (bloc97 2023, NTK-aware)."""

    factor: float = 1.0
    """Length wanted over length trained on."""

    def __post_init__(self) -> None:
        if not self.base > 1.0:
            raise ConfigError(f"Rope: base must be > 1, got {self.base!r}")
        if self.scaling not in get_args(Scaling):
            raise ConfigError(f"Rope: scaling must be one of {', '.join(get_args(Scaling))}, got {self.scaling!r}")
        if not self.factor >= 1.0:
            raise ConfigError(f"Rope: factor must be >= 1, got {self.factor!r}")
        if self.scaling == "none" and self.factor != 1.0:
            raise ConfigError(
                f"Rope: factor {self.factor} has no effect with scaling 'none': set scaling to 'linear' or 'ntk'"
            )

    def check_dimensions(self, d_model: int, num_heads: int) -> None:
        head_dim = d_model // num_heads
        if head_dim % 2 or (self.scaling == "ntk" and head_dim < 4):
            least = "an even head dimension" + (" of at least 4" if self.scaling == "ntk" else "")
            raise ConfigError(f"Rope needs {least}, got d_model {d_model} / num_heads {num_heads} = {head_dim}")

    def rotation(self, position_ids: Tensor, head_dim: int, dtype: torch.dtype) -> Rotation:
        position, base = position_ids.to(torch.float64), self.base
        if self.scaling == "linear":
            position = position / self.factor
        elif self.scaling == "ntk":
            base = base * self.factor ** (head_dim / (head_dim - 2))
        angles = position.unsqueeze(-1) * inverse_frequencies(head_dim, base, position_ids.device)
        return Rotation(cos_BLR=angles.cos().to(table_dtype(dtype)), sin_BLR=angles.sin().to(table_dtype(dtype)))
