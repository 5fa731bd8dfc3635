"""What a part of the data holds, for people."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """What a part of the data holds."""

    documents: int
    """Documents, the empty ones included."""

    empty_documents: int
    """Documents without a token; they are left out."""

    long_documents: int
    """Documents longer than max_length."""

    windows: int
    """Windows per epoch."""

    rows: int
    """Rows per epoch: as many as windows, or fewer where they are packed."""

    row_tokens: int
    """Tokens in all rows, special tokens included."""

    tokens: int
    """Tokens of text, before cutting, special tokens not counted."""

    truncated_tokens: int
    """Tokens that no row holds."""

    unigram_entropy: float
    """Nats per token that a guess by frequency loses: a model that uses the context must be below."""


_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def summary_of(lengths: NDArray[np.int64], statistics: Statistics) -> dict[str, Any]:
    """Return what a part holds as plain values; `lengths` are those of its documents, in tokens of text."""
    real = lengths[lengths > 0]
    quantiles = np.quantile(real, _QUANTILES) if len(real) else np.zeros(0)
    return {
        "documents": len(real),
        "empty_documents": statistics.empty_documents,
        "long_documents": statistics.long_documents,
        "windows": statistics.windows,
        "rows": statistics.rows,
        "tokens": statistics.tokens,
        "truncated_tokens": statistics.truncated_tokens,
        "length_quantiles": {f"{q:g}": round(float(n), 1) for q, n in zip(_QUANTILES, quantiles, strict=False)},
    }


def draw_lengths(lengths: dict[str, NDArray[np.int64]], max_length: int, path: Path) -> None:
    """Draw how long the documents of each part are into the PNG file `path`, with the model's input as a line."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    real = {name: counts[counts > 0] for name, counts in lengths.items()}
    everything = np.concatenate(list(real.values()))
    edges = np.geomspace(everything.min(), everything.max() + 1, 41).tolist()
    for name, counts in real.items():
        axes.hist(counts, bins=edges, histtype="stepfilled", alpha=0.5, label=f"{name} ({len(counts)})")
    axes.axvline(max_length, color="black", linestyle="--", label=f"max_length {max_length}")
    axes.set(xscale="log", yscale="log", xlabel="length of a document (tokens)", ylabel="documents")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def log_statistics(name: str, statistics: Statistics, max_length: int) -> None:
    """Say what a part holds, what was cut off, and how full packed rows are."""
    whole = f"{name}: {statistics.documents} documents, {statistics.tokens} tokens"
    if statistics.empty_documents:
        log.warning("%s: %d documents have no token and are left out", name, statistics.empty_documents)
    if statistics.truncated_tokens:
        log.warning(
            "%s; %d documents are longer than max_length=%d: %d tokens (%.1f %%) are cut off",
            whole, statistics.long_documents, max_length, statistics.truncated_tokens,
            100 * statistics.truncated_tokens / statistics.tokens,
        )  # fmt: skip
    elif statistics.long_documents:
        log.info(
            "%s; %d documents are longer than max_length=%d and are cut, making %d windows in all",
            whole, statistics.long_documents, max_length, statistics.windows,
        )  # fmt: skip
    else:
        log.info("%s, none longer than max_length=%d", whole, max_length)
    if statistics.rows < statistics.windows:
        log.info(
            "%s: %d windows packed in %d rows, %.1f %% full",
            name, statistics.windows, statistics.rows, 100 * statistics.row_tokens / (statistics.rows * max_length),
        )  # fmt: skip
