"""What an offline corpus is: documents that are on the machine, read where they are, or generated on it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

from longattn.data.corpora.options import check_options
from longattn.discovery import classes_in


class Document(TypedDict):
    """One document of a corpus."""

    text: str
    """The plain text."""

    label: str
    """The class it belongs to; empty where there are no classes."""

    source: str
    """Where it was read, or its number where it was generated."""

    text_pair: NotRequired[str]
    """The second text, where a document is a pair."""


class Corpus(ABC):
    """Documents that need no network. A subclass is a file of `longattn/data/corpora`, found by its `name`."""

    name: ClassVar[str]
    """What `--data.path` calls it."""

    minimum_characters: ClassVar[int]
    """Documents shorter than this are left out unless the user says otherwise."""

    internal_options: ClassVar[tuple[str, ...]] = ()
    """Arguments of the constructor that are not for users."""

    @abstractmethod
    def identity(self) -> str:
        """Return a hash that changes when the installed files or the way they are read change."""

    @abstractmethod
    def documents(self, minimum_characters: int) -> Iterator[Document]:
        """Yield the documents of at least `minimum_characters`, always in the same order, one at a time."""

    @abstractmethod
    def explain_empty(self) -> str:
        """Return what a user can do where `documents` yields nothing."""


def corpora() -> dict[str, type[Corpus]]:
    """Return every corpus by its name."""
    return {corpus.name: corpus for corpus in classes_in("longattn.data.corpora", Corpus).values()}  # type: ignore[type-abstract]


def build_corpus(name: str, options: Mapping[str, Any]) -> Corpus:
    """Return the corpus called `name` with its options; ConfigError says which option is wrong, and why."""
    kind = corpora()[name]
    check_options(kind, name, options, kind.internal_options)
    return kind(**options)


def files_identity(files: Iterable[Path], *settings: str) -> str:
    """Return a hash of the files' paths, sizes and modification times, and of settings that shape what is read."""
    digest = hashlib.sha256("\0".join(settings).encode())
    for file in files:
        status = file.stat()
        digest.update(f"\0{file}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]
