"""Which windows share a row: best-fit packing, or one window per row (Krell et al. 2021, arXiv 2107.02027, sec. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RowTable:
    """The windows of each row, in compressed rows."""

    starts: Integers
    """(rows + 1,): row r holds `windows[starts[r]:starts[r + 1]]`."""

    windows: Integers
    """Indices of windows; each is in one row."""

    lengths: Integers
    """(rows,): tokens of each row, special tokens included."""

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> Integers:
        """Return the windows of a row."""
        return self.windows[self.starts[index] : self.starts[index + 1]]

    def sums(self, values: Integers, rows: Integers) -> Integers:
        """Return the sum of `values`, one per window in the order of `windows_of(rows)`, for each of `rows`."""
        counts = self.starts[rows + 1] - self.starts[rows]
        return np.bincount(np.repeat(np.arange(len(rows)), counts), weights=values, minlength=len(rows)).astype(
            np.int64
        )

    def windows_of(self, rows: Integers) -> Integers:
        """Return the windows of `rows`, one row after the other."""
        if len(rows) == 0:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([self.row(int(index)) for index in rows])


def one_per_row(lengths: Integers) -> RowTable:
    """Return a row for each window; `lengths` in tokens, special tokens included."""
    windows = np.arange(len(lengths))
    return RowTable(np.arange(len(lengths) + 1), windows, lengths)


def best_fit(lengths: Integers, capacity: int, order: Integers) -> RowTable:
    """Return rows of at most `capacity` tokens: longest window first, into the fullest row that it fits.

    `lengths` in tokens, special tokens included; a window longer than `capacity` has a row of its own. `order` is a
    permutation that decides between windows of one length. O(windows · capacity / 64) at worst, in fact far less.
    """
    by_length = order[np.argsort(-lengths[order], kind="stable")]
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the tokens free
    free_sizes = 0  # bit s is set where a row with s tokens free is open
    members: list[list[int]] = []
    for window, length in zip(by_length.tolist(), lengths[by_length].tolist(), strict=True):
        fitting = free_sizes >> length
        if fitting:
            free = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[free].pop()
            if not open_rows[free]:
                free_sizes &= ~(1 << free)
            members[row].append(window)
        else:
            row, free = len(members), max(capacity, length)
            members.append([window])
        if rest := free - length:
            open_rows[rest].append(row)
            free_sizes |= 1 << rest
    starts = np.zeros(len(members) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in members], out=starts[1:])
    windows = np.array([window for row in members for window in row], dtype=np.int64)
    totals = np.add.reduceat(lengths[windows], starts[:-1]) if members else np.zeros(0, dtype=np.int64)
    return RowTable(starts, windows, totals)
