"""The system's manual pages as plain text, labelled by their section."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from longattn.data.corpora.base import Corpus, Document, files_identity
from longattn.data.roff import page_to_text

_OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".lzma": lzma.decompress,
}

_FOLDERS = (
    "/usr/local/share/man",
    "/usr/share/man",
    "/usr/local/man",
    "/opt/homebrew/share/man",
    "/opt/local/share/man",
)

_LARGEST_GROWTH = 2
"""No text is longer than this many times its source: shorter sources need not be read to know that they are short."""


class ManualPages(Corpus):
    """The pages of all sections, in English, one line per paragraph.

    They are read by our own reader, not by an installed formatter: a page is the same document on every machine.
    Header and footer are left out: they name the section, which is the label. So are aliases of other pages.
    """

    name: ClassVar[str] = "manual_pages"
    minimum_characters: ClassVar[int] = 32_000
    internal_options: ClassVar[tuple[str, ...]] = ("folders",)

    def __init__(self, folders: tuple[Path, ...] | None = None) -> None:
        self._folders = _manual_folders() if folders is None else folders

    def identity(self) -> str:
        return files_identity(self._pages(), self.name, "1")

    def documents(self, minimum_characters: int) -> Iterator[Document]:
        for file in self._pages():
            source = _read(file)
            if source is None or len(source) * _LARGEST_GROWTH < minimum_characters:
                continue
            text = page_to_text(_decoded(source))
            if text.strip() and len(text) >= minimum_characters:
                yield Document(text=text, label=_section(file), source=str(file))

    def explain_empty(self) -> str:
        places = ", ".join(str(folder) for folder in self._folders) or "none of the usual folders exists"
        return f"looked in {places}; install manual pages (on Debian: manpages-dev), or take path='python_library'"

    def _pages(self) -> list[Path]:
        """Return the pages by section and name; where several folders hold one, the first counts."""
        found: dict[tuple[str, str], Path] = {}
        for folder in self._folders:
            for file in folder.glob("man[0-9ln]*/*"):
                if not file.is_symlink() and file.is_file():
                    name = file.name.removesuffix(file.suffix) if file.suffix in _OPENERS else file.name
                    found.setdefault((file.parent.name, name), file)
        return [found[key] for key in sorted(found)]


def _manual_folders() -> tuple[Path, ...]:
    """Return the folders of MANPATH, or the usual ones."""
    listed = [folder for folder in os.environ.get("MANPATH", "").split(":") if folder]
    candidates = [Path(folder) for folder in listed or (*_FOLDERS, str(Path(sys.base_prefix) / "share" / "man"))]
    return tuple(dict.fromkeys(folder.resolve() for folder in candidates if folder.is_dir()))


def _read(file: Path) -> bytes | None:
    """Return the source of a page; None for an alias of another page, or for what cannot be read."""
    try:
        source = _OPENERS.get(file.suffix, bytes)(file.read_bytes())
    except (OSError, EOFError, ValueError, lzma.LZMAError):
        return None
    return None if source.lstrip()[:4] == b".so " else source


def _decoded(source: bytes) -> str:
    try:
        return source.decode("utf-8")
    except UnicodeDecodeError:
        return source.decode("latin-1")


def _section(file: Path) -> str:
    """Return the section that the folder is for: `1` of man1."""
    return file.parent.name.removeprefix("man")[:1]
