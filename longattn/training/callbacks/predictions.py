"""Writes what `predict` found, one row per document, in the documents' order."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

_log = logging.getLogger(__name__)


class WritePredictions(Callback):
    """Collects the rows of `predict_step` over batches and ranks into a CSV file.

    A prediction is a mapping of columns, equally long lists, of which `document` is the document's index (-1 = filler
    row, left out); the other columns are counts and sums, which are added over the windows of a document. The module's
    `finish_prediction` turns the sums of one document into its row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Mapping[str, list[Any]],
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        names = list(outputs)
        self._rows += [dict(zip(names, values, strict=True)) for values in zip(*outputs.values(), strict=True)]

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows = _gather(self._rows, trainer.world_size)
        if not trainer.is_global_zero:
            return
        merged: dict[int, dict[str, Any]] = {}
        for row in (row for row in rows if row["document"] >= 0):
            known = merged.setdefault(row["document"], dict.fromkeys(row, 0) | {"document": row["document"]})
            known.update({name: known[name] + value for name, value in row.items() if name != "document"})
        finish: Any = pl_module.finish_prediction
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            ordered = [finish(merged[index]) for index in sorted(merged)]
            writer.writerow(ordered[0] if ordered else ["document"])
            writer.writerows(row.values() for row in ordered)
        _log.info("wrote %d documents to %s", len(ordered), self._path)


def _gather(rows: list[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    if ranks == 1:
        return rows
    everyone: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    dist.all_gather_object(everyone, rows)
    return [row for part in everyone for row in part]
