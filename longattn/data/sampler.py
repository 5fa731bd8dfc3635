"""Which documents make up which batch, on every rank: a function of (seed, epoch, global batch size) alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from longattn.data.masking import counter_generator, random_order
from longattn.errors import ConfigError

Integers = NDArray[np.int64]

LabelCounts = Callable[[int, Integers], Integers]
"""(epoch, row indices) -> labelled tokens of each."""

EVALUATION_EPOCH = -1
"""The epoch of validation, test and prediction: every pass draws the same masks."""


class Key(NamedTuple):
    """All that a worker needs to build one row of a batch; workers share no state with the sampler."""

    epoch: int
    """Epoch whose random draws the row takes."""

    row: int
    """Index of the row; -1 for a filler."""

    denominator: float
    """Labelled tokens in the whole optimizer step, over all ranks and micro-batches."""

    @property
    def filler(self) -> bool:
        """Whether the row only fills up a batch: no document, no label, not counted."""
        return self.row < 0


FILLER = -1


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """How a global batch is shared out."""

    batch_size: int
    """Rows per micro-batch of one rank."""

    ranks: int = 1
    """Data ranks, each of which gets its own part of every global batch."""

    rank: int = 0
    """This rank, from 0."""

    accumulation: int = 1
    """Micro-batches per optimizer step."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "ranks", "accumulation"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r}: give at least 1")
        if not 0 <= self.rank < self.ranks:
            raise ConfigError(f"rank={self.rank} is not one of {self.ranks} data ranks")

    @property
    def global_batch_size(self) -> int:
        """Rows per optimizer step."""
        return self.batch_size * self.ranks * self.accumulation


class KeySampler(ABC):
    """Yields this rank's micro-batches as lists of keys."""

    def __init__(self, size: int, label_counts: LabelCounts, shape: BatchShape) -> None:
        self._size = size
        self._label_counts = label_counts
        self._shape = shape

    @property
    def sampler(self) -> Self:
        """The object whose `set_epoch` Lightning calls: this one."""
        return self

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, where epochs differ."""

    @property
    def batch_size(self) -> int:
        """Rows per micro-batch."""
        return self._shape.batch_size

    @property
    def steps(self) -> int:
        """Global batches per epoch."""
        return -(-self._size // self._shape.global_batch_size)

    def __len__(self) -> int:
        """Return the number of micro-batches per epoch, the same on every rank."""
        return self.steps * self._shape.accumulation

    @abstractmethod
    def __iter__(self) -> Iterator[list[Key]]:
        """Yield this rank's micro-batches of one epoch."""

    def _keys(self, epoch: int, global_batch: Integers, rows: Integers) -> list[Key]:
        real = global_batch[global_batch != FILLER]
        denominator = float(self._label_counts(epoch, real).sum())
        return [Key(epoch, int(index), denominator) for index in rows]


class TrainingSampler(KeySampler):
    """Every row once per epoch, in an order of its own each epoch, with rows of like length side by side.

    The shuffled rows are taken in groups of `bucket_batches` global batches; each group is sorted by length and cut
    into global batches, whose order is shuffled. What does not fill a global batch goes last, filled up with fillers.
    None of this knows of ranks and accumulation: these only deal out the rows of a global batch.
    """

    def __init__(
        self,
        lengths: Integers,
        label_counts: LabelCounts,
        shape: BatchShape,
        *,
        seed: int,
        bucket_batches: int = 32,
        same_each_epoch: bool = False,
    ) -> None:
        super().__init__(len(lengths), label_counts, shape)
        self._lengths = lengths
        self._seed = seed
        self._bucket_batches = bucket_batches
        self._same_each_epoch = same_each_epoch
        self._epoch = 0
        self._first_batch = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next pass yields."""
        return self._epoch

    @property
    def first_batch(self) -> int:
        """The micro-batch that the next pass starts with."""
        return self._first_batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; another epoch than the present one starts at its first batch."""
        if epoch != self._epoch and not self._same_each_epoch:
            self._epoch, self._first_batch = epoch, 0

    def start_at(self, epoch: int, batch: int) -> None:
        """Let the next pass yield `epoch` from its micro-batch `batch` on (micro-batches of one rank, from 0)."""
        if not 0 <= batch <= len(self):
            raise ConfigError(
                f"cannot resume at batch {batch} of an epoch of {len(self)} batches: have the data changed?"
            )
        self._epoch, self._first_batch = epoch, batch

    def global_batches(self, epoch: int) -> Integers:
        """Return the row indices of the epoch's global batches, (steps, global batch size); -1 is a filler."""
        rows = self._shape.global_batch_size
        generator = counter_generator(self._seed, epoch)
        order = random_order(generator, self._size)
        whole = self._size // rows
        batches = np.full((self.steps, rows), FILLER, dtype=np.int64)
        group = rows * self._bucket_batches
        for first in range(0, whole * rows, group):
            part = order[first : min(first + group, whole * rows)]
            part = part[np.argsort(self._lengths[part], kind="stable")]
            batches[first // rows : (first + len(part)) // rows] = part.reshape(-1, rows)
        batches[:whole] = batches[:whole][random_order(generator, whole)]
        if whole < self.steps:
            rest = order[whole * rows :]
            batches[whole, : len(rest)] = rest[np.argsort(self._lengths[rest], kind="stable")]
        return batches

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, first = self._epoch, self._first_batch
        self._first_batch = 0
        shape = self._shape
        for number, global_batch in enumerate(self.global_batches(epoch)):
            if (number + 1) * shape.accumulation <= first:
                continue
            keys = self._keys(epoch, global_batch, global_batch)
            # Micro-batches are neighbours in length; within one, rows are dealt out in turn: ranks have like work.
            for part in range(shape.accumulation):
                micro_batch = keys[part * shape.ranks * shape.batch_size :][: shape.ranks * shape.batch_size]
                if number * shape.accumulation + part >= first:
                    yield micro_batch[shape.rank :: shape.ranks]


class EvaluationSampler(KeySampler):
    """Every row once, in order, always with the same draws; fillers make the batches of all ranks alike."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: each pass is the same."""

    def __iter__(self) -> Iterator[list[Key]]:
        shape = self._shape
        assert shape.accumulation == 1
        for first in range(0, self._size, shape.global_batch_size):
            global_batch = np.arange(first, first + shape.global_batch_size)
            global_batch[global_batch >= self._size] = FILLER
            rows = global_batch[shape.rank * shape.batch_size :][: shape.batch_size]
            yield self._keys(EVALUATION_EPOCH, global_batch, rows)
