"""Measures what a step costs: real tokens per second, memory, and how much of each batch is padding."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric


class StepUsage(Metric):
    """Real tokens and slots (summed over ranks) and the peak memory in bytes (of the rank with most)."""

    full_state_update = False
    sums: Tensor
    peak_bytes: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("peak_bytes", torch.zeros((), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, attention_mask: Tensor) -> None:
        """Take in a batch by its mask (B, L), True = real token."""
        self.sums += torch.stack([attention_mask.sum(), attention_mask.sum().new_tensor(attention_mask.numel())])
        self.peak_bytes += peak_memory_bytes(attention_mask.device) - self.peak_bytes

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (tokens, slots, peak bytes) since the last reset."""
        return self.sums[0], self.sums[1], self.peak_bytes


class Throughput(Callback):
    """Logs per optimizer step `tokens_per_second`, `packing_efficiency` and `peak_memory_bytes`.

    The time of a step counts from the end of the one before, so waiting for data is part of it and validation is not.
    """

    def __init__(self) -> None:
        self._usage = StepUsage()
        self._started = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._usage.to(pl_module.device)
        self._usage.reset()
        self._started = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: dict[str, Any], batch_idx: int
    ) -> None:
        self._usage.update(batch["attention_mask"])
        if not ends_optimizer_step(trainer, batch_idx):
            return
        tokens, slots, peak_bytes = self._usage.compute()
        now = time.perf_counter()
        seconds, self._started = now - self._started, now
        pl_module.log("tokens_per_second", tokens / seconds, prog_bar=True)
        pl_module.log("packing_efficiency", tokens / slots)
        pl_module.log("peak_memory_bytes", peak_bytes.double())
        self._usage.reset()


def ends_optimizer_step(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether micro-batch `batch_idx` of the epoch is the last one before the optimizer steps."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory held so far, in bytes: by torch on a GPU, by the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
