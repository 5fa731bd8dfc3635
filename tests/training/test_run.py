"""The run folder: what may start in it, and which checkpoint is meant."""

from __future__ import annotations

import zipfile

import pytest

from longattn.errors import ConfigError
from longattn.training.run import RunConfig, RunFolder, find_checkpoint, run_folder_of


def checkpoint(folder: RunFolder, step: int):
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    path = folder.checkpoint_of(step)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")
    return path


def test_a_folder_with_a_run_is_refused_and_the_options_named(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.claim(RunConfig(), resumes=False)
    folder.claim(RunConfig(), resumes=False)  # nothing has been trained there yet
    folder.config.write_text("")
    with pytest.raises(ConfigError, match=r"already holds a run.*--run\.dir.*--ckpt_path.*--run\.if_exists overwrite"):
        folder.claim(RunConfig(), resumes=False)
    folder.claim(RunConfig(), resumes=True)
    assert folder.config.exists()


def test_overwrite_removes_the_run_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path)
    checkpoint(folder, 5)
    folder.metrics.write_text("")
    folder.tensorboard.mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    folder.claim(RunConfig(if_exists="overwrite"), resumes=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoints", "notes.txt"]


def test_a_file_is_no_run_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        RunFolder(tmp_path / "file").claim(RunConfig(), resumes=False)


def test_the_newest_checkpoint_is_that_of_the_highest_step(tmp_path):
    folder = RunFolder(tmp_path)
    checkpoint(folder, 9)
    newest = checkpoint(folder, 123_456_789_0)
    checkpoint(folder, 10)
    (folder.checkpoints / "step_half.ckpt").write_text("")
    assert find_checkpoint(str(tmp_path)) == newest
    assert find_checkpoint(str(folder.checkpoint_of(9))) == folder.checkpoint_of(9)


@pytest.mark.parametrize("name", ["missing", "empty", "text.ckpt"])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(ConfigError, match=name):
        find_checkpoint(str(tmp_path / name))


def test_a_checkpoint_knows_its_run(tmp_path):
    folder = RunFolder(tmp_path)
    path = checkpoint(folder, 1)
    assert run_folder_of(path) is None
    folder.config.write_text("")
    found = run_folder_of(path)
    assert found is not None
    assert found.path == tmp_path.resolve()


@pytest.mark.parametrize("field", ["save_every_steps", "print_every_steps"])
def test_steps_of_nothing_are_refused(field):
    with pytest.raises(ConfigError, match=f"{field}.*0"):
        RunConfig(**{field: 0})
