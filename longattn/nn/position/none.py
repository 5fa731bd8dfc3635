"""No positions at all: only the attention pattern tells tokens apart by place."""

from __future__ import annotations

from dataclasses import dataclass

from longattn.nn.position.base import Position


@dataclass(frozen=True, kw_only=True)
class NoPosition(Position):
    """Adds nothing."""

    name = "none"
    uses_position_ids = False
