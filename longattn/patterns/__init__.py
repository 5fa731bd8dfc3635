"""Patterns: who sees whom. A new one is a file in this folder; its classes are found by name."""

from __future__ import annotations

from typing import Any

from longattn.discovery import classes_in, nearest
from longattn.patterns.base import Pattern, pattern_from_config
from longattn.patterns.bigbird import BigBird
from longattn.patterns.bind import BoundPattern, bind
from longattn.patterns.block_sparse import BlockSparse
from longattn.patterns.composed import Intersection, Union
from longattn.patterns.dense import Causal, Dense
from longattn.patterns.layout import BlockLayout
from longattn.patterns.longformer import Longformer
from longattn.patterns.scope import Scope
from longattn.patterns.sliding_window import SlidingWindow
from longattn.patterns.sparse_transformer import Fixed, Strided

__all__ = [
    "BigBird",
    "BlockLayout",
    "BlockSparse",
    "BoundPattern",
    "Causal",
    "Dense",
    "Fixed",
    "Intersection",
    "Longformer",
    "Pattern",
    "Scope",
    "SlidingWindow",
    "Strided",
    "Union",
    "bind",
    "pattern_from_config",
]


def __getattr__(name: str) -> Any:
    """Find a pattern that a new file of this folder defines."""
    found = {} if name.startswith("_") else classes_in(__name__, Pattern)  # type: ignore[type-abstract]
    if name not in found:
        raise AttributeError(f"module {__name__!r} has no pattern {name!r}{nearest(name, found)}")
    return found[name]
