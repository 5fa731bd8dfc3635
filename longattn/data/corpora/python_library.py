"""Python's standard library: its sources, its language reference, and its documentation where that is installed."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from longattn.data.corpora.base import Corpus, Document, files_identity

_SKIPPED_FOLDERS = {
    "__pycache__",
    "encodings",
    "idle_test",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
}
"""Tests, other people's packages, and tables of numbers."""

_SKIPPED_FILES = re.compile(r"(_sysconfigdata.*|stringprep|topics|entities)\.py")

_DOCUMENTATION_FOLDERS = ("share/doc/python{version}/html/_sources", "share/doc/python3-doc/html/_sources", "Doc")


class PythonLibrary(Corpus):
    """The sources of the modules, each a document, labelled by what holds them, such as `asyncio` or `module`.

    The language reference that `help()` shows (`pydoc_data.topics`) is one document per topic, labelled `reference`;
    the reStructuredText of the documentation, where it is installed, is labelled `documentation`.
    """

    name: ClassVar[str] = "python_library"
    minimum_characters: ClassVar[int] = 10_000
    internal_options: ClassVar[tuple[str, ...]] = ("library", "prefixes")

    def __init__(self, library: Path | None = None, prefixes: tuple[Path, ...] | None = None) -> None:
        paths = sysconfig.get_paths()
        self._library = library or Path(paths["stdlib"])
        self._prefixes = (
            prefixes
            if prefixes is not None
            else (Path(sysconfig.get_config_var("installed_base") or "/usr"), Path("/usr"))
        )

    def identity(self) -> str:
        topics = [file] if (file := self._library / "pydoc_data" / "topics.py").is_file() else []
        return files_identity([*self._sources(), *topics, *self._documentation()], self.name, "1")

    def documents(self, minimum_characters: int) -> Iterator[Document]:
        for file in self._sources():
            relative = file.relative_to(self._library)
            label = relative.parts[0] if len(relative.parts) > 1 else "module"
            yield from _document(_read(file), label, file, minimum_characters)
        for topic, text in self._reference():
            source = self._library / "pydoc_data" / f"topics.py#{topic}"
            yield from _document(text, "reference", source, minimum_characters)
        for file in self._documentation():
            yield from _document(_read(file), "documentation", file, minimum_characters)

    def explain_empty(self) -> str:
        return f"no sources in {self._library}: this Python comes without its library as .py files; take another Python"

    def _sources(self) -> list[Path]:
        found = []
        for file in self._library.rglob("*.py"):
            relative = file.relative_to(self._library)
            skipped = _SKIPPED_FOLDERS.intersection(relative.parts[:-1]) or _SKIPPED_FILES.fullmatch(file.name)
            if not skipped and file.is_file():
                found.append(file)
        return sorted(found)

    def _reference(self) -> list[tuple[str, str]]:
        file = self._library / "pydoc_data" / "topics.py"
        if not file.is_file():
            return []
        # Read, not imported: the library looked at need not be that of the running Python.
        for statement in ast.parse(file.read_bytes()).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
                topics: dict[str, str] = ast.literal_eval(statement.value)
                return sorted(topics.items())
        return []

    def _documentation(self) -> list[Path]:
        version = sysconfig.get_python_version()
        for prefix in self._prefixes:
            for folder in _DOCUMENTATION_FOLDERS:
                place = prefix / folder.format(version=version)
                if files := sorted([*place.rglob("*.rst.txt"), *place.rglob("*.rst")]):
                    return files
        return []


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):  # a file in an old encoding, or not ours to read: not worth stopping for
        return None


def _document(text: str | None, label: str, source: Path, minimum_characters: int) -> Iterator[Document]:
    if text is not None and text.strip() and len(text) >= minimum_characters:
        yield Document(text=text, label=label, source=str(source))
