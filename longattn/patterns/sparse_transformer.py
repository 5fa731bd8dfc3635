"""The factorised patterns of the Sparse Transformer, read both ways (Child et al. 2019, arXiv 1904.10509, sec. 4.3).

The paper's are causal: write `Strided(...) & Causal()` for those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longattn.errors import ConfigError
from longattn.patterns.base import Pattern, check_count
from longattn.patterns.dense import Dense
from longattn.patterns.scope import NO_SCOPE, Scope
from longattn.patterns.sliding_window import SlidingWindow


@dataclass(frozen=True)
class Strided(Pattern):
    """Sees the near tokens and every `stride`-th one: |q - k| <= stride or (q - k) % stride == 0."""

    stride: int = 128
    """Tokens; about the square root of the document's length costs least."""

    split_heads: bool = False
    """Even heads see the near tokens, odd heads every stride-th one, instead of every head both."""

    def __post_init__(self) -> None:
        check_count(self, "stride", 1)

    @property
    def depends_on_head(self) -> bool:
        return self.split_heads

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        distance = query - key
        return self._either(head, distance.abs() <= self.stride, distance % self.stride == 0)

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        lowest, highest = query_first - key_last, query_last - key_first
        near = (lowest <= self.stride) & (highest >= -self.stride)
        all_near = (lowest >= -self.stride) & (highest <= self.stride)
        hit = torch.div(highest, self.stride, rounding_mode="floor") * self.stride >= lowest
        only = hit & ((lowest == highest) | (self.stride == 1))
        return self._either(head, near, hit), self._either(head, all_near, only)

    @property
    def hint_is_exact(self) -> bool:
        return True  # a block's distances are a run, and of a run longer than 1 only nearness shows all

    def _either(self, head: Tensor, near: Tensor, strided: Tensor) -> Tensor:
        if not self.split_heads:
            return near | strided
        return torch.where(torch.as_tensor(head, device=near.device) % 2 == 0, near, strided)

    @property
    def period(self) -> int:
        return 1

    def terms(self) -> tuple[tuple[int, Pattern], ...]:
        near = SlidingWindow(radius=self.stride)
        if self.split_heads:
            return ((1, _SomeHeads(near, parity=0)), (self.stride, _SomeHeads(Dense(), parity=1)))
        return ((1, near), (self.stride, _Beyond(radius=1)))


@dataclass(frozen=True)
class Fixed(Pattern):
    """Sees the tokens of its own block of `stride`, and the last `summary` tokens of every block."""

    stride: int = 128
    """Tokens per block."""

    summary: int = 8
    """Tokens at the end of each block that every query sees (c in the paper)."""

    split_heads: bool = False
    """Even heads see their own block, odd heads the summaries, instead of every head both."""

    def __post_init__(self) -> None:
        check_count(self, "stride", 1)
        check_count(self, "summary", 1)
        if self.summary > self.stride:
            raise ConfigError(f"Fixed: summary ({self.summary}) must not exceed stride ({self.stride})")

    @property
    def depends_on_head(self) -> bool:
        return self.split_heads

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        own = query // self.stride == key // self.stride
        return self._either(head, own, key % self.stride >= self.stride - self.summary)

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        stride, first_summary = self.stride, self.stride - self.summary
        may_be_own = (query_first // stride <= key_last // stride) & (key_first // stride <= query_last // stride)
        all_own = (query_first // stride == key_last // stride) & (key_first // stride == query_last // stride)
        has_summary = (key_last % stride >= first_summary) | (key_last // stride > key_first // stride)
        all_summary = (key_first % stride >= first_summary) & (key_last // stride == key_first // stride)
        return self._either(head, may_be_own, has_summary), self._either(head, all_own, all_summary)

    def _either(self, head: Tensor, own: Tensor, summary: Tensor) -> Tensor:
        if not self.split_heads:
            return own | summary
        return torch.where(torch.as_tensor(head, device=own.device) % 2 == 0, own, summary)

    @property
    def period(self) -> int:
        return self.stride


@dataclass(frozen=True)
class _Beyond(Pattern):
    """Sees what a window does not: |q - k| > radius."""

    radius: int

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        return (query - key).abs() > self.radius

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        lowest, highest = query_first - key_last, query_last - key_first
        return (lowest < -self.radius) | (highest > self.radius), (lowest > self.radius) | (highest < -self.radius)

    @property
    def hint_is_exact(self) -> bool:
        return True

    @property
    def period(self) -> int:
        return 1


@dataclass(frozen=True)
class _SomeHeads(Pattern):
    """A pattern that heads of one parity see, while the others see nothing."""

    pattern: Pattern
    parity: int

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        return self.pattern.sees(head, query, key, scope) & self._own(head, query)

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        hint = self.pattern.hint(head, query_first, query_last, key_first, key_last, scope)
        possible, certain = (part & self._own(head, query_first) for part in hint)
        return possible, certain

    def _own(self, head: Tensor, query: Tensor) -> Tensor:
        return torch.as_tensor(head, device=query.device) % 2 == self.parity

    @property
    def hint_is_exact(self) -> bool:
        return self.pattern.hint_is_exact

    @property
    def depends_on_head(self) -> bool:
        return True

    @property
    def period(self) -> int | None:
        return self.pattern.period
