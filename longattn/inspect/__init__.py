"""Pictures of where attention looks."""

from __future__ import annotations

from longattn.inspect.pattern_picture import draw_patterns

__all__ = ["draw_patterns"]
