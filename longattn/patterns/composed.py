"""Patterns made of patterns: `a | b` sees what either sees, `a & b` what both see."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from longattn.errors import ConfigError
from longattn.patterns.base import Pattern, pattern_from_config
from longattn.patterns.scope import NO_SCOPE, Scope


@dataclass(frozen=True)
class _Composed(Pattern):
    parts: tuple[Pattern, ...]
    """The patterns put together; nested ones of the same kind are laid flat."""

    combine: ClassVar[Callable[[Any, Any], Any]]

    def __post_init__(self) -> None:
        flat: list[Pattern] = []
        for part in self.parts:
            if not isinstance(part, Pattern):
                raise ConfigError(f"{type(self).__name__}: parts must be patterns, got {part!r}")
            flat.extend(part.parts if isinstance(part, type(self)) else [part])
        if not flat:
            raise ConfigError(f"{type(self).__name__}: parts must hold at least one pattern, got none")
        object.__setattr__(self, "parts", tuple(flat))

    def _fold(self, values: list[Tensor]) -> Tensor:
        folded: Tensor = functools.reduce(type(self).combine, values)
        return folded

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        return self._fold([part.sees(head, query, key, scope) for part in self.parts])

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        hints = [part.hint(head, query_first, query_last, key_first, key_last, scope) for part in self.parts]
        return self._fold([possible for possible, _ in hints]), self._fold([certain for _, certain in hints])

    def mask_function(self, num_heads: int, length: int, device: torch.device) -> Callable[..., Tensor]:
        functions = [part.mask_function(num_heads, length, device) for part in self.parts]

        def visible(head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
            return self._fold([function(head, query, key, scope) for function in functions])

        return visible

    @property
    def uses_globals(self) -> bool:
        return any(part.uses_globals for part in self.parts)

    @property
    def period(self) -> int | None:
        periods = [part.period for part in self.parts]
        return math.lcm(*(period for period in periods if period)) if all(periods) else None

    @property
    def depends_on_head(self) -> bool:
        return any(part.depends_on_head for part in self.parts)

    @property
    def depends_on_length(self) -> bool:
        return any(part.depends_on_length for part in self.parts)

    @property
    def allows_cross_attention(self) -> bool:
        return all(part.allows_cross_attention for part in self.parts)

    @property
    def natural_block_size(self) -> int | None:
        sizes = {part.natural_block_size for part in self.parts} - {None}
        return min(size for size in sizes if size is not None) if sizes else None

    def for_layer(self, index: int) -> Self:
        return dataclasses.replace(self, parts=tuple(part.for_layer(index) for part in self.parts))

    def check_length(self, length: int) -> None:
        for part in self.parts:
            part.check_length(length)

    def check_num_heads(self, num_heads: int) -> None:
        for part in self.parts:
            part.check_num_heads(num_heads)

    def to_config(self) -> dict[str, Any]:
        return {"class": type(self).__name__, "parts": [part.to_config() for part in self.parts]}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(tuple(pattern_from_config(part) for part in fields["parts"]))


@dataclass(frozen=True)
class Union(_Composed):
    """A pair is visible where any part sees it."""

    combine = operator.or_

    @property
    def shows_all_global_pairs(self) -> bool:
        return any(part.shows_all_global_pairs for part in self.parts)


@dataclass(frozen=True)
class Intersection(_Composed):
    """A pair is visible where every part sees it."""

    combine = operator.and_

    @property
    def shows_all_global_pairs(self) -> bool:
        return all(part.shows_all_global_pairs for part in self.parts)

    def terms(self) -> tuple[tuple[int, Pattern], ...]:
        for part in self.parts:
            others = [other for other in self.parts if other is not part]
            terms = part.terms()
            thinned = [[other.every(step) if step > 1 else other for other in others] for step, _ in terms]
            if any(step > 1 for step, _ in terms) and all(None not in patterns for patterns in thinned):
                return tuple(
                    (step, Intersection((pattern, *(other for other in patterns if other is not None))))
                    for (step, pattern), patterns in zip(terms, thinned, strict=True)
                )
        return super().terms()
