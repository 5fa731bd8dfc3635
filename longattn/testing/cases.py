"""Patterns and batch conditions that every kernel must get right; a new pattern class needs an entry here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longattn.patterns import (
    BigBird,
    BlockSparse,
    Causal,
    Dense,
    Fixed,
    Longformer,
    Pattern,
    SlidingWindow,
    Strided,
)

HEADS = 3


def _random_layout(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.25


PATTERN_CASES: dict[str, Pattern] = {
    "dense": Dense(),
    "causal": Causal(),
    "window": SlidingWindow(radius=17),
    "window_itself": SlidingWindow(radius=0),
    "window_dilated": SlidingWindow(radius=5, dilation=3),
    "longformer": Longformer(radius=9),
    "longformer_causal": Longformer(radius=9) & Causal(),
    "bigbird": BigBird(block_size=16, random_blocks=2),
    "bigbird_no_global": BigBird(block_size=64, window_blocks=1, global_blocks=0, random_blocks=1, seed=3),
    "block_sparse": BlockSparse(_random_layout(64, 64), block_size=16),
    "block_sparse_per_head": BlockSparse(_random_layout(HEADS, 126, 126), block_size=8),
    "strided": Strided(stride=24),
    "strided_split_heads": Strided(stride=16, split_heads=True),
    "fixed": Fixed(stride=32, summary=3),
    "fixed_split_heads": Fixed(stride=24, summary=4, split_heads=True),
    "union": SlidingWindow(radius=7) | BigBird(block_size=8, window_blocks=1, random_blocks=1),
    "intersection": Strided(stride=12) & Causal(),
}
"""Small versions of every pattern, for documents of up to 1008 tokens and 3 heads."""


@dataclass(frozen=True, eq=False)
class Condition:
    """What a batch of two documents adds to a pattern; each tensor as `longattn.attention` takes it."""

    name: str
    key_padding: Tensor | None = None
    document: Tensor | None = None
    is_global: Tensor | None = None

    def arguments(self) -> dict[str, Tensor | None]:
        """Return the keyword arguments for `longattn.attention`."""
        return {"key_padding": self.key_padding, "document": self.document, "is_global": self.is_global}

    def visible(self, pattern: Pattern, heads: int, length: int) -> Tensor:
        """Return who sees whom, (2, heads, length, length), pair by pair from the specification."""
        from longattn.patterns import Scope

        head = torch.arange(heads)[:, None, None]
        query, key = torch.arange(length)[:, None], torch.arange(length)
        entries = []
        for entry in range(2):
            flags = None if self.is_global is None else self.is_global[entry]
            real = torch.ones(length, dtype=torch.bool)
            if self.key_padding is not None:
                real = real & self.key_padding[entry]
            if self.document is not None:
                real = real & (self.document[entry] >= 0)
            scope = Scope(
                length=max(1, int((real * torch.arange(1, length + 1)).max())),
                query_is_global=None if flags is None else flags[:, None],
                key_is_global=flags,
            )
            seen = pattern.sees(head, query, key, scope).expand(heads, length, length)
            if self.key_padding is not None:
                seen = seen & self.key_padding[entry]
            if self.document is not None:
                document = self.document[entry]
                seen = seen & (document[:, None] == document) & (document >= 0)
            entries.append(seen)
        return torch.stack(entries)


def conditions_for(pattern: Pattern, length: int) -> list[Condition]:
    """Return the conditions that make sense for `pattern`: none, padding, packed documents, uneven global tokens."""
    token = torch.arange(length)
    padding = torch.stack([token < max(1, length // 2), token < length - 1])
    packed = torch.stack([token // 37, torch.where(token < length - 3, token // 150, -1)])
    conditions = [Condition("none"), Condition("padding", key_padding=padding), Condition("packed", document=packed)]
    if pattern.uses_globals:
        is_global = torch.zeros(2, length, dtype=torch.bool)
        is_global[0, [0, length // 3, length - 1]] = True
        conditions.append(Condition("globals", is_global=is_global))
        conditions.append(Condition("globals_padding", is_global=is_global.flip(0), key_padding=padding))
        conditions.append(Condition("globals_packed", is_global=is_global.flip(0), document=packed))
    return conditions
