"""Any layout of blocks that a user draws (as the kernels of Child et al. 2019, arXiv 1904.10509, took them)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from longattn.errors import ConfigError
from longattn.patterns.base import check_count
from longattn.patterns.blockwise import BlockwisePattern


@dataclass(frozen=True, init=False, repr=False)
class BlockSparse(BlockwisePattern):
    """Block `i` of queries sees block `j` of keys where `layout[i, j]`; two layouts with the same content are equal.

    A layout for more tokens than a document has is used up to the document's end; for fewer, `check_length` refuses.
    """

    block_size: int
    """Tokens per block."""

    shape: tuple[int, int, int]
    """(heads, blocks, blocks); heads is 1 where all heads share the layout."""

    bits: bytes
    """The layout, eight booleans a byte."""

    def __init__(self, layout: ArrayLike | Tensor | str | Path, block_size: int = 64) -> None:
        """Take (blocks, blocks) or (heads, blocks, blocks) booleans, or 0 and 1, or the path of an .npy file."""
        blocks = _read_layout(layout)
        object.__setattr__(self, "block_size", block_size)
        object.__setattr__(self, "shape", blocks.shape)
        object.__setattr__(self, "bits", np.packbits(blocks).tobytes())
        check_count(self, "block_size", 1)

    @property
    def natural_block_size(self) -> int:
        return self.block_size

    @property
    def depends_on_head(self) -> bool:
        return self.shape[0] > 1

    @property
    def blocks(self) -> Tensor:
        """The layout as a (heads, blocks, blocks) bool tensor, a copy of the caller's own."""
        return _table(self.bits, self.shape, torch.device("cpu")).clone()

    def sees_block(self, head: Tensor, query_block: Tensor, key_block: Tensor, length: int) -> Tensor:
        if self.shape[0] > 1 and head.numel() and int(head.max()) >= self.shape[0]:
            raise ConfigError(
                f"BlockSparse: the layout has {self.shape[0]} heads, head {int(head.max())} was asked for"
            )
        self.check_length(length)
        table = _table(self.bits, self.shape, query_block.device)
        return table[head if self.shape[0] > 1 else torch.zeros_like(head), query_block, key_block]

    def check_num_heads(self, num_heads: int) -> None:
        if self.shape[0] not in (1, num_heads):
            raise ConfigError(
                f"BlockSparse: the layout has {self.shape[0]} heads, the attention has {num_heads}; "
                "give a layout of as many heads, or one of (blocks, blocks) for all of them"
            )

    def check_length(self, length: int) -> None:
        covered = self.shape[1] * self.block_size
        if length > covered:
            raise ConfigError(
                f"BlockSparse: the layout of {self.shape[1]} blocks of {self.block_size} covers {covered} tokens, "
                f"the document has {length}; give a layout of at least {-(-length // self.block_size)} blocks"
            )

    def to_config(self) -> dict[str, Any]:
        rows = ["".join("1" if seen else "0" for seen in row) for row in self.blocks.flatten(0, 1).tolist()]
        return {"class": "BlockSparse", "block_size": self.block_size, "heads": self.shape[0], "rows": rows}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        rows = np.array([[int(seen) for seen in row] for row in fields["rows"]], dtype=bool)
        return cls(rows.reshape(fields["heads"], -1, rows.shape[1]), fields["block_size"])

    def __repr__(self) -> str:
        seen = int(self.blocks.sum())
        return (
            f"BlockSparse({seen} of {self.blocks.numel()} blocks in layout {self.shape}, block_size={self.block_size})"
        )


def _read_layout(layout: ArrayLike | Tensor | str | Path) -> np.ndarray[Any, np.dtype[np.bool_]]:
    source = "layout"
    if isinstance(layout, str | Path):
        source = f"layout file {str(layout)!r}"
        try:
            layout = np.load(layout, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"BlockSparse: cannot read {source} as .npy ({error})") from error
    if isinstance(layout, Tensor):
        layout = layout.detach().cpu()
        layout = layout.double() if layout.is_floating_point() else layout  # numpy has no bf16
    try:
        blocks = np.asarray(layout)
    except ValueError as error:
        raise ConfigError(f"BlockSparse: {source} is not a rectangular array ({error})") from error
    if blocks.ndim == 2:
        blocks = blocks[None]
    if blocks.ndim != 3 or blocks.shape[1] != blocks.shape[2] or 0 in blocks.shape:
        raise ConfigError(
            f"BlockSparse: {source} must be (blocks, blocks) or (heads, blocks, blocks), got shape {blocks.shape}"
        )
    if blocks.dtype != np.bool_ and not np.isin(blocks, (0, 1)).all():
        raise ConfigError(f"BlockSparse: {source} must hold booleans or 0 and 1, got dtype {blocks.dtype}")
    return blocks.astype(np.bool_)


@functools.lru_cache(maxsize=64)
def _table(bits: bytes, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    flat = np.unpackbits(np.frombuffer(bits, np.uint8), count=shape[0] * shape[1] * shape[2]).astype(np.bool_)
    return torch.from_numpy(flat).view(shape).to(device)
