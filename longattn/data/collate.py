"""Puts rows of different lengths into one batch of tensors."""

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
class Row:
    """One row of a batch before padding."""

    input_ids: Integers
    """(length,) token ids, special tokens included."""

    labels: Integers
    """(length,) target ids; -100 where the loss looks at nothing."""

    document: int
    """Index of the document; -1 for a filler."""

    window: int
    """Index of the window; -1 for a filler."""

    denominator: float
    """Labelled tokens in the whole optimizer step."""


@dataclass(frozen=True, kw_only=True)
class Collator:
    """Pads rows on the right to the longest of them, rounded up to a multiple but never above `max_length`."""

    pad_id: int
    """Token id of padding."""

    max_length: int
    """No batch is longer than this, in tokens."""

    pad_to_multiple_of: int = 8
    """Batch lengths are multiples of this, in tokens."""

    global_tokens: GlobalTokens = "none"
    """`first`: the first token of each document is global."""

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the batch of B rows padded to L tokens.

        input_ids (B, L) int64; attention_mask (B, L) bool, True = real token; labels (B, L) int64;
        global_attention_mask (B, L) bool where global tokens are on; document_index and window_index (B,) int64,
        -1 = filler row, not to be counted; loss_denominator, a float of at least 1: labelled tokens in the whole
        optimizer step; real_tokens, an int: tokens that are not padding, so that real_tokens / input_ids.numel() is
        the packing efficiency.
        """
        longest = max(len(row.input_ids) for row in rows)
        length = max(longest, min(-(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of, self.max_length))
        input_ids = np.full((len(rows), length), self.pad_id, dtype=np.int64)
        labels = np.full((len(rows), length), IGNORED_LABEL, dtype=np.int64)
        attention_mask = np.zeros((len(rows), length), dtype=np.bool_)
        for number, row in enumerate(rows):
            size = len(row.input_ids)
            input_ids[number, :size] = row.input_ids
            labels[number, :size] = row.labels
            attention_mask[number, :size] = True
        batch: dict[str, Any] = {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(attention_mask),
            "labels": torch.from_numpy(labels),
            "document_index": torch.tensor([row.document for row in rows]),
            "window_index": torch.tensor([row.window for row in rows]),
            "loss_denominator": max(1.0, rows[0].denominator),
            "real_tokens": int(attention_mask.sum()),
        }
        if self.global_tokens == "first":
            is_global = torch.zeros_like(batch["attention_mask"])
            is_global[:, 0] = True
            batch["global_attention_mask"] = is_global
        return batch
