"""What the C++ operators are told of a pattern: which tiles to visit, and the masks of those seen in part."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longattn.patterns import BlockLayout, Pattern, Scope
from longattn.patterns.layout import cached_layout

_PAIRS_AT_ONCE = 1 << 22  # of partial tiles looked at together
_BLOCK_SIZE = 48
"""Tokens: whole panels of the products, and fine enough to follow the edge of a window; 32, 64, 96, 128 take longer."""

_LARGEST_NATURAL = 128  # tokens
_PADDING = 16  # tokens: the operators work on multiples of it


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The tiles of a block layout; all tensors on the CPU, in the order that the operators take them."""

    pattern: Pattern
    block_size: int
    batch: int
    heads: int
    computed_pairs: int
    """Query-key pairs computed for each head of each entry, on average."""

    starts: Tensor
    """(batch * heads * query_blocks + 1,) int64."""

    columns: Tensor
    """(tiles,) int32: key block of each tile."""

    masks: Tensor
    """(tiles,) int32: mask of each tile, -1 where all of it is visible."""

    visible: Tensor
    """(masks, keys, queries) uint8: 1 where visible."""

    first_key: Tensor
    """(masks,) int32: first key of each mask with a visible pair."""

    end_key: Tensor
    """(masks,) int32: one behind the last such key."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return [self.starts, self.columns, self.masks, self.visible, self.first_key, self.end_key]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A slice of queries and a slice of keys of a document of `length` tokens."""

    query_length: int
    key_length: int
    query_start: int = 0
    key_start: int = 0
    length: int

    def strided(self, step: int) -> Place:
        """Return the place of every `step`-th token, for slices that start at 0."""
        return Place(
            query_length=-(-self.query_length // step),
            key_length=-(-self.key_length // step),
            length=-(-self.length // step),
        )

    def layout(self, pattern: Pattern, num_heads: int, block_size: int) -> BlockLayout:
        """Return the block layout of `pattern` there."""
        starts = (self.query_start, self.key_start, self.length)
        return cached_layout(pattern, num_heads, self.query_length, self.key_length, block_size, *starts)


@functools.lru_cache(maxsize=64)  # one holds O(blocks seen) integers
def plan_of(pattern: Pattern, num_heads: int, places: tuple[Place, ...]) -> Plan:
    """Return the plan of `pattern` for a batch with one place per entry, or one for all; they differ in `length`."""
    with torch.device("cpu"):  # whatever the user's default device
        size = _block_size(pattern)
        by_place = {place: place.layout(pattern, num_heads, size) for place in places}
        parts = {place: _partial_masks(pattern, layout, place) for place, layout in by_place.items()}
        layout = BlockLayout.stack([by_place[place] for place in places])
        known: dict[bytes, int] = {}
        masks = torch.cat([_renumber(parts[place], known) for place in places])
        bits = np.frombuffer(b"".join(known), np.uint8).reshape(len(known), -(-size * size // 8))
        visible = torch.from_numpy(np.unpackbits(bits, axis=1, count=size * size)).view(-1, size, size)
        seen_keys = visible.amax(2)
        first_key, end_key = seen_keys.argmax(1), size - seen_keys.flip(1).argmax(1)
        computed_keys = torch.cat([end_key - first_key, torch.tensor([size])])[masks]  # -1 takes the last
        return Plan(
            pattern=pattern,
            block_size=size,
            batch=layout.batch,
            heads=layout.heads,
            computed_pairs=int(computed_keys.sum()) * size // (layout.batch * layout.heads),
            starts=layout.row_starts,
            columns=layout.columns.to(torch.int32),
            masks=masks.to(torch.int32),
            visible=visible,
            first_key=first_key.to(torch.int32),
            end_key=end_key.to(torch.int32),
        )


def _block_size(pattern: Pattern) -> int:
    """Return the block size for `pattern`, in tokens, a multiple of 16."""
    natural = pattern.natural_block_size or 1
    divisors = [size for size in range(_PADDING, _LARGEST_NATURAL + 1, _PADDING) if natural % size == 0]
    if divisors:
        return divisors[-1]
    if pattern.period is None or _BLOCK_SIZE % pattern.period == 0:
        return _BLOCK_SIZE
    multiples = range(pattern.period, _LARGEST_NATURAL + 1, pattern.period)  # of which few masks tell all
    return next((size for size in multiples if size % _PADDING == 0), _BLOCK_SIZE)


@dataclass(frozen=True, eq=False)
class _Masks:
    distinct: list[bytes]
    of_tile: Tensor
    """Index into `distinct`, -1 where all is visible."""


def _partial_masks(pattern: Pattern, layout: BlockLayout, place: Place) -> _Masks:
    """Return the masks, (keys, queries) as packed bits, of the tiles of `layout` that are seen in part."""
    size, of_tile = layout.block_size, torch.full_like(layout.columns, -1)
    known: dict[bytes, int] = {}
    partial = torch.nonzero(~layout.full).flatten()
    rows = layout.rows[partial]
    head, block, column = rows // layout.query_blocks, rows % layout.query_blocks, layout.columns[partial]
    if pattern.period is not None and size % pattern.period == 0:  # the mask depends on the distance alone
        kinds, kind_of_tile = torch.unique(torch.stack([head, column - block], 1), dim=0, return_inverse=True)
        head, offset = kinds.unbind(1)
        block, column = (-offset).clamp(min=0), offset.clamp(min=0)
        last_query = last_key = torch.iinfo(torch.int64).max
    else:
        kind_of_tile = torch.arange(partial.numel())
        last_query, last_key = layout.query_length - 1, layout.key_length - 1
    offsets, scope, mask_of_kind = torch.arange(size), Scope(length=place.length), torch.empty_like(head)
    for kinds_T in torch.arange(head.numel()).split(max(1, _PAIRS_AT_ONCE // size**2)):
        query = (block[kinds_T][:, None] * size + offsets)[:, None, :].clamp(max=last_query) + place.query_start
        key = (column[kinds_T][:, None] * size + offsets)[:, :, None].clamp(max=last_key) + place.key_start
        seen = pattern.sees(head[kinds_T][:, None, None], query, key, scope).expand(-1, size, size)
        packed = np.packbits(seen.flatten(1).numpy(), axis=1)
        numbers = [known.setdefault(row.tobytes(), len(known)) for row in packed]
        mask_of_kind[kinds_T] = torch.tensor(numbers, dtype=torch.int64)
    of_tile[partial] = mask_of_kind[kind_of_tile]
    return _Masks(list(known), of_tile)


def _renumber(masks: _Masks, known: dict[bytes, int]) -> Tensor:
    """Return `masks.of_tile` as indices into the keys of `known`, which grows."""
    number = [known.setdefault(mask, len(known)) for mask in masks.distinct]
    return torch.tensor([*number, -1])[masks.of_tile]  # -1 takes the last
