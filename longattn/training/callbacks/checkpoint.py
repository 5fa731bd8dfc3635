"""Saves checkpoints into the run folder, every so many optimizer steps and at the end of training."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from longattn.training.callbacks.throughput import ends_optimizer_step
from longattn.training.run import RunFolder

_log = logging.getLogger(__name__)


class SaveCheckpoints(Checkpoint):
    """Writes `checkpoints/step_<optimizer step>.ckpt`."""

    def __init__(self, folder: RunFolder, every_steps: int | None) -> None:
        """Save every `every_steps` optimizer steps (None: only at the end) into `folder`."""
        self._folder = folder
        self._every_steps = every_steps
        self._saved_step = -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder = trainer.strategy.broadcast(self._folder)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not ends_optimizer_step(trainer, batch_idx):
            return
        due = self._every_steps is not None and trainer.global_step % self._every_steps == 0
        # The last step is saved here, not at the end of training, where Lightning's counters stand in the next epoch.
        if due or _is_last_step(trainer):
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        if trainer.global_step == self._saved_step or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path = self._folder.checkpoint_of(trainer.global_step)
        trainer.save_checkpoint(path, weights_only=False)
        self._saved_step = trainer.global_step
        _log.info("saved %s", path)


def _is_last_step(trainer: Trainer) -> bool:
    last_epoch = trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs
    return trainer.should_stop or trainer.global_step == trainer.max_steps or (last_epoch and trainer.is_last_batch)
