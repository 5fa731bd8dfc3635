"""What a subcommand is: a name, one line of help, and something to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from longattn.discovery import classes_in


class Command(ABC):
    """One subcommand. A subclass in a file of this folder is found; heavy imports belong into `run`."""

    name: ClassVar[str]
    """The word after `longattn`."""

    summary: ClassVar[str]
    """One line for `longattn --help`."""

    order: ClassVar[int] = 100
    """Place in `longattn --help`; equal ones are sorted by name."""

    @abstractmethod
    def run(self, arguments: list[str]) -> int:
        """Do the work for the words after the command's name and return the exit code.

        Wrong input raises ConfigError (or UnsupportedError); `longattn.cli` turns it into one line and exit code 2.
        """


def commands() -> dict[str, Command]:
    """Return every command of this folder by name, in the order in which the help lists them."""
    found = [command() for command in classes_in("longattn.commands", Command).values()]  # type: ignore[type-abstract]
    return {command.name: command for command in sorted(found, key=lambda command: (command.order, command.name))}
