"""Any folder of text, Markdown or source code: each file is a document."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from longattn.data.corpora.base import Corpus, Document, files_identity
from longattn.discovery import nearest
from longattn.errors import ConfigError

_log = logging.getLogger(__name__)

_SUFFIXES = (
    *(".adoc", ".markdown", ".md", ".org", ".rst", ".tex", ".txt"),
    *(".c", ".cc", ".clj", ".cpp", ".cs", ".cu", ".dart", ".el", ".erl", ".ex", ".f90", ".go", ".h", ".hpp", ".hs"),
    *(".java", ".jl", ".js", ".kt", ".lisp", ".lua", ".m", ".ml", ".php", ".pl", ".py", ".pyi", ".r", ".rb", ".rs"),
    *(".scala", ".scm", ".sh", ".sql", ".swift", ".ts", ".tsx"),
)
"""Prose, then programs; neither data such as .json and .csv, nor pages whose text is among markup."""

_LABELS = ("none", "folder", "suffix")

_SNIFFED_BYTES = 8192
"""Beginning of a file that is searched for a NUL, as git does: text has none."""


class Folder(Corpus):
    """The files below a folder of your own, in the order of their paths; line ends become `\\n`.

    Use: train on your notes, papers or sources where they lie, or tell projects or languages apart by `label`.
    Hidden files and folders, binary files and blank ones are left out; so are files that are not UTF-8 or cannot be
    read, with a warning. Links are followed, and each file is read once, however many lead to it.
    """

    name: ClassVar[str] = "folder"
    minimum_characters: ClassVar[int] = 1

    def __init__(self, *, folder: str, suffixes: list[str] | None = None, label: str = "none") -> None:
        """Take the files below `folder` that end in one of `suffixes`, in small or capital letters.

        `suffixes` None: the usual ones of text, markup and programs. `label` is "none" (the label is empty), "folder"
        (the label is the first folder of the path below `folder`, "." for a file right in it) or "suffix".
        """
        # Not Path.expanduser: it has an error of its own for an unknown user.
        self._folder = Path(os.path.expanduser(folder)).absolute()
        if not folder or not self._folder.is_dir():
            state = "is no folder" if folder and self._folder.exists() else "does not exist"
            raise ConfigError(f"options: folder={folder!r} {state}: give the path of a folder of texts")
        if suffixes is not None:
            _check_suffixes(suffixes)
        if label not in _LABELS:
            raise ConfigError(f"options: label={label!r}{nearest(label, _LABELS)}: give one of {', '.join(_LABELS)}")
        self._suffixes = _SUFFIXES if suffixes is None else tuple(suffix.lower() for suffix in suffixes)
        self._label = label

    def identity(self) -> str:
        return files_identity(self._files([]), self.name, "1", self._label, *self._suffixes)

    def documents(self, minimum_characters: int) -> Iterator[Document]:
        skipped: list[Path] = []
        try:
            for file in self._files(skipped):
                try:
                    text = _read(file)
                except (UnicodeDecodeError, OSError):
                    skipped.append(file)
                    continue
                if text is not None and text.strip() and len(text) >= minimum_characters:
                    yield Document(text=text, label=self._label_of(file), source=str(file))
        finally:  # also where only the first documents are taken
            if skipped:
                what = "folder=%r: left out what is not UTF-8 or cannot be read: %d of the files and folders, first %s"
                _log.warning(what, str(self._folder), len(skipped), min(skipped))

    def explain_empty(self) -> str:
        looked_for = f"looked in folder={str(self._folder)!r} for text files that end in {' '.join(self._suffixes)}"
        return f"{looked_for}; give other suffixes, or a lower minimum_characters"

    def _label_of(self, file: Path) -> str:
        if self._label == "none":
            return ""
        if self._label == "suffix":
            return max((suffix for suffix in self._suffixes if file.name.lower().endswith(suffix)), key=len)
        folders = file.relative_to(self._folder).parts[:-1]
        return folders[0] if folders else "."

    def _files(self, unreadable: list[Path]) -> list[Path]:
        """Return the files by path; where links lead to one as well, its own path counts.

        Folders that cannot be read are added to `unreadable`.
        """
        found: dict[Path, Path] = {}
        for file in sorted(self._candidates(unreadable), key=lambda file: (file.is_symlink(), file)):
            found.setdefault(file.resolve(), file)
        return sorted(found.values())

    def _candidates(self, unreadable: list[Path]) -> Iterator[Path]:
        """Yield the files of each folder once: those of linked folders last, and not those of folders that hold us."""
        tops = [self._folder]
        visited: set[Path] = set()
        while tops:
            for place, folders, files in os.walk(
                tops.pop(0), onerror=lambda error: unreadable.append(Path(error.filename))
            ):
                here = Path(place)
                real = here.resolve()
                if real in visited:
                    folders.clear()
                    continue
                visited.add(real)
                shown = [here / name for name in sorted(folders) if not name.startswith(".")]
                tops += [folder for folder in shown if folder.is_symlink() and not self._contains(folder, real)]
                folders[:] = [folder.name for folder in shown if not folder.is_symlink()]
                for name in files:
                    chosen = not name.startswith(".") and name.lower().endswith(self._suffixes)
                    if chosen and (here / name).is_file():
                        yield here / name

    def _contains(self, link: Path, place: Path) -> bool:
        """Return whether a linked folder holds the place of the link, or all that we were asked for."""
        return any(inner.is_relative_to(link.resolve()) for inner in (place, self._folder.resolve()))


def _check_suffixes(suffixes: list[str]) -> None:
    wrong = [suffix for suffix in suffixes if not suffix.startswith(".") or len(suffix) < 2]
    if wrong or not suffixes:
        problem = f"{wrong[0]!r} is no suffix" if wrong else "empty"
        raise ConfigError(f"options: suffixes={suffixes!r}: {problem}; give such as ['.txt', '.md']")


def _read(file: Path) -> str | None:
    """Return the text without a byte-order mark; None for a binary file."""
    content = file.read_bytes()
    if b"\0" in content[:_SNIFFED_BYTES]:
        return None
    return content.decode("utf-8-sig").replace("\r\n", "\n")
