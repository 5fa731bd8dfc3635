"""Puts rows of different lengths, of one document or of several, into one batch of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from longattn.data.masking import IGNORED_LABEL

GlobalTokens = Literal["none", "first"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """One window as the model is given it: the whole row of a batch, or a part of a packed row."""

    input_ids: Integers
    """(length,) token ids, special tokens included."""

    labels: Integers
    """(length,) target ids; -100 where the loss looks at nothing."""

    document: int
    """Index of the document; -1 for a filler."""

    window: int
    """Index of the window; -1 for a filler."""


@dataclass(frozen=True)
class Row:
    """One row of a batch before padding."""

    segments: tuple[Segment, ...]
    """What stands in it, one after the other; they do not see each other."""

    denominator: float
    """Labelled tokens in the whole optimizer step."""

    def __len__(self) -> int:
        return sum(len(segment.input_ids) for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Collator:
    """Pads rows on the right to the longest of them, rounded up to a multiple but never above `max_length`."""

    pad_id: int
    """Token id of padding."""

    max_length: int
    """No batch is longer than this, in tokens, unless a row is."""

    pad_to_multiple_of: int = 8
    """Batch lengths are multiples of this, in tokens."""

    global_tokens: GlobalTokens = "none"
    """`first`: the first token of each document is global."""

    packed: bool = False
    """Whether rows hold several documents, which then are told apart by `document_ids`."""

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the batch of B rows padded to L tokens, N segments in all.

        input_ids (B, L) int64; attention_mask (B, L) bool, True = real token; labels (B, L) int64; document_ids (B, L)
        int64 where rows are packed, counted from 0 in each row, -1 = padding; global_attention_mask (B, L) bool where
        global tokens are on; segments (N, 3) int64: row, first token and one past the last token of each window;
        document_index and window_index (N,) int64, -1 = filler, not to be counted; loss_denominator, a float of at
        least 1: labelled tokens in the whole optimizer step; real_tokens, an int: tokens that are not padding, so that
        real_tokens / input_ids.numel() is the packing efficiency.
        """
        longest = max(len(row) for row in rows)
        length = max(longest, min(-(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of, self.max_length))
        input_ids = np.full((len(rows), length), self.pad_id, dtype=np.int64)
        labels = np.full((len(rows), length), IGNORED_LABEL, dtype=np.int64)
        document_ids = np.full((len(rows), length), -1, dtype=np.int64)
        is_global = np.zeros((len(rows), length), dtype=np.bool_)
        places = []
        for number, row in enumerate(rows):
            stop = 0
            for index, segment in enumerate(row.segments):
                start, stop = stop, stop + len(segment.input_ids)
                input_ids[number, start:stop] = segment.input_ids
                labels[number, start:stop] = segment.labels
                document_ids[number, start:stop] = index
                is_global[number, start] = True
                places.append((number, start, stop))
        attention_mask = document_ids >= 0
        segments = [segment for row in rows for segment in row.segments]
        batch: dict[str, Any] = {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(attention_mask),
            "labels": torch.from_numpy(labels),
            "segments": torch.tensor(places),
            "document_index": torch.tensor([segment.document for segment in segments]),
            "window_index": torch.tensor([segment.window for segment in segments]),
            "loss_denominator": max(1.0, rows[0].denominator),
            "real_tokens": int(attention_mask.sum()),
        }
        if self.packed:
            batch["document_ids"] = torch.from_numpy(document_ids)
        if self.global_tokens == "first":
            batch["global_attention_mask"] = torch.from_numpy(is_global)
        return batch
