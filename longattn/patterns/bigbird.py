"""Window, global and random blocks (Zaheer et al. 2020, arXiv 2007.14062, sec. 2 and app. D: BigBird-ITC)."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from longattn.errors import ConfigError
from longattn.patterns.base import check_count
from longattn.patterns.blockwise import BlockwisePattern

_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class BigBird(BlockwisePattern):
    """Each block sees a window of blocks, the first and last blocks, and some random ones; first and last see all.

    Global blocks alternate between both ends, the start first: 2 = the first and the last. Random blocks are drawn
    without replacement from the blocks not seen already, as a function of (seed, layer, head, block row) alone; a
    document with too few blocks has them all.
    """

    block_size: int = 64
    """Tokens per block."""

    window_blocks: int = 3
    """Blocks in the window, the query's own one included; odd."""

    global_blocks: int = 2
    """Blocks that see all blocks and are seen by all."""

    random_blocks: int = 3
    """Further blocks that each block of queries sees, other ones for each head and layer."""

    seed: int = 0
    """Chooses the random blocks."""

    layer: int = 0
    """Layer of the model, set by `for_layer`."""

    def __post_init__(self) -> None:
        for name, minimum in (("block_size", 1), ("window_blocks", 1), ("global_blocks", 0), ("random_blocks", 0)):
            check_count(self, name, minimum)
        check_count(self, "layer", 0)
        check_count(self, "seed", 0)
        if self.seed >= 2**63:
            raise ConfigError(f"BigBird: seed must be below 2**63, got {self.seed}")
        if self.window_blocks % 2 == 0:
            raise ConfigError(
                f"BigBird: window_blocks must be odd (as many blocks on each side), got {self.window_blocks}"
            )

    @property
    def natural_block_size(self) -> int:
        return self.block_size

    @property
    def depends_on_head(self) -> bool:
        return self.random_blocks > 0

    @property
    def depends_on_length(self) -> bool:
        return self.random_blocks > 0 or self.global_blocks > 1

    def for_layer(self, index: int) -> Self:
        return dataclasses.replace(self, layer=index)

    def sees_block(self, head: Tensor, query_block: Tensor, key_block: Tensor, length: int) -> Tensor:
        blocks = -(-length // self.block_size)
        seen = self._always_seen(query_block, key_block, blocks)
        if self.random_blocks and blocks:
            heads = 1 + (int(head.max()) if head.numel() else 0)
            drawn = torch.stack([_random_blocks(self, blocks, h) for h in range(heads)]).to(query_block.device)
            for choice in drawn[head, query_block.clamp(max=blocks - 1)].unbind(-1):
                seen = seen | (key_block == choice)
        return seen & (query_block < blocks) & (key_block < blocks)  # there may be padding behind the document

    def _always_seen(self, query_block: Tensor, key_block: Tensor, blocks: int) -> Tensor:
        near = (query_block - key_block).abs() <= self.window_blocks // 2
        return near | self._is_global(query_block, blocks) | self._is_global(key_block, blocks)

    def _is_global(self, block: Tensor, blocks: int) -> Tensor:
        at_start, at_end = -(-self.global_blocks // 2), self.global_blocks // 2
        return (block < at_start) | (block >= blocks - at_end)


@functools.lru_cache(maxsize=1024)
def _random_blocks(pattern: BigBird, blocks: int, head: int) -> Tensor:
    """Return (blocks, random_blocks) int64: the key blocks drawn, -1 where there is none left to draw."""
    drawn = torch.full((blocks, pattern.random_blocks), -1, device="cpu")
    columns = torch.arange(blocks, device="cpu")
    count = min(pattern.random_blocks, blocks)
    for start in range(0, blocks, _ROWS_AT_ONCE):
        rows = torch.arange(start, min(start + _ROWS_AT_ONCE, blocks), device="cpu")[:, None]
        lots = _hash(_hash(_hash(_hash(pattern.seed, pattern.layer), head), rows), columns)
        lots = lots.masked_fill(pattern._always_seen(rows, columns, blocks), -1)
        highest, chosen = lots.topk(count, dim=1)
        drawn[start : start + _ROWS_AT_ONCE, :count] = chosen.masked_fill(highest < 0, -1)
    return drawn


def _hash(state: int | Tensor, value: int | Tensor) -> Tensor:
    """Mix integers into one of 62 bits (the finaliser of SplitMix64; Steele et al. 2014), with no generator's state."""
    state, value = (torch.as_tensor(x, device="cpu") for x in (state, value))
    mixed = state * 0x5851F42D4C957F2D + value + 0x14057B7EF767814F
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (mixed ^ ((mixed >> 31) & ((1 << 33) - 1))) & ((1 << 62) - 1)
