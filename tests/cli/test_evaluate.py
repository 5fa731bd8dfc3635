"""validate, test and predict from a checkpoint."""

from __future__ import annotations

import csv
import json

import pytest


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    from longattn.cli import main

    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = [f"--run.dir={folder}", "--trainer.max_steps=3", "--data.validation_fraction=0.4"]
    arguments += ["--trainer.val_check_interval=3"]
    assert main(["fit", *settings, *arguments]) == 0
    return folder


def test_validate_gives_the_last_validation_loss_of_the_run(run, longattn, metrics_of):
    before = (run / "metrics.csv").read_bytes()
    outcome = longattn("validate", "--config", run / "config.yaml", "--ckpt_path", run)
    assert outcome.code == 0, outcome.err
    values = json.loads((run / "validate.json").read_text())
    assert values["val/loss"] == pytest.approx(float(metrics_of(run)[-1]["val/loss"]), rel=1e-6)
    assert "val/loss" in outcome.out
    assert (run / "metrics.csv").read_bytes() == before


def test_a_checkpoint_of_a_run_needs_no_config(run, longattn):
    outcome = longattn("test", "--ckpt_path", run / "checkpoints" / "step_00000003.ckpt")
    assert outcome.code == 0, outcome.err
    assert json.loads((run / "test.json").read_text())["test/loss"] > 0


def test_predict_writes_a_row_per_document_in_order(run, longattn, tmp_path):
    outcome = longattn("predict", "--ckpt_path", run, "--run.dir", tmp_path, "--data.max_length", 32)
    assert outcome.code == 0, outcome.err
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["document"]) for row in rows] == list(range(len(rows)))
    assert len(rows) == round(0.4 * 24)
    longest = max(rows, key=lambda row: int(row["tokens"]))
    assert int(longest["tokens"]) > 32, "windows of a document are put together again"
    assert float(longest["loss"]) > 0
    assert not (tmp_path / "config.yaml").exists()


def test_the_tokenizer_of_the_run_is_used_on_other_data(run, longattn, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "quite different words stand here"}\n' * 3)
    outcome = longattn(
        "validate", "--ckpt_path", run, "--data.data_files", other, "--run.dir", tmp_path / "out",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err


def test_another_tokenizer_is_refused(run, longattn, tmp_path):
    outcome = longattn(
        "validate", "--ckpt_path", run, "--run.dir", tmp_path, "--data.tokenizer", _other_tokenizer(tmp_path)
    )
    assert outcome.code == 2
    assert "trained with another tokenizer" in outcome.err


def _other_tokenizer(folder):
    from longattn.data import TokenizerTraining, train_tokenizer

    target = folder / "tokenizer"
    train_tokenizer(lambda: ["some other text"] * 5, TokenizerTraining(vocab_size=262)).save(target)
    return target


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_weights_are_needed(longattn, settings, command):
    outcome = longattn(command, *settings)
    assert outcome.code == 2
    assert "--ckpt_path" in outcome.err
