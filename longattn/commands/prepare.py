"""The command that tokenises a data set once, for every later run."""

from __future__ import annotations

from typing import ClassVar

from longattn.commands.base import Command


class Prepare(Command):
    """Tokenise a data set into a folder."""

    name: ClassVar[str] = "prepare"
    summary: ClassVar[str] = "tokenise a data set once into a folder, which --data.path of every later run may name"
    order: ClassVar[int] = 10

    def run(self, arguments: list[str]) -> int:
        from longattn.commands.lightning.prepare import run_prepare

        return run_prepare(self.name, self.summary, arguments)
