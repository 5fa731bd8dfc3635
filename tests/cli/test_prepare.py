"""`longattn prepare`: a folder that is whole, says what it holds, and gives the same training as its source."""

from __future__ import annotations

import errno
import json
import shutil

import pytest

import longattn.data.prepared as prepared_module


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    records = [{"text": f"word {number} " * (number + 1), "y": number % 2} for number in range(20)]
    whole = [json.dumps(record) for record in records]
    path.write_text("\n".join([*whole[:10], "", "{broken", '{"text": ""}', *whole[10:]]) + "\n")
    return path


@pytest.fixture
def flags(lines, tmp_path):
    return [
        "--data.path=json", f"--data.data_files={lines}", "--data.bad_records=skip", "--data.max_length=32",
        "--data.tokenizer_training.vocab_size=300", f"--data.cache_dir={tmp_path / 'cache'}",
        "--data.validation_fraction=0.2",
    ]  # fmt: skip


def test_the_folder_says_what_it_holds(longattn, flags, tmp_path):
    outcome = longattn("prepare", *flags, "--data.long_documents=keep_head", "--output", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["documents"], summary["skipped"]) == (20, 2)
    assert summary["parts"]["train"]["documents"] == 16
    assert summary["parts"]["validation"]["documents"] == 4
    assert summary["tokens"] == sum(part["tokens"] for part in summary["parts"].values())
    assert 0 < summary["truncated_tokens"] < summary["tokens"]
    quantiles = list(summary["parts"]["train"]["length_quantiles"].values())
    assert quantiles == sorted(quantiles)
    assert (tmp_path / "out" / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "train: 16 documents" in outcome.out + outcome.err


def test_training_on_it_is_training_on_its_source(longattn, settings, flags, tmp_path, metrics_of):
    assert longattn("prepare", *flags, "--output", tmp_path / "out").code == 0
    shutil.move(tmp_path / "out", tmp_path / "moved")  # it needs neither its place nor the cache
    model = [flag for flag in settings if not flag.startswith("--data.")]
    common = [*model, "--data.max_length=32", "--trainer.max_steps=3", "--data.batch_size=2", "--run.tensorboard=false"]
    assert longattn("fit", *common, *flags, f"--run.dir={tmp_path / 'a'}").code == 0
    shutil.rmtree(tmp_path / "cache")
    outcome = longattn("fit", *common, f"--data.path={tmp_path / 'moved'}", f"--run.dir={tmp_path / 'b'}")
    assert outcome.code == 0, outcome.err
    losses = [[row["train/loss"] for row in metrics_of(tmp_path / run)] for run in "ab"]
    assert losses[0] == losses[1]


def test_settings_that_come_too_late_are_refused(longattn, settings, flags, tmp_path):
    assert longattn("prepare", *flags, "--output", tmp_path / "out").code == 0
    model = [flag for flag in settings if not flag.startswith("--data.")] + ["--trainer.max_steps=1"]
    for flag, message in (
        ("--data.text_column=body", "text_column has no effect"),
        ("--data.maximum_documents=3", "maximum_documents has no effect"),
        ("--data.split=train[:5]", "split has no effect"),
        ("--data.test_split=train", "test_split has no effect"),
    ):
        outcome = longattn("fit", *model, f"--data.path={tmp_path / 'out'}", flag, f"--run.dir={tmp_path / 'run'}")
        assert outcome.code == 2
        assert message in outcome.err
    shutil.rmtree(tmp_path / "out" / "validation")
    outcome = longattn("fit", *model, f"--data.path={tmp_path / 'out'}", f"--run.dir={tmp_path / 'run'}")
    assert outcome.code == 2
    assert "is not whole: validation is missing" in outcome.err


def test_a_folder_that_is_there_is_left_alone(longattn, flags, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    outcome = longattn("prepare", *flags, "--output", tmp_path / "out")
    assert outcome.code == 2
    assert "is there already" in outcome.err
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["mine"]
    outcome = longattn("prepare", *flags)
    assert outcome.code == 2
    assert "--output is missing" in outcome.err


def test_a_full_disk_leaves_no_half_made_folder(longattn, flags, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepared_module.os, "link", full)
    monkeypatch.setattr(prepared_module.shutil, "copyfile", full)
    outcome = longattn("prepare", *flags, "--output", tmp_path / "place" / "out")
    assert outcome.code == 2
    assert "cannot be written" in outcome.err
    assert "No space left on device" in outcome.err
    assert list((tmp_path / "place").iterdir()) == []


def test_a_file_of_fit_is_taken_too(longattn, flags, tmp_path):
    (tmp_path / "mine.yaml").write_text("model:\n  d_model: 32\ntrainer:\n  max_steps: 5\ndata:\n  stride: 4\n")
    outcome = longattn("prepare", "--config", tmp_path / "mine.yaml", *flags, "--output", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    outcome = longattn("prepare", "--help")
    assert "usage: longattn prepare" in outcome.out
    outcome = longattn("prepare", *flags, "--output", tmp_path / "two", "--data.text_colunm=x")
    assert outcome.code == 2
    assert "did you mean" in outcome.err
