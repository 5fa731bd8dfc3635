"""Writes the files of the run folder that are no logger's: `config.yaml`, the tokenizer, and lines of the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from longattn.training.loggers import MetricsCSV
from longattn.training.run import RunFolder

_log = logging.getLogger(__name__)


class WriteRunFiles(Callback):
    """Puts down what is needed to repeat or to use the run, once everything is known to fit together."""

    def __init__(self, folder: RunFolder, config_yaml: str | None) -> None:
        """Write into `folder`; `config_yaml` is the text of the complete configuration (None: write none)."""
        self._folder = folder
        self._config_yaml = config_yaml

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        if self._config_yaml is not None:
            write_beside_first(self._folder.config, self._config_yaml)
        tokenizer: Any = getattr(trainer.datamodule, "tokenizer", None)  # type: ignore[attr-defined]
        if tokenizer is not None:
            tokenizer.save(self._folder.tokenizer)
        _log.info("%s", describe(pl_module))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        statistics = getattr(trainer.datamodule, "statistics", None)  # type: ignore[attr-defined]
        if statistics is not None and trainer.is_global_zero:
            _log.info(
                "a guess by word frequency has a loss of %.4f: training pays below it", statistics.unigram_entropy
            )
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV):
                logger.drop_rows_after(trainer.global_step)


def describe(module: LightningModule) -> str:
    """Return what is trained in one line."""
    network: Any = module.network
    config = network.config
    parameters = sum(parameter.numel() for parameter in module.parameters())
    patterns = list(dict.fromkeys(repr(config.pattern_of(layer)) for layer in range(config.num_layers)))
    shown = patterns[0] if len(patterns) == 1 else f"{len(patterns)} patterns, {patterns[0]} first"
    return (
        f"model: {parameters:,} parameters, {config.num_layers} layers of width {config.d_model}, vocabulary "
        f"{config.vocab_size}, {shown}"
    )


def write_beside_first(path: Path, text: str) -> None:
    """Write `text` to `path`; where another text is there already, to `config.2.yaml` and so on: the first is kept."""
    number, target = 1, path
    while target.exists():
        if target.read_text(encoding="utf-8") == text:
            return
        number += 1
        target = path.with_name(f"{path.stem}.{number}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    if target != path:
        _log.info("the configuration differs from the run's first one: written to %s", target)
