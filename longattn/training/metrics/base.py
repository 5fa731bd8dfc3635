"""What the metrics of a task are: sums over tokens or documents, combined once over micro-batches and ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from longattn.discovery import classes_in, nearest
from longattn.errors import ConfigError


class WeightedSums(Metric):
    """A vector of sums that ranks add up in one exchange; ratios of its entries are exact however the data is split.

    fp64, so that sums over an epoch lose nothing, except on devices that have no fp64 (mps): fp32.
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, size: int, **kwargs: Any) -> None:
        """Start with `size` zeros."""
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        """Add `values`, a vector of `size` numbers."""
        self.sums += values.detach().to(self.sums)

    def compute(self) -> Tensor:
        """Return the sums over all updates and ranks."""
        return self.sums.clone()


class TaskMetrics(ABC):
    """The numbers that one task reports. A subclass in a file of this folder is found by its `task`.

    Not a torch module on purpose: its sums must keep their precision when the model is turned into bf16.
    """

    task: ClassVar[str]

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move the sums to `device`; all ranks' sums are exchanged from there."""

    @abstractmethod
    def update(self, output: Any, batch: dict[str, Any]) -> None:
        """Take in one micro-batch: the model's output for `batch`, without touching gradients."""

    @abstractmethod
    def compute(self) -> dict[str, Tensor]:
        """Return the values over all micro-batches and ranks since the last reset, by name without prefix.

        Empty when there was nothing to measure, such as a step of documents too short to have a label.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget what was taken in."""

    @abstractmethod
    def document_sums(self, output: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return counts and sums, one each per segment of `batch`; those of a document's windows are added up."""

    @abstractmethod
    def document_row(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Return the columns that `predict` writes for a document with these sums."""


def tasks_with_metrics() -> dict[str, type[TaskMetrics]]:
    """Return the metrics class of each task."""
    found = classes_in("longattn.training.metrics", TaskMetrics)  # type: ignore[type-abstract]
    return {metrics.task: metrics for metrics in found.values()}


def build_metrics(task: str) -> TaskMetrics:
    """Return fresh metrics for `task`; ConfigError names the nearest task when there is none."""
    known = tasks_with_metrics()
    if task not in known:
        raise ConfigError(f"task {task!r} is unknown{nearest(task, known)}: choose one of {', '.join(known)}")
    return known[task]()
