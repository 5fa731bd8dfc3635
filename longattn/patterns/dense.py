"""Every token sees every token, or every token before it (Vaswani et al. 2017, arXiv 1706.03762, sec. 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from longattn.patterns.base import Pattern
from longattn.patterns.scope import NO_SCOPE, Scope


@dataclass(frozen=True)
class Dense(Pattern):
    """Every query sees every key; the only pattern with a meaning in cross-attention."""

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        shape = torch.broadcast_shapes(torch.as_tensor(head, device=query.device).shape, query.shape, key.shape)
        return torch.ones((), dtype=torch.bool, device=query.device).expand(shape)

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        everything = self.sees(head, query_first, key_first)
        return everything, everything

    @property
    def hint_is_exact(self) -> bool:
        return True

    @property
    def period(self) -> int:
        return 1

    def every(self, step: int) -> Self:
        return self

    @property
    def allows_cross_attention(self) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees itself and the keys before it."""

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        return key <= query

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        return key_first <= query_last, key_last <= query_first

    @property
    def hint_is_exact(self) -> bool:
        return True

    @property
    def period(self) -> int:
        return 1

    def every(self, step: int) -> Self:
        return self
