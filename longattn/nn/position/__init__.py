"""Position schemes. A new one is a file in this folder; it is found by its name."""

from __future__ import annotations

from longattn.nn.position.alibi import Alibi, AlibiBias
from longattn.nn.position.base import Position, position_from_config, positions
from longattn.nn.position.learned import Learned
from longattn.nn.position.none import NoPosition
from longattn.nn.position.rope import Rope
from longattn.nn.position.sinusoidal import Sinusoidal

__all__ = [
    "Alibi",
    "AlibiBias",
    "Learned",
    "NoPosition",
    "Position",
    "Rope",
    "Sinusoidal",
    "position_from_config",
    "positions",
]
