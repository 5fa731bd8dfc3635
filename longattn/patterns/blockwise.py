"""The base of patterns that decide block by block: all pairs of two blocks are visible, or none of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longattn.patterns.base import Pattern
from longattn.patterns.scope import NO_SCOPE, Scope


@dataclass(frozen=True)
class BlockwisePattern(Pattern):
    """A pattern of whole blocks of `natural_block_size` tokens."""

    @property
    @abstractmethod
    def natural_block_size(self) -> int:
        """Tokens per block."""

    @abstractmethod
    def sees_block(self, head: Tensor, query_block: Tensor, key_block: Tensor, length: int) -> Tensor:
        """Return a bool tensor: does block `query_block` see `key_block` in a document of `length` tokens?"""

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        size = self.natural_block_size
        head = torch.as_tensor(head, device=query.device)
        return self.sees_block(head, query // size, key // size, scope.length_of(query, key))

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        size = self.natural_block_size
        query_block, key_block = query_first // size, key_first // size
        seen = self.sees_block(head, query_block, key_block, scope.length_of(query_last, key_last))
        one_block = (query_last // size == query_block) & (key_last // size == key_block)
        return seen | ~one_block, seen & one_block

    def mask_function(self, num_heads: int, length: int, device: torch.device) -> Callable[..., Tensor]:
        size, blocks = self.natural_block_size, -(-length // self.natural_block_size)
        heads = num_heads if self.depends_on_head else 1
        block = torch.arange(blocks, device="cpu")
        head_H11 = torch.arange(heads, device="cpu")[:, None, None]
        table = self.sees_block(head_H11, block[:, None], block, length)
        table = table.expand(heads, blocks, blocks).to(device)

        def visible(head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
            inside = (query < blocks * size) & (key < blocks * size)
            rows, columns = (query // size).clamp(max=blocks - 1), (key // size).clamp(max=blocks - 1)
            return table[head if heads > 1 else 0, rows, columns] & inside

        return visible
