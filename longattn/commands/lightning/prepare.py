"""`longattn prepare`: reads the settings of `fit`, of which it needs the data alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from longattn.commands.lightning.cli import TrainerCLI, errors_in_one_line
from longattn.commands.lightning.logs import command_logs
from longattn.data import TextDataModule
from longattn.data.prepared import refuse_existing
from longattn.errors import ConfigError

_log = logging.getLogger(__name__)


class _DataCLI(TrainerCLI):
    """Builds the data of a run, and neither model nor trainer."""

    output: Path
    data: TextDataModule

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument("--output", type=str, default=None, help="Folder to write, which must not be there yet.")

    def before_instantiate_classes(self) -> None:
        settings = self.config[self._command]
        if not settings["output"]:
            raise ConfigError("--output is missing: name the folder to write")
        self.output = Path(settings["output"]).expanduser()
        refuse_existing(self.output)  # told before hours of work
        settings["data"]["seed"] = int(settings["seed_everything"])

    def instantiate_classes(self) -> None:
        settings: Any = self._parser(self._command).instantiate_classes(self.config[self._command])
        self.data = settings["data"]

    def after_instantiate_classes(self) -> None:
        """Do nothing: there is no run folder."""

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Do nothing: there is no model."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing: the caller does the work."""


def run_prepare(name: str, summary: str, arguments: list[str]) -> int:
    """Tokenise the data set that the arguments name into a folder."""
    with command_logs(), errors_in_one_line():
        cli = _DataCLI("fit", summary, arguments, shown_name=name)
        cli.data.setup()
        written = cli.data.write_prepared(cli.output)
        for part, content in written["parts"].items():
            _log.info(
                "%s: %d documents, %d tokens, %d left out, %d tokens cut off",
                part, content["documents"], content["tokens"], content["skipped"], content["truncated_tokens"],
            )  # fmt: skip
        _log.info("written to %s; train on it by --data.path %s", cli.output, cli.output)
    return 0
