"""A window on both sides of each token, maybe dilated (Beltagy et al. 2020, arXiv 2004.05150, sec. 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longattn.patterns.base import Pattern, check_count
from longattn.patterns.scope import NO_SCOPE, Scope


@dataclass(frozen=True)
class SlidingWindow(Pattern):
    """Sees `radius` keys on each side and the query itself: |q - k| <= radius * dilation, (q - k) % dilation == 0."""

    radius: int = 256
    """Keys seen on each side; 2 * radius + 1 keys in all."""

    dilation: int = 1
    """Tokens from one visible key to the next."""

    def __post_init__(self) -> None:
        check_count(self, "radius", 0)
        check_count(self, "dilation", 1)

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        distance = query - key
        near = distance.abs() <= self.radius * self.dilation
        return near if self.dilation == 1 else near & (distance % self.dilation == 0)

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        lowest, highest = query_first - key_last, query_last - key_first
        reach = self.radius * self.dilation
        low, high = lowest.clamp(min=-reach), highest.clamp(max=reach)
        possible = torch.div(high, self.dilation, rounding_mode="floor") * self.dilation >= low
        inside = (lowest >= -reach) & (highest <= reach)
        return possible, inside if self.dilation == 1 else possible & (lowest == highest)

    @property
    def hint_is_exact(self) -> bool:
        return True

    @property
    def period(self) -> int:
        return 1

    def terms(self) -> tuple[tuple[int, Pattern], ...]:
        return super().terms() if self.dilation == 1 else ((self.dilation, SlidingWindow(radius=self.radius)),)
