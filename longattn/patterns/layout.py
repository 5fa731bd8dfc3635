"""A pattern as blocks: for each block of queries, the blocks of keys it sees, in full or in part."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longattn.patterns.scope import Scope

if TYPE_CHECKING:
    from longattn.patterns.base import Pattern

_PAIRS_AT_ONCE = 1 << 22  # bounds the scratch memory of building a layout, whatever the length


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockLayout:
    """Key blocks per query block, in compressed rows (CSR) over (batch, head, query block); all tensors on the CPU."""

    block_size: int
    """Tokens per block; the last block of a sequence may hold fewer."""

    query_length: int
    key_length: int

    batch: int
    """Entries of the batch; 1 where all of them are alike."""

    heads: int
    """Heads; 1 where all of them are alike."""

    row_starts: Tensor
    """(batch * heads * query_blocks + 1,) int64: row r holds the tiles row_starts[r] to row_starts[r + 1]."""

    columns: Tensor
    """(tiles,) int64: key block of each tile, ascending within a row."""

    full: Tensor
    """(tiles,) bool: True where every pair of the tile (within both lengths) is visible."""

    @property
    def query_blocks(self) -> int:
        """Blocks of queries, the last one maybe shorter."""
        return -(-self.query_length // self.block_size)

    @property
    def key_blocks(self) -> int:
        """Blocks of keys, the last one maybe shorter."""
        return -(-self.key_length // self.block_size)

    @property
    def rows(self) -> Tensor:
        """(tiles,) int64: row of each tile."""
        counts = self.row_starts.diff()
        return torch.repeat_interleave(torch.arange(counts.numel()), counts)

    @property
    def computed_pairs(self) -> int:
        """Query-key pairs in the tiles of one entry and one head, on average: what a blockwise kernel computes."""
        return self.columns.numel() * self.block_size**2 // max(1, self.batch * self.heads)

    @property
    def density(self) -> float:
        """Tiles over all tiles, from 0 to 1."""
        everything = self.batch * self.heads * self.query_blocks * self.key_blocks
        return self.columns.numel() / everything if everything else 0.0

    def kinds(self) -> Tensor:
        """Return (batch, heads, query_blocks, key_blocks) int8 for people and tests: 0 unseen, 1 in part, 2 in full."""
        kinds = torch.zeros(self.batch * self.heads * self.query_blocks, self.key_blocks, dtype=torch.int8)
        kinds[self.rows, self.columns] = 1 + self.full.to(torch.int8)
        return kinds.view(self.batch, self.heads, self.query_blocks, self.key_blocks)

    @staticmethod
    def stack(layouts: Sequence[BlockLayout]) -> BlockLayout:
        """Return the layout of a batch, given one layout per entry, all of the same lengths, blocks and heads."""
        first, starts = layouts[0], [torch.zeros(1, dtype=torch.int64)]
        for layout in layouts:
            assert (layout.batch, layout.heads, layout.query_blocks) == (1, first.heads, first.query_blocks)
            starts.append(layout.row_starts[1:] + starts[-1][-1])
        return dataclasses.replace(
            first,
            batch=len(layouts),
            row_starts=torch.cat(starts),
            columns=torch.cat([layout.columns for layout in layouts]),
            full=torch.cat([layout.full for layout in layouts]),
        )

    @staticmethod
    def from_tiles(
        *,
        block_size: int,
        query_length: int,
        key_length: int,
        batch: int,
        heads: int,
        rows: Tensor,
        columns: Tensor,
        full: Tensor,
    ) -> BlockLayout:
        """Build a layout from (tiles,) rows, columns and full flags, sorted by row and then by column."""
        row_count = batch * heads * -(-query_length // block_size)
        row_starts = torch.zeros(row_count + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(rows, minlength=row_count), 0, out=row_starts[1:])
        return BlockLayout(
            block_size=block_size,
            query_length=query_length,
            key_length=key_length,
            batch=batch,
            heads=heads,
            row_starts=row_starts,
            columns=columns,
            full=full,
        )


@functools.lru_cache(maxsize=128)
def cached_layout(
    pattern: Pattern,
    num_heads: int,
    query_length: int,
    key_length: int,
    block_size: int,
    query_start: int,
    key_start: int,
    length: int,
) -> BlockLayout:
    """Return the layout of `pattern` for queries and keys that start at the given positions of a document.

    Exact, and without global tokens. All numbers in tokens; `length` is the whole document's.
    """
    with torch.device("cpu"):  # whatever the user's default device
        builder = _Builder(pattern, query_length, key_length, block_size, query_start, key_start, Scope(length=length))
        heads = num_heads if pattern.depends_on_head else 1
        parts = [builder.head(head) for head in range(heads)]
        return BlockLayout.from_tiles(
            block_size=block_size,
            query_length=query_length,
            key_length=key_length,
            batch=1,
            heads=heads,
            rows=torch.cat([rows for rows, _, _ in parts]),
            columns=torch.cat([columns for _, columns, _ in parts]),
            full=torch.cat([full for _, _, full in parts]),
        )


class _Builder:
    """Sorts the tiles of a pattern into unseen, partial and full: by hint where it decides, else pair by pair."""

    def __init__(
        self,
        pattern: Pattern,
        query_length: int,
        key_length: int,
        block_size: int,
        query_start: int,
        key_start: int,
        scope: Scope,
    ) -> None:
        self.pattern, self.block_size, self.scope = pattern, block_size, scope
        self.query_first = torch.arange(0, query_length, block_size) + query_start
        self.key_first = torch.arange(0, key_length, block_size) + key_start
        self.query_end, self.key_end = query_start + query_length - 1, key_start + key_length - 1

    def head(self, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, columns and full flags of one head's tiles."""
        rows_at_once = max(1, _PAIRS_AT_ONCE // max(1, self.key_first.numel()))
        head_t = torch.tensor(head)
        found = []
        for start in range(0, self.query_first.numel(), rows_at_once):
            query_first = self.query_first[start : start + rows_at_once, None]
            query_last = (query_first + self.block_size - 1).clamp(max=self.query_end)
            key_last = (self.key_first + self.block_size - 1).clamp(max=self.key_end)
            hint = self.pattern.hint(head_t, query_first, query_last, self.key_first, key_last, self.scope)
            possible, certain = (part.expand(query_first.shape[0], self.key_first.numel()) for part in hint)
            rows, columns = torch.nonzero(possible, as_tuple=True)
            full = certain[rows, columns]
            rows = rows + start
            exact = self.pattern.hint_is_exact
            seen = torch.ones_like(full) if exact else self._resolve(head_t, rows, columns, full)
            found.append((rows[seen] + head * self.query_first.numel(), columns[seen], full[seen]))
        empty = torch.empty(0, dtype=torch.int64)
        if not found:
            return empty, empty, empty.bool()
        return tuple(torch.cat(part) for part in zip(*found, strict=True))  # type: ignore[return-value]

    def _resolve(self, head: Tensor, rows: Tensor, columns: Tensor, full: Tensor) -> Tensor:
        """Look at the pairs of every tile not yet full; set `full` in place, and return which tiles are seen at all."""
        seen = full.clone()
        step = max(1, _PAIRS_AT_ONCE // self.block_size**2)
        offsets = torch.arange(self.block_size)
        for tiles in torch.nonzero(~full).flatten().split(step):
            query = (self.query_first[rows[tiles]][:, None] + offsets)[:, :, None]
            key = (self.key_first[columns[tiles]][:, None] + offsets)[:, None, :]
            inside = (query <= self.query_end) & (key <= self.key_end)
            visible = self.pattern.sees(
                head, query.clamp(max=self.query_end), key.clamp(max=self.key_end), self.scope
            ).expand(inside.shape)
            seen[tiles] = (visible & inside).flatten(1).any(1)
            full[tiles] = (visible | ~inside).flatten(1).all(1)
        return seen
