"""What a pattern is: a frozen value that says which query position sees which key position."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from longattn.discovery import nearest
from longattn.errors import ConfigError
from longattn.patterns.layout import BlockLayout, cached_layout
from longattn.patterns.scope import NO_SCOPE, Scope

if TYPE_CHECKING:
    from longattn.patterns.composed import Intersection, Union


@dataclass(frozen=True)
class Pattern(ABC):
    """Who sees whom.

    A subclass is a frozen dataclass in a file of its own; it must define `sees`, the specification, and may define
    `hint`, which spares `layout` from looking at every pair. Patterns compose with `|` and `&`, and are hashable.
    """

    @abstractmethod
    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        """Return a bool tensor: does position `query` of `head` see position `key`?

        `head`, `query`, `key` are integer tensors that broadcast against each other; the result has (or broadcasts to)
        their common shape.
        """

    def hint(
        self, head: Tensor, query_first: Tensor, query_last: Tensor, key_first: Tensor, key_last: Tensor, scope: Scope
    ) -> tuple[Tensor, Tensor]:
        """Return (possible, certain) for blocks of positions, both ends inclusive, without global tokens.

        `possible` may be False only where no pair of the block is visible, `certain` True only where every pair is;
        the blocks in between are looked at pair by pair.
        """
        shape = torch.broadcast_shapes(head.shape, query_first.shape, key_first.shape)
        return torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)

    def mask_function(self, num_heads: int, length: int, device: torch.device) -> Callable[..., Tensor]:
        """Return a function like `sees` that compilers can trace: its steps depend on no value of a tensor."""
        return self.sees

    @property
    def uses_globals(self) -> bool:
        """Whether a batch's global tokens change what is seen. If so, only pairs with a global token may change."""
        return False

    @property
    def shows_all_global_pairs(self) -> bool:
        """Whether every pair with a global token is visible, as far as the batch lets it."""
        return False

    @property
    def depends_on_head(self) -> bool:
        """Whether heads see different keys."""
        return False

    @property
    def depends_on_length(self) -> bool:
        """Whether what a token sees changes with the length of the document beyond its end."""
        return False

    @property
    def allows_cross_attention(self) -> bool:
        """Whether the pattern has a meaning when queries and keys come from different sequences."""
        return False

    @property
    def hint_is_exact(self) -> bool:
        """Whether a block that `hint` calls possible and not certain always holds visible and invisible pairs."""
        return False

    @property
    def natural_block_size(self) -> int | None:
        """The block size (tokens) at which the pattern's blocks are all full or empty, if there is one."""
        return None

    @property
    def period(self) -> int | None:
        """A number of tokens by which both positions may be moved without changing what is seen, if one is known."""
        return None

    def terms(self) -> tuple[tuple[int, Pattern], ...]:
        """Return (step, pattern) pairs that share out what is seen, without global tokens: each visible pair is in one.

        A pair belongs to a term if query - key is a multiple of its step, and the term's pattern shows the positions
        divided by the step, rounded down. So what skips regularly becomes a pattern of near tokens.
        """
        return ((1, self),)

    def every(self, step: int) -> Pattern | None:
        """Return the pattern among every `step`-th token as a pattern of the positions divided by `step`, if known."""
        return None

    def for_layer(self, index: int) -> Pattern:
        """Return the pattern as layer `index` of a model uses it; only patterns with random parts differ."""
        return self

    def check_length(self, length: int) -> None:
        """Raise ConfigError if the pattern has no meaning for a document of `length` tokens."""
        return

    def check_num_heads(self, num_heads: int) -> None:
        """Raise ConfigError if the pattern has no meaning for attention of `num_heads` heads."""
        return

    def layout(self, *, num_heads: int, query_length: int, key_length: int, block_size: int) -> BlockLayout:
        """Return the same visibility as key blocks per query block, from position 0, without global tokens.

        `query_length`, `key_length` and `block_size` are in tokens. Cached by value.
        """
        if block_size < 1:
            raise ConfigError(f"block_size must be at least 1 token, got {block_size}")
        self.check_num_heads(num_heads)
        self.check_length(max(query_length, key_length))
        return cached_layout(self, num_heads, query_length, key_length, block_size, 0, 0, max(query_length, key_length))

    def __or__(self, other: Pattern) -> Union:
        from longattn.patterns.composed import Union

        return Union((self, other))

    def __and__(self, other: Pattern) -> Intersection:
        from longattn.patterns.composed import Intersection

        return Intersection((self, other))

    def to_config(self) -> dict[str, Any]:
        """Return a dictionary of plain values that `pattern_from_config` turns back into an equal pattern."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"class": type(self).__name__, **fields}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Build the pattern from the fields that `to_config` wrote."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no field {name!r}{nearest(name, known)}; it has {sorted(known)}")
        return cls(**fields)


def all_patterns(root: type[Pattern] = Pattern) -> Iterator[type[Pattern]]:
    """Yield every pattern class that is defined so far, the user's own ones too."""
    for subclass in root.__subclasses__():
        yield subclass
        yield from all_patterns(subclass)


def pattern_from_config(config: dict[str, Any]) -> Pattern:
    """Return the pattern that `Pattern.to_config` described; ConfigError names an unknown class."""
    classes = {subclass.__name__: subclass for subclass in all_patterns()}
    fields = dict(config)
    name = fields.pop("class", None)
    if name not in classes:
        raise ConfigError(f"pattern class {name!r} is unknown{nearest(str(name), classes)}: import its module first")
    return classes[name].from_fields(fields)


def check_count(pattern: Pattern, name: str, minimum: int) -> None:
    """Raise ConfigError unless the field `name` of `pattern` is an int of at least `minimum`."""
    value = getattr(pattern, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{type(pattern).__name__}: {name} must be an integer >= {minimum}, got {value!r}")
