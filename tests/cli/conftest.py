"""Runs commands in this process, on a tiny corpus."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from longattn.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    words = ["the", "cup", "fell", "because", "it", "was", "full", "of", "tea", "and", "nobody", "looked"]
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    texts = [" ".join(draw.choices(words, k=draw.choice([3, 10, 40, 90]))) for _ in range(24)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="session")
def settings(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a tiny run, without its folder and its length."""
    values = {
        "model.d_model": 16,
        "model.num_heads": 2,
        "model.num_layers": 2,
        "model.d_ff": 32,
        "model.architecture.dropout": 0.0,
        "model.learning_rate": 0.01,
        "data.path": "json",
        "data.data_files": corpus,
        "data.cache_dir": tmp_path_factory.mktemp("cache"),
        "data.tokenizer_training.vocab_size": 300,
        "data.max_length": 64,
        "data.batch_size": 2,
        "trainer.accelerator": "cpu",
        "trainer.devices": 1,
    }
    return [f"--{name}={value}" for name, value in values.items()]


@pytest.fixture
def longattn(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run the command line as a user would, and return the exit code and what was printed."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # --help and --print_config end this way
            code = int(stop.code or 0)
        printed = capfd.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


def read_metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def metrics_of() -> Callable[[Path], list[dict[str, str]]]:
    """Return the rows of a run's metrics.csv."""
    return read_metrics
