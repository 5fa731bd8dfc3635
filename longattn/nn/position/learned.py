"""One learned vector per position (Devlin et al. 2019, arXiv 1810.04805, sec. 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from longattn.errors import ConfigError
from longattn.nn.position.base import Position


@dataclass(frozen=True, kw_only=True)
class Learned(Position):
    """A table of `max_length` trained vectors, added to the token embeddings; longer documents are refused."""

    name = "learned"

    max_length: int = 4096
    """Rows of the table: tokens of the longest document."""

    def __post_init__(self) -> None:
        if isinstance(self.max_length, bool) or not isinstance(self.max_length, int) or self.max_length < 1:
            raise ConfigError(f"Learned: max_length must be an integer >= 1, got {self.max_length!r}")

    def check_positions(self, position_ids: Tensor, *, given: bool) -> None:
        # Positions that were counted stay below the row's length, so most batches need no look at the values.
        if position_ids.numel() == 0 or (position_ids.shape[1] <= self.max_length and not given):
            return
        lowest, highest = (int(position) for position in position_ids.aminmax())
        if lowest < 0:
            raise ConfigError(f"position_ids must be >= 0, got {lowest}")
        length = 1 + highest
        if length > self.max_length:
            raise ConfigError(
                f"a document of {length} tokens is longer than the learned position table of {self.max_length} rows: "
                "cut the documents, raise position.max_length, or use position 'rope'"
            )

    def embedding(self, d_model: int) -> nn.Module:
        return nn.Embedding(self.max_length, d_model)
