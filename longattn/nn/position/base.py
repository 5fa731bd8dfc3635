"""What a position scheme is: how a model learns where a token stands in its document."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longattn.discovery import classes_in, nearest
from longattn.errors import ConfigError
from longattn.kernels import ScoreBias
from longattn.nn.rotation import Rotation


@dataclass(frozen=True, kw_only=True)
class Position:
    """A position scheme, as a value. A subclass in a file of this folder is found by its `name`.

    It acts in one of three places, and leaves the other two alone: on the embeddings, on queries and keys, or on the
    scores. Positions are tokens from the start of a document: (B, L) int64, or (1, L) where all rows are alike.
    """

    name: ClassVar[str]

    uses_position_ids: ClassVar[bool] = True
    """Whether other position ids than 0, 1, 2, ... change anything."""

    def check_dimensions(self, d_model: int, num_heads: int) -> None:
        """Raise ConfigError if the scheme cannot serve a model of this width and this many heads."""

    def check_positions(self, position_ids: Tensor, *, given: bool) -> None:
        """Raise ConfigError if a position is out of reach; `given` says that a user chose the position ids."""

    def embedding(self, d_model: int) -> nn.Module | None:
        """Return the module that turns position ids into what is added to the embeddings, (B or 1, L, d_model)."""
        return None

    def rotation(self, position_ids: Tensor, head_dim: int, dtype: torch.dtype) -> Rotation | None:
        """Return the rotation of queries and keys at `position_ids`, for a model that computes in `dtype`."""
        return None

    def bias(self, num_heads: int) -> ScoreBias | None:
        """Return the term that is added to the scores."""
        return None

    def to_config(self) -> dict[str, Any]:
        """Return a dictionary of plain values that `position_from_config` turns back into an equal scheme."""
        return {"class": type(self).__name__, **dataclasses.asdict(self)}


def positions() -> dict[str, type[Position]]:
    """Return every position scheme by name: those of this folder, and those that a user has defined so far."""
    classes_in("longattn.nn.position", Position)
    return {subclass.name: subclass for subclass in _subclasses(Position)}


def position_from_config(config: Position | str | Mapping[str, Any]) -> Position:
    """Return the scheme with this name and default fields, the one that `to_config` described, or `config` itself.

    ConfigError names what is unknown and what there is.
    """
    if isinstance(config, Position):
        return config
    schemes = positions()
    if isinstance(config, str):
        if config not in schemes:
            raise ConfigError(
                f"position {config!r} is unknown{nearest(config, schemes)}: choose one of {', '.join(sorted(schemes))}"
            )
        return schemes[config]()
    if not isinstance(config, Mapping):
        raise ConfigError(f"position must be a name, a Position or a dictionary with 'class', got {config!r}")
    classes = {scheme.__name__: scheme for scheme in schemes.values()}
    fields = dict(config)
    name = fields.pop("class", None)
    if name not in classes:
        raise ConfigError(
            f"position class {name!r} is unknown{nearest(str(name), classes)}: choose one of {sorted(classes)}"
        )
    known = {field.name for field in dataclasses.fields(classes[name])}
    for field_name in fields:
        if field_name not in known:
            raise ConfigError(
                f"{name} has no field {field_name!r}{nearest(field_name, known)}; it has {sorted(known) or 'none'}"
            )
    return classes[name](**fields)


def _subclasses(root: type[Position]) -> Iterator[type[Position]]:
    for subclass in root.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def inverse_frequencies(dimensions: int, base: float, device: torch.device) -> Tensor:
    """Return base ** (-2 i / dimensions) for i = 0 ... dimensions / 2 - 1, fp64."""
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float64, device=device) / dimensions
    return base**-exponents


def table_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of position tables in a model that computes in `dtype`: fp32, or fp64 for fp64.

    bf16 counts exactly to 256 only, so its own tables would give position 9999 the angle of 9984.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
