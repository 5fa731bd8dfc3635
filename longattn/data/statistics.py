"""What a part of the data holds, for people."""

from __future__ import annotations

import logging
from dataclasses import dataclass

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
