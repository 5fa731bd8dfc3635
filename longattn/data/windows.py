"""Cuts documents that are longer than the model's input into overlapping windows, or keeps their head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from longattn.errors import ConfigError

LongDocuments = Literal["windows", "truncate"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How a document of any length becomes inputs of at most `max_length` tokens."""

    max_length: int
    """Largest input, in tokens, special tokens included."""

    long_documents: LongDocuments = "windows"
    """`windows`: cut in windows that cover every token; `truncate`: keep the head."""

    stride: int = 0
    """Tokens that a window shares with the one before it."""

    special_tokens: int = 2
    """Special tokens that each input holds, such as [CLS] and [SEP]."""

    def __post_init__(self) -> None:
        if self.long_documents not in ("windows", "truncate"):
            raise ConfigError(f"long_documents={self.long_documents!r}: give windows or truncate")
        if self.max_length <= self.special_tokens:
            raise ConfigError(
                f"max_length={self.max_length}: no room for text beside {self.special_tokens} special tokens; "
                f"give at least {self.special_tokens + 1}"
            )
        if not 0 <= self.stride < self.capacity:
            raise ConfigError(
                f"stride={self.stride} with max_length={self.max_length} and {self.special_tokens} special tokens: "
                f"a window holds {self.capacity} tokens of text, so give a stride from 0 to {self.capacity - 1}"
            )
        if self.long_documents == "truncate" and self.stride:
            raise ConfigError(
                f"stride={self.stride} has no effect with long_documents='truncate': drop it, or take 'windows'"
            )

    @property
    def capacity(self) -> int:
        """Tokens of text in a full window."""
        return self.max_length - self.special_tokens


@dataclass(frozen=True)
class Windows:
    """A table of windows, in the order of their documents; all arrays have one entry per window."""

    document: Integers
    """Index of the document."""

    start: Integers
    """First token of the window in its document, in tokens of text."""

    stop: Integers
    """One past the last token."""

    def __len__(self) -> int:
        return len(self.document)

    @property
    def length(self) -> Integers:
        """Tokens of text in each window."""
        return self.stop - self.start


@dataclass(frozen=True)
class CutCounts:
    """What cutting did, for the log."""

    long_documents: int
    """Documents longer than a window."""

    truncated_tokens: int
    """Tokens that are in no window."""


def cut(lengths: Integers, windowing: Windowing) -> tuple[Windows, CutCounts]:
    """Return the windows of documents of `lengths` tokens of text, and what was cut; an empty document has no window.

    With `windows`, window k of a document starts at k * (capacity - stride), and the last one ends at its last token.
    """
    capacity, step = windowing.capacity, windowing.capacity - windowing.stride
    long = lengths > capacity
    if windowing.long_documents == "truncate":
        document = np.flatnonzero(lengths > 0)
        stop = np.minimum(lengths[document], capacity)
        windows = Windows(document, np.zeros_like(stop), stop)
        return windows, CutCounts(int(long.sum()), int((lengths[long] - capacity).sum()))
    counts = np.where(lengths > 0, 1 + np.maximum(0, -(-(lengths - capacity) // step)), 0)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = number * step
    stop = np.minimum(start + capacity, lengths[document])
    return Windows(document, start, stop), CutCounts(int(long.sum()), 0)
