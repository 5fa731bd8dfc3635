"""Loggers of a run folder: `metrics.csv`, one row per optimizer step, and TensorBoard event files."""

from __future__ import annotations

import csv
import io
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

FIRST_COLUMNS = ("step", "epoch", "train/loss", "val/loss")


class MetricsCSV(Logger):
    """Writes a CSV file with one row per optimizer step; a value that was not measured at a step is left empty.

    `step` counts the optimizer steps done (the first row is 1), so a checkpoint of step k belongs to row k. Every
    value is on disk as soon as it is logged, in full precision. An existing file is continued.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)
        self._columns: list[str] = []
        self._row: dict[str, str] = {}
        self._row_start = 0

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run folder's `config.yaml` holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write `metrics` into the row of `step`, which Lightning counts from 0."""
        if not self._columns:
            self._open()
        number = str(0 if step is None else step + 1)
        if self._row.get("step") != number:
            self._row, self._row_start = {"step": number}, self.path.stat().st_size
        self._row.update({name: _text(value) for name, value in metrics.items() if name != "step"})
        new = [name for name in self._row if name not in self._columns]
        if new:
            self._add_columns(new)
        with self.path.open("r+b") as file:
            file.seek(self._row_start)
            file.truncate()
            file.write(self._lines([self._row]))

    @rank_zero_only
    def drop_rows_after(self, step: int) -> None:
        """Remove the rows of optimizer steps after `step`: a run that resumes there will write them again."""
        if not self.path.exists():
            return
        self._open()
        self._write([row for row in _read(self.path) if int(row["step"]) <= step])

    def _open(self) -> None:
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file))
            self._write(_read(self.path))
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._columns = list(FIRST_COLUMNS)
            self._write([])
        self._row = {}

    def _add_columns(self, names: list[str]) -> None:
        rows = [row for row in _read(self.path) if row["step"] != self._row["step"]]
        self._columns += names
        self._write(rows)

    def _write(self, rows: list[dict[str, str]]) -> None:
        """Replace the file by one with these rows, so that a crash leaves the old one or the new one."""
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_bytes(self._lines([dict(zip(self._columns, self._columns, strict=True)), *rows]))
        partial.replace(self.path)
        self._row_start = self.path.stat().st_size

    def _lines(self, rows: list[dict[str, str]]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


class StepTensorBoard(TensorBoardLogger):
    """TensorBoard with the same count of steps as `MetricsCSV`: optimizer steps done."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(dict(metrics), None if step is None else step + 1)


def _text(value: float) -> str:
    """Return `value` so that reading it back gives the same number."""
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def _read(path: Path) -> list[dict[str, str]]:
    """Return the rows that are whole: a run that was killed may have left half of the last one."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row.values() and row["step"].isdigit()]
