"""A tiny corpus, model and trainer for the tests of training."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from longattn.data import TextDataModule, TokenizerTraining
from longattn.training.architecture import ArchitectureConfig
from longattn.training.module import EncoderModule
from longattn.training.schedule import ScheduleConfig


class Recorder(Callback):
    """Keeps the logged numbers of every optimizer step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_step > len(self.rows):
            self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 documents of very different lengths, of few words so that they can be learned."""
    draw = random.Random(0)
    words = ["the", "cup", "fell", "because", "it", "was", "full", "of", "tea", "and", "nobody", "looked"]
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    texts = [" ".join(draw.choices(words, k=draw.choice([3, 10, 40, 60]))) for _ in range(24)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def make_data(corpus: Path, cache_dir: Path) -> Callable[..., TextDataModule]:
    def make(**settings: Any) -> TextDataModule:
        defaults: dict[str, Any] = {
            "path": "json",
            "data_files": str(corpus),
            "cache_dir": str(cache_dir),
            "tokenizer_training": TokenizerTraining(vocab_size=300),
            "max_length": 64,
            "batch_size": 2,
            "seed": 1,
            "progress": False,
        }
        return TextDataModule(**{**defaults, **settings})

    return make


@pytest.fixture
def make_module() -> Callable[..., EncoderModule]:
    def make(**settings: Any) -> EncoderModule:
        defaults: dict[str, Any] = {
            "d_model": 16,
            "num_heads": 2,
            "num_layers": 2,
            "d_ff": 32,
            "architecture": ArchitectureConfig(dropout=0.0),
            "learning_rate": 1e-2,
            "schedule": ScheduleConfig(shape="constant"),
        }
        return EncoderModule(**{**defaults, **settings})

    return make


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    def make(**settings: Any) -> Trainer:
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "default_root_dir": str(tmp_path),
        }
        return Trainer(**{**defaults, **settings})

    return make


@pytest.fixture
def fit(
    make_data: Callable[..., TextDataModule],
    make_module: Callable[..., EncoderModule],
    make_trainer: Callable[..., Trainer],
) -> Callable[..., tuple[EncoderModule, Recorder]]:
    """Train for some steps from a fixed seed; return the module and the numbers of each step."""

    def run(
        *, steps: int = 3, data: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **module: Any
    ) -> tuple[EncoderModule, Recorder]:
        import torch

        torch.manual_seed(7)
        recorder = Recorder()
        trained = make_module(**module)
        settings = dict(trainer or {})
        callbacks = [*settings.pop("callbacks", []), recorder]
        make_trainer(max_steps=steps, callbacks=callbacks, **settings).fit(trained, make_data(**(data or {})))
        return trained, recorder

    return run
