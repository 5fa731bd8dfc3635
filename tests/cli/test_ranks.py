"""Two ranks share the work of one: the same numbers (cases B34 and B59)."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

import longattn as package


def start(*arguments: object) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "longattn", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_two_ranks_give_the_curve_and_the_predictions_of_one(longattn, settings, tmp_path, metrics_of):
    shared = [
        *settings, "--trainer.max_steps=4", "--trainer.val_check_interval=4", "--model.optimizer=sgd",
        "--model.learning_rate=0.1", "--data.validation_fraction=0.3",
    ]  # fmt: skip
    ranks = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    assert longattn("fit", *shared, "--data.batch_size=2", f"--run.dir={tmp_path / 'one'}").code == 0
    start("fit", *shared, "--data.batch_size=1", *ranks, f"--run.dir={tmp_path / 'two'}")
    one, two = metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two")
    assert len(two) == len(one) == 4
    for name in ("train/loss", "train/masked_accuracy", "gradient_norm"):
        assert [float(row[name]) for row in two] == pytest.approx([float(row[name]) for row in one], rel=1e-5)
    assert float(two[-1]["val/loss"]) == pytest.approx(float(one[-1]["val/loss"]), rel=1e-5)

    given = ["predict", "--ckpt_path", tmp_path / "one", "--data.evaluation_batch_size=2"]
    assert longattn(*given, f"--run.dir={tmp_path / 'p1'}").code == 0
    start(*given, *ranks, f"--run.dir={tmp_path / 'p2'}")
    with (tmp_path / "p1" / "predictions.csv").open() as first, (tmp_path / "p2" / "predictions.csv").open() as second:
        alone, together = list(csv.DictReader(first)), list(csv.DictReader(second))
    assert [row["document"] for row in together] == [row["document"] for row in alone]
    assert [row["tokens"] for row in together] == [row["tokens"] for row in alone]
    for row, other in zip(together, alone, strict=True):
        assert bool(row["loss"]) == bool(other["loss"])
        assert float(row["loss"] or 0) == pytest.approx(float(other["loss"] or 0), rel=1e-5)
