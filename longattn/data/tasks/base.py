"""What a task is to the data: how a window of a document becomes what a model reads, with how many labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from longattn.data.collate import Row, Segment
from longattn.data.masking import IGNORED_LABEL, Masking
from longattn.data.sampler import Key
from longattn.data.tokenizer import Tokenizer
from longattn.discovery import classes_in, nearest
from longattn.errors import ConfigError

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What a task is built from; each takes what it needs."""

    tokenizer: Tokenizer
    """Gives the ids of special tokens."""

    masking: Masking
    """For tasks that mask."""

    seed: int
    """Seed of the data's random draws."""


@dataclass(frozen=True)
class WindowTokens:
    """A window of a document as tokens of text, without special tokens."""

    tokens: Integers
    """(length,) token ids."""

    document: int
    """Index of the document."""

    window: int
    """Index of the window."""


class Task(ABC):
    """One way to train on documents. A subclass is a file of `longattn/data/tasks`, found by its `name`."""

    name: ClassVar[str]
    """What `--data.task` and `--model.task` call it."""

    special_tokens_per_window: ClassVar[int] = 2
    """Special tokens that stand around a window."""

    @classmethod
    @abstractmethod
    def build(cls, settings: TaskSettings) -> Self:
        """Return the task for a tokenizer and the data's settings."""

    @abstractmethod
    def label_counts(self, epoch: int, windows: Integers, maskable: Integers) -> Integers:
        """Return how many labels each window will have, without building it.

        `windows` are indices of windows, `maskable` their numbers of tokens of text that are not special.
        """

    @abstractmethod
    def segment(self, window: WindowTokens, epoch: int) -> Segment:
        """Return what a window becomes: a function of the window, the task's settings and the epoch alone."""


def filler_row(tokenizer: Tokenizer, key: Key) -> Row:
    """Return the shortest row there is, without a label: it fills a batch up and adds nothing to a loss."""
    tokens = np.array([tokenizer.special.cls, tokenizer.special.sep], dtype=np.int64)
    segment = Segment(tokens, np.full_like(tokens, IGNORED_LABEL), document=-1, window=-1)
    return Row((segment,), key.denominator)


def task_class(name: str) -> type[Task]:
    """Return the task called `name`; raise ConfigError with the nearest name if there is none."""
    tasks = {task.name: task for task in classes_in("longattn.data.tasks", Task).values()}  # type: ignore[type-abstract]
    if name not in tasks:
        raise ConfigError(f"task={name!r}: no such task{nearest(name, tasks)}; there are {', '.join(sorted(tasks))}")
    return tasks[name]
