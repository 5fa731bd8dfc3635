"""Cuts documents that are longer than the model's input into overlapping windows, or keeps a part of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from longattn.discovery import nearest
from longattn.errors import ConfigError

LongDocuments = Literal["windows", "keep_head", "keep_tail", "keep_ends", "keep_whole"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How a document of any length becomes inputs of at most `max_length` tokens."""

    max_length: int
    """Largest input, in tokens, special tokens included."""

    long_documents: LongDocuments = "windows"
    """`windows`: cut in windows that cover every token; `keep_head`, `keep_tail`: leave out what is too much at the
    other end; `keep_ends`: leave it out in the middle; `keep_whole`: leave out nothing, max_length or not."""

    stride: int = 0
    """Tokens that a window shares with the one before it."""

    special_tokens: int = 2
    """Special tokens that each input holds, such as [CLS] and [SEP]."""

    def __post_init__(self) -> None:
        choices = get_args(LongDocuments)
        if self.long_documents not in choices:
            raise ConfigError(
                f"long_documents={self.long_documents!r}: give one of {', '.join(choices)}"
                f"{nearest(self.long_documents, choices)}"
            )
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
        if self.long_documents != "windows" and self.stride:
            raise ConfigError(
                f"stride={self.stride} has no effect with long_documents={self.long_documents!r}: drop it, or take "
                "'windows'"
            )

    @property
    def capacity(self) -> int:
        """Tokens of text in a full window."""
        return self.max_length - self.special_tokens


@dataclass(frozen=True)
class Windows:
    """A table of windows, in the order of their documents; all arrays have one entry per window.

    A window holds the tokens from `start` to `stop` of its document, without those from `gap_start` to `gap_stop`.
    """

    document: Integers
    """Index of the document."""

    start: Integers
    """First token of the window in its document, in tokens of text."""

    stop: Integers
    """One past the last token."""

    gap_start: Integers
    """First token that is left out between them."""

    gap_stop: Integers
    """One past the last token that is left out; `gap_start` where none is."""

    def __len__(self) -> int:
        return len(self.document)

    @property
    def length(self) -> Integers:
        """Tokens of text in each window."""
        return self.stop - self.start - (self.gap_stop - self.gap_start)

    def take(self, index: Integers) -> Windows:
        """Return the table of the windows `index`, in that order."""
        return Windows(*(column[index] for column in vars(self).values()))


@dataclass(frozen=True)
class CutCounts:
    """What cutting did, for the log."""

    long_documents: int
    """Documents longer than a window."""

    truncated_tokens: int
    """Tokens that are in no window."""


def cut(lengths: Integers, windowing: Windowing, pair_start: Integers | None = None) -> tuple[Windows, CutCounts]:
    """Return the windows of documents of `lengths` tokens of text, and what was cut; an empty document has no window.

    `pair_start` has, for each document that is a pair of texts, the tokens before its second text (the first text and
    what separates them), and 0 for the others. Window k of a text starts at k * (capacity - stride), and the last one
    ends at its last token. Of a pair, the first text stands whole in front of each window of the second; where a part
    is left out, it is the end of the longer of both until they are of one length. Raises ConfigError where a first text
    leaves no room for the second.
    """
    prefix = np.zeros_like(lengths) if pair_start is None else pair_start
    capacity = windowing.capacity
    long = lengths > capacity
    if windowing.long_documents == "keep_whole":
        windows = _whole(lengths)
    elif windowing.long_documents == "windows":
        windows = _windows(lengths, prefix, capacity, windowing.stride, long)
    else:
        windows = _kept_part(lengths, prefix, capacity, windowing.long_documents)
    lost = 0 if windowing.long_documents == "windows" else int(lengths.sum() - windows.length.sum())
    return windows, CutCounts(int(long.sum()), lost)


def _whole(lengths: Integers) -> Windows:
    document = np.flatnonzero(lengths > 0)
    start = np.zeros_like(document)
    return Windows(document, start, lengths[document], start, start)


def _windows(lengths: Integers, prefix: Integers, capacity: int, stride: int, long: NDArray[np.bool_]) -> Windows:
    crowded = np.flatnonzero(long & (prefix > 0) & (capacity - prefix <= stride))
    if len(crowded):
        first = int(crowded[0])
        raise ConfigError(
            f"document {first}: its first text and separator take {prefix[first]} of a window's {capacity} tokens, "
            f"which leaves no room for the second beside stride={stride}; take long_documents='keep_head', or a larger "
            "max_length"
        )
    room = np.where(long, capacity - prefix, lengths)  # for the second text, in each window
    step = np.maximum(1, np.where(long, room - stride, 1))
    text = np.where(long, lengths - prefix, lengths)
    counts = np.where(lengths > 0, 1 + np.maximum(0, -(-(text - room) // step)), 0)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    before = np.where(long, prefix, 0)[document]
    begin = before + number * step[document]
    stop = np.minimum(begin + room[document], lengths[document])
    paired = before > 0
    return Windows(document, np.where(paired, 0, begin), stop, np.where(paired, before, begin), begin)


def _kept_part(lengths: Integers, prefix: Integers, capacity: int, part: str) -> Windows:
    document = np.flatnonzero(lengths > 0)
    length, before = lengths[document], prefix[document]
    kept, zero = np.minimum(length, capacity), np.zeros_like(length)
    if part == "keep_head":
        spans = (zero, kept, zero, zero)
    elif part == "keep_tail":
        spans = (length - kept, length, length - kept, length - kept)
    else:
        head = -(-kept // 2)
        spans = (zero, length, head, length - (kept - head))
    # Of a pair that is too long: the head of the first text, the separator, and the head of the second.
    first, room = before - 1, capacity - 1
    first_kept = np.minimum(first, np.maximum(room - (length - before), -(-room // 2)))
    of_pair = (zero, before + room - first_kept, first_kept, first)
    long_pair = (before > 0) & (length > capacity)
    return Windows(document, *(np.where(long_pair, mine, other) for mine, other in zip(of_pair, spans, strict=True)))
