"""Cuts the visible pairs of a bound pattern into chunks: each pair in exactly one, none larger than a working buffer.

Three kinds of visible pairs: those of the block layout (tiles), those of any query with a global key (columns), and
those of a global query with any key (rows). The last two are strips of gathered tokens, so that G global tokens cost
O(n · G) and never a dense row of blocks.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longattn.patterns import BlockLayout, BoundPattern
from longattn.patterns.bind import gather_flags

_PAIRS_AT_ONCE = 1 << 22  # of partial tiles looked at together
BUFFER_PAIRS = 1 << 19  # scores computed together: 2 MiB in fp32, which stays in cache


class Chunk(ABC):
    """Some queries and, for each, some keys: R groups of b queries that share m keys.

    Tensors of tokens come as (B·H, N, ·) with N padded to whole blocks.
    """

    overwrites: bool
    """Whether no earlier chunk holds pairs of these queries."""

    @abstractmethod
    def take_query(self, x_NL: Tensor) -> Tensor:
        """(B·H, L, ...) -> (R, b, ...)."""

    @abstractmethod
    def take_key(self, x_NS: Tensor) -> Tensor:
        """(B·H, S, ...) -> (R, m, ...)."""

    @abstractmethod
    def put_query(self, x_NL: Tensor, part_Rb: Tensor) -> None:
        """Write (R, b, ...) to where `take_query` reads."""

    @abstractmethod
    def add_key(self, x_NS: Tensor, part_Rm: Tensor) -> None:
        """Add (R, m, ...) to where `take_key` reads; keys that appear twice get both."""

    @abstractmethod
    def hide(self, scores_Rbm: Tensor) -> None:
        """Set the scores of invisible pairs to -inf, in place."""

    @abstractmethod
    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (batch, head, query, key) indices that broadcast to (R, b, m)."""


@dataclass(frozen=True, eq=False)
class TileChunk(Chunk):
    """R blocks of queries and, for each, the same number of blocks of keys."""

    rows_R: Tensor
    """Query block, counted over (batch, head, query block)."""

    columns_Rc: Tensor
    """Key blocks, counted over (batch, head, key block)."""

    hidden: tuple[tuple[int, Tensor], ...]
    """(c, (b, b) or (R, b, b) bool): the invisible pairs of the c-th key block, where there are any."""

    block_size: int
    heads: int
    blocks: tuple[int, int]
    """Blocks of queries and of keys per sequence."""

    overwrites = True

    def take_query(self, x_NL: Tensor) -> Tensor:
        blocks = x_NL.view(-1, self.block_size, *x_NL.shape[2:])
        return blocks.index_select(0, self.rows_R)

    def take_key(self, x_NS: Tensor) -> Tensor:
        blocks = x_NS.view(-1, self.block_size, *x_NS.shape[2:])
        return blocks.index_select(0, self.columns_Rc.view(-1)).view(self.rows_R.numel(), -1, *x_NS.shape[2:])

    def put_query(self, x_NL: Tensor, part_Rb: Tensor) -> None:
        x_NL.view(-1, *part_Rb.shape[1:]).index_copy_(0, self.rows_R, part_Rb)

    def add_key(self, x_NS: Tensor, part_Rm: Tensor) -> None:
        blocks = x_NS.view(-1, self.block_size, *x_NS.shape[2:])
        blocks.index_add_(0, self.columns_Rc.view(-1), part_Rm.view(-1, *blocks.shape[1:]))

    def hide(self, scores_Rbm: Tensor) -> None:
        for column, hidden in self.hidden:
            scores_Rbm[:, :, column * self.block_size : (column + 1) * self.block_size].masked_fill_(hidden, -torch.inf)

    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        offsets = torch.arange(self.block_size, device=self.rows_R.device)
        sequence, block = self.rows_R // self.blocks[0], self.rows_R % self.blocks[0]
        query_Rb = block[:, None] * self.block_size + offsets
        key_Rm = ((self.columns_Rc % self.blocks[1])[:, :, None] * self.block_size + offsets).flatten(1)
        batch, head = (index[:, None, None] for index in (sequence // self.heads, sequence % self.heads))
        return batch, head, query_Rb[:, :, None], key_Rm[:, None, :]


@dataclass(frozen=True, eq=False)
class StripChunk(Chunk):
    """Gathered queries and gathered keys, for all heads of all entries: R = B · H."""

    query_Bb: Tensor
    key_Bm: Tensor
    hidden_Bbm: Tensor
    """(B, 1 or H, b, m) bool."""

    heads: int
    overwrites = False

    def _per_head(self, index_BN: Tensor, x: Tensor) -> Tensor:
        """(B, N) -> (B·H, N, ...) indices for gather and scatter along dimension 1."""
        index = index_BN.repeat_interleave(self.heads, 0)
        return index.view(*index.shape, *(1 for _ in x.shape[2:])).expand(-1, -1, *x.shape[2:])

    def take_query(self, x_NL: Tensor) -> Tensor:
        return x_NL.gather(1, self._per_head(self.query_Bb, x_NL))

    def take_key(self, x_NS: Tensor) -> Tensor:
        return x_NS.gather(1, self._per_head(self.key_Bm, x_NS))

    def put_query(self, x_NL: Tensor, part_Rb: Tensor) -> None:
        x_NL.scatter_(1, self._per_head(self.query_Bb, x_NL), part_Rb)

    def add_key(self, x_NS: Tensor, part_Rm: Tensor) -> None:
        x_NS.scatter_add_(1, self._per_head(self.key_Bm, x_NS), part_Rm)

    def hide(self, scores_Rbm: Tensor) -> None:
        batch = self.hidden_Bbm.shape[0]
        scores_Rbm.view(batch, self.heads, *scores_Rbm.shape[1:]).masked_fill_(self.hidden_Bbm, -torch.inf)

    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sequence = torch.arange(self.query_Bb.shape[0] * self.heads, device=self.query_Bb.device)
        batch, head = sequence // self.heads, sequence % self.heads
        return (
            batch[:, None, None],
            head[:, None, None],
            self.query_Bb[batch][:, :, None],
            self.key_Bm[batch][:, None, :],
        )


def chunks_of(bound: BoundPattern, batch: int, block_size: int, device: torch.device) -> list[Chunk]:
    """Return the chunks of `bound`, worked out once per batch, or once for all where nothing depends on the batch."""
    key = ("chunks", batch, block_size, device)
    if key not in bound.plans:
        with torch.device("cpu"):  # whatever the user's default device
            local = bound.without_globals()
            if local.identity is None:
                tiles = _tile_chunks(local, batch, block_size, device)
            else:
                tiles = _static_tile_chunks(_ByIdentity(local), batch, block_size, device)
            strips = list(_strip_chunks(bound, local, batch, device)) if bound.has_globals else []
            bound.plans[key] = [*tiles, *strips]
    chunks: list[Chunk] = bound.plans[key]
    return chunks


class _ByIdentity:
    """A bound pattern as a cache key."""

    def __init__(self, bound: BoundPattern) -> None:
        self.bound, self.identity = bound, bound.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.identity == other.identity


@functools.lru_cache(maxsize=16)  # one holds O(blocks seen) integers
def _static_tile_chunks(key: _ByIdentity, batch: int, block_size: int, device: torch.device) -> list[TileChunk]:
    return _tile_chunks(key.bound, batch, block_size, device)


def _tile_chunks(bound: BoundPattern, batch: int, block_size: int, device: torch.device) -> list[TileChunk]:
    layout = bound.layout(block_size)
    masks, mask_of_tile = _partial_masks(bound, layout, device)
    rows = _expand_rows(layout, batch, bound.num_heads)
    counts = layout.row_starts.diff()
    blocks = (layout.query_blocks, layout.key_blocks)
    chunks = []
    for count in counts.unique().tolist():
        if count == 0:
            continue
        chosen = counts[rows.layout_row] == count
        tiles_Rc = layout.row_starts[rows.layout_row[chosen]][:, None] + torch.arange(count)
        columns_Rc = layout.columns[tiles_Rc] + rows.sequence[chosen][:, None] * blocks[1]
        rows_R = rows.sequence[chosen] * blocks[0] + rows.layout_row[chosen] % max(1, blocks[0])
        at_once = max(1, BUFFER_PAIRS // (count * block_size**2))
        for start in range(0, rows_R.numel(), at_once):
            part = slice(start, start + at_once)
            chunks.append(
                TileChunk(
                    rows_R=rows_R[part].to(device),
                    columns_Rc=columns_Rc[part].to(device),
                    hidden=_hidden(masks, mask_of_tile[tiles_Rc[part]]),
                    block_size=block_size,
                    heads=bound.num_heads,
                    blocks=blocks,
                )
            )
    return chunks


@dataclass(frozen=True, eq=False)
class _Rows:
    """Every block row of every sequence (batch entry and head), with the row of the layout that describes it."""

    sequence: Tensor
    layout_row: Tensor


def _expand_rows(layout: BlockLayout, batch: int, heads: int) -> _Rows:
    entry = torch.arange(batch)[:, None, None]
    head = torch.arange(heads)[:, None]
    block = torch.arange(layout.query_blocks)
    own_entry = entry if layout.batch > 1 else torch.zeros_like(entry)
    own_head = head if layout.heads > 1 else torch.zeros_like(head)
    layout_row = (own_entry * layout.heads + own_head) * layout.query_blocks + block
    sequence = (entry * heads + head).expand(-1, -1, layout.query_blocks)
    return _Rows(sequence=sequence.flatten(), layout_row=layout_row.expand(sequence.shape).flatten())


def _partial_masks(bound: BoundPattern, layout: BlockLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the distinct masks of hidden pairs, (masks, b, b) bool, and the mask of each tile, -1 for none."""
    size, mask_of_tile = layout.block_size, torch.full_like(layout.columns, -1)
    known: dict[bytes, int] = {}
    last = layout.columns == layout.key_blocks - 1
    if layout.key_length % size and bool((layout.full & last).any()):
        past_the_end = (torch.arange(size) >= layout.key_length % size).expand(size, size)
        mask_of_tile[layout.full & last] = known.setdefault(_packed(past_the_end[None])[0], 0)
    rows, offsets = layout.rows, torch.arange(size)
    for tiles in torch.nonzero(~layout.full).flatten().split(max(1, _PAIRS_AT_ONCE // size**2)):
        block, sequence = rows[tiles] % layout.query_blocks, rows[tiles] // layout.query_blocks
        batch, head = (index[:, None, None] for index in (sequence // layout.heads, sequence % layout.heads))
        query = (block[:, None] * size + offsets)[:, :, None].clamp(max=layout.query_length - 1)
        key = (layout.columns[tiles][:, None] * size + offsets)[:, None, :]
        pairs = (batch, head, query, key.clamp(max=layout.key_length - 1))
        seen = bound.sees(*(index.to(device) for index in pairs)).cpu() & (key < layout.key_length)
        packed = _packed(~seen.expand(tiles.numel(), size, size))
        mask_of_tile[tiles] = torch.tensor([known.setdefault(mask, len(known)) for mask in packed], dtype=torch.int64)
    bits = np.frombuffer(b"".join(known), np.uint8).reshape(len(known), -(-size * size // 8))
    masks = np.unpackbits(bits, axis=1, count=size * size).astype(np.bool_)
    return torch.from_numpy(masks).view(-1, size, size).to(device), mask_of_tile


def _packed(masks_Tbb: Tensor) -> list[bytes]:
    """Return each mask as bytes, eight booleans a byte."""
    return [row.tobytes() for row in np.packbits(masks_Tbb.flatten(1).numpy(), axis=1)]


def _hidden(masks: Tensor, mask_Rc: Tensor) -> tuple[tuple[int, Tensor], ...]:
    """Return, for each key block with hidden pairs, its mask: one for all R rows where they agree."""
    hidden = []
    for column, mask_R in enumerate(mask_Rc.unbind(1)):
        if int(mask_R.max()) < 0:
            continue
        if bool((mask_R == mask_R[0]).all()):
            hidden.append((column, masks[int(mask_R[0])]))
        else:
            nothing = torch.zeros(1, *masks.shape[1:], dtype=torch.bool, device=masks.device)
            hidden.append((column, torch.cat([masks, nothing])[mask_R.to(masks.device)]))
    return tuple(hidden)


def _strip_chunks(bound: BoundPattern, local: BoundPattern, batch: int, device: torch.device) -> Iterator[StripChunk]:
    """Yield the pairs with a global key, then those of a global query with a key that is not global."""
    everyone = torch.arange(bound.query_length, device=device).expand(batch, -1)
    key_is_global = bound.key_is_global_BS
    if key_is_global is not None:
        keys, valid = gather_flags(key_is_global)
        if keys.shape[1]:
            step = max(1, BUFFER_PAIRS // (keys.shape[1] * bound.num_heads * batch))
            for query in everyone.split(step, 1):
                yield _strip(bound, local, query, keys, valid[:, None, None, :])
    if bound.query_is_global_BL is not None:
        queries, valid = gather_flags(bound.query_is_global_BL)
        keys = torch.arange(bound.key_length, device=device).expand(batch, -1)
        others = torch.ones_like(keys, dtype=torch.bool) if key_is_global is None else ~key_is_global
        step = max(1, BUFFER_PAIRS // (keys.shape[1] * bound.num_heads * batch))
        for start in range(0, queries.shape[1], step):
            part = slice(start, start + step)
            wanted = valid[:, None, part, None] & others[:, None, None, :]
            yield _strip(bound, local, queries[:, part], keys, wanted)


def _strip(bound: BoundPattern, local: BoundPattern, query: Tensor, key: Tensor, wanted: Tensor) -> StripChunk:
    batch = torch.arange(query.shape[0], device=query.device)[:, None, None, None]
    head = torch.arange(bound.mask_heads, device=query.device)[:, None, None]
    pair = (batch, head, query[:, None, :, None], key[:, None, None, :])
    seen = bound.sees(*pair) & ~local.sees(*pair) & wanted
    shape = (query.shape[0], bound.mask_heads, query.shape[1], key.shape[1])
    return StripChunk(query_Bb=query, key_Bm=key, hidden_Bbm=~seen.expand(shape), heads=bound.num_heads)
