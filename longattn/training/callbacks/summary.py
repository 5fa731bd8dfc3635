"""Ends a run with what came of it: a table in the terminal and a picture of the loss in the run folder."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.table import Table

from longattn.training.run import RunFolder
from longattn.training.terminal import terminal

_SMOOTHED = 20  # optimizer steps whose losses are averaged for the table's last loss and the picture's thick line
_LAST_PART = 5  # but for the last loss at most one of so many parts of the run: its start is not its end

Curve = list[tuple[int, float]]
"""(optimizer step, value) pairs."""


class SummariseRun(Callback):
    """Writes `loss.png` and prints a table once training has ended."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._folder.metrics.exists():
            return
        curves = read_curves(self._folder.metrics)
        if not curves.get("train/loss"):
            return
        data = getattr(trainer, "datamodule", None)
        entropy = getattr(getattr(data, "statistics", None), "unigram_entropy", None)
        draw_losses(curves, entropy, self._folder.loss_picture)
        terminal().print(summary_table(curves, entropy, self._folder))


def read_curves(path: Path) -> dict[str, Curve]:
    """Return every column of a `metrics.csv` as a curve, without the steps at which it was not measured."""
    curves: dict[str, Curve] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name not in ("step", "epoch") and value:
                    curves.setdefault(name, []).append((int(row["step"]), float(value)))
    return curves


def summary_table(curves: dict[str, Curve], entropy: float | None, folder: RunFolder) -> Table:
    """Return the table of a run; `entropy` is the loss (nats) of a guess by word frequency."""
    losses = [loss for _, loss in curves["train/loss"]]
    last = statistics.fmean(losses[-max(1, min(_SMOOTHED, len(losses) // _LAST_PART)) :])
    table = Table(title="what came of the run", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("optimizer steps", f"{curves['train/loss'][-1][0]:,}")
    table.add_row("training loss", f"{losses[0]:.3f} at first, {last:.3f} at last (nats per masked token)")
    if curves.get("val/loss"):
        value = curves["val/loss"][-1][1]
        table.add_row("validation loss", f"{value:.3f}, perplexity {math.exp(value):.1f}")
    if entropy is not None:
        reached = curves["val/loss"][-1][1] if curves.get("val/loss") else last
        verdict = f"beaten by {entropy - reached:.3f}" if reached < entropy else "not beaten yet: train longer"
        if not math.isfinite(reached):
            verdict = "the training has diverged: lower the learning rate"
        table.add_row("guess by word frequency", f"{entropy:.3f} (unigram entropy), {verdict}")
    if curves.get("tokens_per_second"):
        speed = statistics.median(value for _, value in curves["tokens_per_second"])
        table.add_row("speed", f"{speed:,.0f} tokens/s")
    if curves.get("peak_memory_bytes"):
        peak = max(value for _, value in curves["peak_memory_bytes"])
        table.add_row("peak memory", f"{peak / 2**30:.2f} GiB")
    table.add_row("picture of the loss", str(folder.loss_picture))
    table.add_row(
        "all numbers, settings, weights", f"{folder.metrics.name}, {folder.config.name}, checkpoints/ beside it"
    )
    return table


def draw_losses(curves: dict[str, Curve], entropy: float | None, path: Path) -> None:
    """Draw training and validation loss over the steps into the PNG file `path`, with the unigram entropy as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axis = figure.subplots()
    steps, losses = zip(*curves["train/loss"], strict=True)
    axis.plot(steps, losses, color="#9ecae1", linewidth=0.8, label="training, each step")
    if len(losses) > _SMOOTHED:
        means = [statistics.fmean(losses[max(0, i - _SMOOTHED + 1) : i + 1]) for i in range(len(losses))]
        axis.plot(steps, means, color="#08519c", linewidth=1.8, label=f"training, mean of {_SMOOTHED} steps")
    if curves.get("val/loss"):
        steps, losses = zip(*curves["val/loss"], strict=True)
        axis.plot(steps, losses, color="#d95f02", marker="o", linewidth=1.2, label="validation")
    if entropy is not None:
        axis.axhline(entropy, color="#555555", linestyle="--", linewidth=1.0, label="guess by word frequency")
    axis.set_xlabel("optimizer step")
    axis.set_ylabel("loss (nats per masked token)")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    figure.savefig(path)
