"""Batches from keys: rows of the windows of a token store, and a loader that can go on where a run stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from longattn.data.collate import Collator, Row, Segment
from longattn.data.packing import RowTable
from longattn.data.sampler import EvaluationSampler, Key, KeySampler, TrainingSampler
from longattn.data.tasks import Task, WindowTokens, filler_row
from longattn.data.token_store import TokenStore
from longattn.data.tokenizer import Tokenizer
from longattn.data.windows import Windows
from longattn.errors import ConfigError


class WindowRows(Dataset[Row]):
    """The row for a key: a function of the key, the stored tokens and the task's settings alone."""

    def __init__(self, store: TokenStore, windows: Windows, table: RowTable, task: Task, tokenizer: Tokenizer) -> None:
        self._store = store
        self._windows = windows
        self._table = table
        self._task = task
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, key: Key) -> Row:
        if key.filler:
            return filler_row(self._tokenizer, key)
        segments = (self._segment(int(window), key.epoch) for window in self._table.row(key.row))
        return Row(tuple(segments), key.denominator)

    def _segment(self, window: int, epoch: int) -> Segment:
        document = int(self._windows.document[window])
        tokens = self._store.window_tokens(self._windows, window)
        return self._task.segment(WindowTokens(tokens, document, window), epoch)


class BatchLoader:
    """Yields the batches that a sampler of this rank lists.

    On purpose no subclass of `DataLoader`, and without a `sampler`: trainers take such loaders apart to put samplers of
    their own into them. It has what Lightning looks for: `batch_sampler.sampler.set_epoch`, a length, and a state.
    """

    def __init__(self, rows: WindowRows, sampler: KeySampler, collate: Collator, *, num_workers: int) -> None:
        self.batch_sampler = sampler
        self._loader: DataLoader[Row] = DataLoader(
            rows,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Its own generator: the loader draws a seed for workers at each pass, which must not move the global state.
            generator=torch.Generator().manual_seed(0),
        )
        self._epoch = 0
        self._batches = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; a trainer does so by itself."""
        self.batch_sampler.set_epoch(epoch)

    @property
    def batch_size(self) -> int:
        """Rows per batch of this rank."""
        return self.batch_sampler.batch_size

    @property
    def dataset(self) -> Sequence[Any] | Dataset[Row]:
        """The rows, by key."""
        return self._loader.dataset

    def __len__(self) -> int:
        """Return the number of batches per epoch, the same on every rank."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        sampler = self.batch_sampler
        if isinstance(sampler, TrainingSampler):
            self._epoch, self._batches = sampler.epoch, sampler.first_batch
        # The workers fetch ahead, so the position that counts is the one here: batches handed out.
        for batch in self._loader:
            self._batches += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the position of the pass in progress, as plain numbers."""
        assert not isinstance(self.batch_sampler, EvaluationSampler)
        return {"epoch": self._epoch, "batches": self._batches, "batches_per_epoch": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next pass go on after the batches that the state has counted."""
        sampler = self.batch_sampler
        if not isinstance(sampler, TrainingSampler):
            return
        if state["batches_per_epoch"] != len(self):
            raise ConfigError(
                f"cannot go on inside an epoch of {state['batches_per_epoch']} batches: the data now make {len(self)}; "
                "the documents, max_length or the global batch size (batch_size x ranks x accumulation) have changed"
            )
        epoch, batches = state["epoch"], state["batches"]
        if batches == len(self):
            epoch, batches = epoch + 1, 0
        sampler.start_at(epoch, batches)
        self._epoch, self._batches = epoch, batches
