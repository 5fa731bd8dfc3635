"""A run's folder: its configuration, where its files lie, and whether a new run may start in it."""

from __future__ import annotations

import logging
import shutil
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longattn.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a run writes, and how often."""

    dir: str | None = None
    """Folder of the run; None = runs/<date>-<time>-<pattern> in the current folder."""

    if_exists: Literal["refuse", "overwrite"] = "refuse"
    """What `fit` does when the folder already holds a run; with --ckpt_path that run is continued in either case."""

    save_every_steps: int | None = 500
    """Optimizer steps from one checkpoint to the next; the end of training is saved besides. None = only the end."""

    print_every_steps: int = 10
    """Optimizer steps from one line of numbers in `log.txt` (and in terminals without a progress bar) to the next."""

    tensorboard: bool = True
    """Whether to write TensorBoard event files."""

    def __post_init__(self) -> None:
        if self.dir == "":
            raise ConfigError("run.dir is an empty word: give a folder, or null for one of its own")
        if self.save_every_steps is not None and self.save_every_steps < 1:
            raise ConfigError(f"run.save_every_steps must be at least 1 (optimizer steps), got {self.save_every_steps}")
        if self.print_every_steps < 1:
            raise ConfigError(
                f"run.print_every_steps must be at least 1 (optimizer steps), got {self.print_every_steps}"
            )


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The complete configuration, which `--config` takes again."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One row of numbers per optimizer step."""
        return self.path / "metrics.csv"

    @property
    def log(self) -> Path:
        """What the program said, with times."""
        return self.path / "log.txt"

    @property
    def loss_picture(self) -> Path:
        """The loss over the optimizer steps, drawn when training has ended."""
        return self.path / "loss.png"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer that the run uses, so that a checkpoint is never read with another one."""
        return self.path / "tokenizer"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, `step_00000010.ckpt` after optimizer step 10."""
        return self.path / "checkpoints"

    def checkpoint_of(self, step: int) -> Path:
        """Return the path of the checkpoint after optimizer step `step`."""
        return self.checkpoints / f"step_{step:08d}.ckpt"

    def newest_checkpoint(self) -> Path | None:
        """Return the checkpoint of the highest step, or None."""
        found = [path for path in self.checkpoints.glob("step_*.ckpt") if path.stem.removeprefix("step_").isdigit()]
        return max(found, key=lambda path: int(path.stem.removeprefix("step_")), default=None)

    def holds_a_run(self) -> bool:
        """Return whether a run has started to train here."""
        return self.config.exists() or self.metrics.exists() or self.newest_checkpoint() is not None

    def claim(self, config: RunConfig, *, resumes: bool) -> None:
        """Make the folder ready for a new run, or for one that goes on from a checkpoint (`resumes`).

        ConfigError when it holds a run already and the configuration does not allow to overwrite it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"run.dir {str(self.path)!r} is a file: give a folder")
        if self.holds_a_run() and not resumes:
            if config.if_exists == "refuse":
                raise ConfigError(
                    f"run.dir {str(self.path)!r} already holds a run: choose another --run.dir, go on with "
                    f"--ckpt_path {self.path}, or start anew with --run.if_exists overwrite"
                )
            self._remove_old_run()
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run.dir {str(self.path)!r} cannot be written: {error.strerror}") from error

    def _remove_old_run(self) -> None:
        """Remove the files that a run writes, and nothing else that lies in the folder."""
        _log.info("removing the old run in %s", self.path)
        for file in (self.config, self.metrics, self.log, self.loss_picture, *self.checkpoints.glob("step_*.ckpt")):
            file.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.tokenizer):
            shutil.rmtree(folder, ignore_errors=True)


def default_run_dir(pattern: str) -> str:
    """Return `runs/<date>-<time>-<pattern>` for a run whose folder was not named."""
    return str(Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{pattern.lower()}")


def find_checkpoint(path: str) -> Path:
    """Return the checkpoint file for `path`: a checkpoint, or a run folder, whose newest one is meant.

    ConfigError when there is none.
    """
    given = Path(path)
    if given.is_file():
        if not zipfile.is_zipfile(given):
            raise ConfigError(f"ckpt_path {path!r} is no checkpoint of torch, or a broken one")
        return given
    if not given.exists():
        raise ConfigError(f"ckpt_path {path!r} does not exist: give a checkpoint file or a run folder")
    newest = RunFolder(given).newest_checkpoint()
    if newest is None:
        raise ConfigError(f"ckpt_path {path!r} is a folder without checkpoints/step_*.ckpt: give a checkpoint file")
    return newest


def run_folder_of(checkpoint: Path) -> RunFolder | None:
    """Return the run folder in which `checkpoint` lies, or None when it lies elsewhere."""
    folder = RunFolder(checkpoint.resolve().parent.parent)
    return folder if checkpoint.resolve().parent == folder.checkpoints and folder.config.exists() else None
