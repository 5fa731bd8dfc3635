"""The commands that run Lightning's trainer: fit, validate, test, predict."""

from __future__ import annotations

from typing import ClassVar

from longattn.commands.base import Command


class _TrainerCommand(Command):
    """Hands over to the LightningCLI, which is imported only now: it takes seconds."""

    def run(self, arguments: list[str]) -> int:
        from longattn.commands.lightning.cli import run_trainer

        return run_trainer(self.name, self.summary, arguments)


class Fit(_TrainerCommand):
    """Train a model."""

    name: ClassVar[str] = "fit"
    summary: ClassVar[str] = "train an encoder on documents; writes a run folder"
    order: ClassVar[int] = 0


class Validate(_TrainerCommand):
    """Measure a checkpoint on the validation documents."""

    name: ClassVar[str] = "validate"
    summary: ClassVar[str] = "measure a checkpoint on the validation documents"
    order: ClassVar[int] = 1


class Test(_TrainerCommand):
    """Measure a checkpoint on the test documents."""

    name: ClassVar[str] = "test"
    summary: ClassVar[str] = "measure a checkpoint on the test documents"
    order: ClassVar[int] = 2


class Predict(_TrainerCommand):
    """Write a row of results per document."""

    name: ClassVar[str] = "predict"
    summary: ClassVar[str] = "write what a checkpoint says about each document, one row per document"
    order: ClassVar[int] = 3
