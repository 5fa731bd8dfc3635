"""Draws who sees whom, one panel per pattern."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from longattn.errors import ConfigError
from longattn.patterns import Pattern, bind

_LARGEST_LENGTH = 512  # tokens; beyond it a panel's cells are smaller than pixels
_COLUMNS = 4


def draw_patterns(
    patterns: Mapping[str, Pattern], path: str | Path, *, length: int = 64, is_global: Tensor | None = None
) -> None:
    """Draw each pattern over a document of `length` tokens into the PNG or SVG file `path`.

    Rows are queries, columns are keys; head 0 is shown. `is_global` (length,) bool marks the global tokens for the
    patterns that use them. Under each title stands the share of pairs that are visible.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap

    if not 1 <= length <= _LARGEST_LENGTH:
        raise ConfigError(f"a pattern is drawn for 1 to {_LARGEST_LENGTH} tokens, got length {length}")
    columns = min(_COLUMNS, len(patterns))
    rows = -(-len(patterns) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(2.6 * columns, 3.0 * rows), squeeze=False, dpi=120)
    colours = ListedColormap(["#f2f2f2", "#2166ac"])
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (name, pattern) in zip(axes.flat, patterns.items(), strict=False):
        flags = is_global[None] if is_global is not None and pattern.uses_globals else None
        bound = bind(pattern, num_heads=1, query_length=length, query_is_global=flags, key_is_global=flags)
        seen = bound.mask()[0, 0]
        axis.set_axis_on()
        axis.imshow(seen.to(torch.uint8), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(f"{name}\n{seen.float().mean().item():.0%} visible", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_xlabel("keys", fontsize=8)
        axis.set_ylabel("queries", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
