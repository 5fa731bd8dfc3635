"""Shows the numbers that people watch while a run goes on: a bar in a terminal, lines everywhere else."""

from __future__ import annotations

import logging
import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from longattn.training.callbacks.throughput import ends_optimizer_step
from longattn.training.terminal import PROGRESS_LOGGER, terminal

_log = logging.getLogger(PROGRESS_LOGGER)
_notable_log = logging.getLogger(__name__)  # rare enough to stand above a progress bar

_FORMATS = {
    "loss": "loss {:.4f}",
    "perplexity": "perplexity {:.2f}",
    "masked_accuracy": "accuracy {:.1%}",
    "learning_rate": "lr {:.2e}",
    "gradient_norm": "grad {:.3f}",
    "tokens_per_second": "{:,.0f} tokens/s",
}


def numbers_line(metrics: dict[str, Any], stage: str) -> str:
    """Return the numbers of `stage` ("train/", "val/", ...) and the unprefixed ones of training as one line of text."""
    parts = []
    for name, value in metrics.items():
        short = name.removeprefix(stage)
        if short == name and (stage != "train/" or "/" in name):
            continue
        if not math.isfinite(float(value)) and short != "loss":
            continue
        if short in _FORMATS:
            parts.append((list(_FORMATS).index(short), _FORMATS[short].format(float(value))))
        elif short != name:
            parts.append((len(_FORMATS), f"{short} {float(value):.4f}"))
    return "  ".join(text for _, text in sorted(parts))


def total_steps(trainer: Trainer) -> int | None:
    """Return the optimizer steps of the whole run, or None when only a time limit ends it."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if math.isfinite(steps) else None


class ProgressLines(Callback):
    """Logs a line of numbers every `every_steps` optimizer steps, at the first and last step, and per validation."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self._total: int | None = None
        self._diverged = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._total = total_steps(trainer)
        self._diverged = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None and not self._diverged and not math.isfinite(float(loss)) and trainer.is_global_zero:
            self._diverged = True
            _notable_log.warning(
                "step %d: the loss is %s, no number: the training has diverged; lower model.learning_rate", step, loss
            )
        due = step % self._every_steps == 0 or step in (1, self._total)
        if due and ends_optimizer_step(trainer, batch_idx) and trainer.is_global_zero:
            _log.info("%s  %s", self._position(trainer), numbers_line(trainer.callback_metrics, "train/"))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking and trainer.is_global_zero:
            line = numbers_line(trainer.callback_metrics, "val/")
            _notable_log.info("%s  validation: %s", self._position(trainer), line)

    def _position(self, trainer: Trainer) -> str:
        of = "" if self._total is None else f"/{self._total}"
        return f"step {trainer.global_step}{of}  epoch {trainer.current_epoch}"


class ProgressBar(LightningProgressBar):
    """A rich progress bar over the optimizer steps of the run, or over the batches of an evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def disable(self) -> None:
        """Show nothing; Lightning calls this on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("training", total_steps(trainer), trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if ends_optimizer_step(trainer, batch_idx):
            self._show(trainer.global_step, numbers_line(trainer.callback_metrics, "train/"))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._start("validating", _batches(trainer.num_val_batches))

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.state.fn == "validate":
            self._advance()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._stop()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("testing", _batches(trainer.num_test_batches))

    def on_test_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._advance()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("predicting", _batches(trainer.num_predict_batches))

    def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._advance()

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def _start(self, what: str, total: int | None, done: int = 0) -> None:
        if not self._enabled:
            return
        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
        self._progress = Progress(
            TextColumn("{task.description}"), *columns, TextColumn("{task.fields[numbers]}"), console=terminal()
        )
        self._task = self._progress.add_task(what, total=total, completed=done, numbers="")
        self._progress.start()

    def _show(self, done: int, numbers: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, numbers=numbers)

    def _advance(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _batches(counts: list[int | float]) -> int | None:
    total = sum(counts)
    return int(total) if math.isfinite(total) else None
