"""LightningCLI as longattn uses it: one command, one run folder, errors in one line."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from traceback import walk_tb
from typing import Any

from jsonargparse import ArgumentError, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only

from longattn.commands.lightning.logs import command_logs, log_failure, log_to_file
from longattn.commands.lightning.parse_errors import check_config_files, explain
from longattn.data import TextDataModule
from longattn.errors import ConfigError, UnsupportedError
from longattn.nn.position import Position
from longattn.patterns import Pattern
from longattn.training.callbacks import (
    ProgressBar,
    ProgressLines,
    SaveCheckpoints,
    SummariseRun,
    Throughput,
    WritePredictions,
    WriteRunFiles,
)
from longattn.training.checkpoint import check_readable
from longattn.training.checks import check_settings
from longattn.training.loggers import MetricsCSV, StepTensorBoard
from longattn.training.module import EncoderModule
from longattn.training.parallel import ParallelConfig
from longattn.training.run import RunConfig, RunFolder, default_run_dir, find_checkpoint, run_folder_of
from longattn.training.terminal import terminal

_log = logging.getLogger(__name__)

_SKIPPED = {"model", "dataloaders", "train_dataloaders", "val_dataloaders", "datamodule", "return_predictions"}

TRAINER_DEFAULTS: dict[str, Any] = {
    "use_distributed_sampler": False,  # our sampler shares the global batch out by itself
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,  # would fill no row of metrics.csv; wrong data is found in setup
    "enable_model_summary": False,  # one line in the log says it
}


class TrainerCLI(LightningCLI):
    """Parses the settings of one trainer command, builds everything, and runs it."""

    folder: RunFolder
    """The run folder, known once the settings are parsed."""

    def __init__(self, command: str, summary: str, arguments: list[str], shown_name: str | None = None) -> None:
        """Parse `arguments` as those of `command`, called `shown_name` in its help, and run it."""
        self._command, self._shown_name = command, shown_name or command
        # The text below a dataclass field is its help; positions are dataclasses of which one chooses a subclass.
        set_parsing_settings(docstring_parse_attribute_docstrings=True, subclasses_enabled=[Position])
        super().__init__(
            EncoderModule,
            TextDataModule,
            save_config_callback=None,  # WriteRunFiles does it, later
            trainer_defaults=TRAINER_DEFAULTS,
            seed_everything_default=1,
            parser_kwargs={
                "prog": "longattn",
                "exit_on_error": False,
                command: {"exit_on_error": False, "description": summary},
            },
            args=[command, *arguments],
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,  # the module keeps plain hyperparameters of its own
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the one command that this program run is about."""
        return {self._command: _SKIPPED}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what is ours and not Lightning's."""
        parser.add_class_arguments(RunConfig, "run")
        parser.add_class_arguments(ParallelConfig, "parallel")
        parser.link_arguments("parallel.activation_checkpointing", "model.activation_checkpointing")
        parser.link_arguments("model.task", "data.task")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and turn what jsonargparse complains about into one line."""
        check_config_files(args[1:])
        self._parser(self._command).prog = f"longattn {self._shown_name}"
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            raise ConfigError(explain(str(error), self._parser(self._command), args[1:])) from error
        seed = self.config[self._command]["seed_everything"]
        if not isinstance(seed, bool) and not 0 <= seed < 1 << 32:
            raise ConfigError(f"seed_everything={seed}: give a number from 0 to {(1 << 32) - 1}")

    def _parse_ckpt_path(self) -> None:
        """Find the checkpoint that `--ckpt_path` means; its settings do not replace those that the user gave."""
        settings = self.config[self._command]
        if settings.get("weights_only") is None:
            settings["weights_only"] = True  # never run code that a checkpoint file holds
        if settings.get("ckpt_path") is not None:
            checkpoint = find_checkpoint(settings["ckpt_path"])
            if settings["weights_only"]:
                check_readable(checkpoint)
            settings["ckpt_path"] = str(checkpoint)
        elif self._command != "fit":
            raise ConfigError(
                f"`longattn {self._command}` needs weights: give --ckpt_path, a checkpoint or a run folder"
            )

    def before_instantiate_classes(self) -> None:
        settings = self.config[self._command]
        checkpoint = Path(settings["ckpt_path"]) if settings.get("ckpt_path") else None
        run_of_checkpoint = run_folder_of(checkpoint) if checkpoint else None
        if settings["run"]["dir"] is None:
            known = (
                str(run_of_checkpoint.path) if run_of_checkpoint else default_run_dir(_pattern_name(settings["model"]))
            )
            settings["run"]["dir"] = known
        self.folder = RunFolder(Path(settings["run"]["dir"]))
        self._config_yaml = self._config_text()  # before a checkpoint brings its tokenizer
        if run_of_checkpoint and settings["data"]["tokenizer"] is None and run_of_checkpoint.tokenizer.exists():
            settings["data"]["tokenizer"] = str(run_of_checkpoint.tokenizer)
        settings["data"]["seed"] = int(settings["seed_everything"])  # `true` has become a number by now

    def instantiate_classes(self) -> None:
        """Build module, data and trainer; jsonargparse wraps the errors of classes that may be null."""
        try:
            super().instantiate_classes()
        except (ConfigError, UnsupportedError):
            raise
        except (TypeError, ValueError) as error:
            if "Does not validate against any of the Union subtypes" not in str(error):
                raise
            raise ConfigError(explain(str(error), self._parser(self._command), [])) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer with the loggers and callbacks of the run folder."""
        settings = self._get(self.config_init, "trainer")
        run: RunConfig = self._get(self.config_init, "run")
        check_settings(self.model, self.datamodule, settings)
        if settings["default_root_dir"] is None:
            settings["default_root_dir"] = str(self.folder.path)
        if settings["logger"] is None:
            settings["logger"] = self._loggers(run) if self._command == "fit" else False
        elif settings["logger"] is True:
            settings["logger"] = self._loggers(run)
        own = self._callbacks(run, show_bar=settings["enable_progress_bar"] is not False)
        if not any(isinstance(callback, ProgressBar) for callback in own):
            settings["enable_progress_bar"] = False
        try:
            trainer = self._instantiate_trainer(settings, own)
        except ValueError as error:  # what Lightning raises for a device or strategy that it does not know
            raise MisconfigurationException(str(error)) from error
        assert isinstance(trainer, Trainer)
        return trainer

    def _loggers(self, run: RunConfig) -> list[Any]:
        loggers: list[Any] = [MetricsCSV(self.folder.metrics)]
        if run.tensorboard:
            loggers.append(StepTensorBoard(self.folder.path, name=self.folder.tensorboard.name, version=""))
        return loggers

    def _callbacks(self, run: RunConfig, *, show_bar: bool) -> list[Callback]:
        callbacks: list[Callback] = [Throughput()]
        if self._command == "fit":
            callbacks += [WriteRunFiles(self.folder, self._config_yaml), ProgressLines(run.print_every_steps)]
            callbacks += [SaveCheckpoints(self.folder, run.save_every_steps), SummariseRun(self.folder)]
        if self._command == "predict":
            callbacks += [WritePredictions(self.folder.path / "predictions.csv")]
        if show_bar and terminal().is_terminal:
            callbacks += [ProgressBar()]
        return callbacks

    def _config_text(self) -> str:
        """Return the complete configuration as YAML that `--config` takes again."""
        # A checkpoint belongs to one start of the run, not to its configuration.
        settings = self.config[self._command].clone()
        settings["ckpt_path"] = None
        text: str = self._parser(self._command).dump(settings, skip_unset=False, skip_validation=True)
        return text

    def after_instantiate_classes(self) -> None:
        if self._command == "fit":
            run: RunConfig = self._get(self.config_init, "run")
            resumes = self.config[self._command].get("ckpt_path") is not None
            if getattr(rank_zero_only, "rank", 0) == 0:
                self.folder.claim(run, resumes=resumes)
                log_to_file(self.folder.log)
                _log.info("run folder: %s", self.folder.path)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "predict":
            kwargs["return_predictions"] = False
        if subcommand in ("validate", "test"):
            kwargs["verbose"] = False
        return kwargs


def run_trainer(command: str, summary: str, arguments: list[str]) -> int:
    """Run `longattn <command>` and return its exit code; wrong input raises ConfigError."""
    with command_logs(), errors_in_one_line():
        cli = TrainerCLI(command, summary, with_config_of_run(arguments))
        if command in ("validate", "test") and cli.trainer.is_global_zero:
            _report(cli.trainer.callback_metrics, cli.folder.path / f"{command}.json")
    return 0


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn what Lightning raises for wrong input into ConfigError; write each failure to the log file."""
    try:
        yield
    except MisconfigurationException as error:  # Lightning's name for wrong input
        log_failure(_log, str(error), traceback=False)
        raise _trainer_error(error) from error
    except UnpicklingError as error:
        log_failure(_log, str(error), traceback=True)
        raise ConfigError("ckpt_path: the file is broken, or holds more than tensors and plain values") from error
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        log_failure(_log, "stopped by the keyboard", traceback=False)
        raise error.__context__ from None  # Lightning turns it into an exit without a word
    except (ConfigError, UnsupportedError) as error:
        log_failure(_log, str(error), traceback=False)
        raise
    except Exception as error:
        log_failure(_log, "the run failed", traceback=True)
        if isinstance(error, ValueError) and _raised_in(error).startswith("lightning."):  # a setting it checks late
            raise _trainer_error(error) from error
        raise


def _trainer_error(error: Exception) -> ConfigError:
    """Return what Lightning says about its settings, in one line."""
    return ConfigError("trainer: " + " ".join(str(error).split()))


def _raised_in(error: BaseException) -> str:
    """Return the name of the module in which `error` was raised."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", ""))


def with_config_of_run(arguments: list[str]) -> list[str]:
    """Return the arguments with `--config RUN/config.yaml` in front, if only a checkpoint of the run RUN is given."""
    given = [word.split("=", 1)[0] for word in arguments]
    if "--ckpt_path" not in given or "--config" in given or "-c" in given:
        return arguments
    at = given.index("--ckpt_path")
    path = arguments[at].split("=", 1)[1] if "=" in arguments[at] else "".join(arguments[at + 1 : at + 2])
    folder = run_folder_of(find_checkpoint(path))
    return ["--config", str(folder.config), *arguments] if folder else arguments


def _report(metrics: Mapping[str, Any], path: Path) -> None:
    """Say what was measured, and write it to `path`."""
    values = {name: float(value) for name, value in metrics.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    for name, value in values.items():
        _log.info("%s %.6g", name, value)
    _log.info("written to %s", path)


def _pattern_name(model: Any) -> str:
    if model["layer_patterns"]:
        return "layer_patterns"
    pattern = model["pattern"]
    if isinstance(pattern, Pattern):
        return type(pattern).__name__
    return "dense" if pattern is None else str(pattern["class_path"]).rsplit(".", 1)[-1]
