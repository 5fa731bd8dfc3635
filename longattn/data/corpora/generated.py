"""Corpora whose documents are computed from a seed: any of them by its number, on any machine, without a file."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from longattn.data.corpora.base import Corpus, Document
from longattn.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedCorpus(Corpus):
    """Documents that are a function of the options and their number; the fields of a subclass are its options.

    No random state is kept between documents, so any process draws the same ones in any order, and a smaller `count`
    is the beginning of a greater one.
    """

    minimum_characters: ClassVar[int] = 1

    version: ClassVar[int]
    """Raised whenever the same options come to mean other documents."""

    count: int = 10_000
    """Number of documents."""

    seed: int = 0
    """Other seeds give other documents."""

    def __post_init__(self) -> None:
        self.check("count", self.count, 1, 2**31 - 1)
        self.check("seed", self.seed, 0, 2**63 - 1)

    def __len__(self) -> int:
        return self.count

    @abstractmethod
    def document(self, index: int) -> Document:
        """Return document `index`, 0 <= index < count."""

    def identity(self) -> str:
        call = f"{type(self).__name__}\0{self.version}\0{sorted(dataclasses.asdict(self).items())}"
        return hashlib.sha256(call.encode()).hexdigest()[:32]

    def documents(self, minimum_characters: int) -> Iterator[Document]:
        for index in range(self.count):
            document = self.document(index)
            if len(document["text"]) + len(document.get("text_pair", "")) >= minimum_characters:
                yield document

    def explain_empty(self) -> str:
        return f"the {self.count} generated documents are shorter; lower minimum_characters, or have longer ones made"

    @staticmethod
    def check(option: str, value: int, least: int, most: int, unit: str = "") -> None:
        """Raise ConfigError unless `least <= value <= most`; `unit` follows the numbers, such as "words"."""
        if not least <= value <= most:
            unit = f" {unit}" if unit else ""
            raise ConfigError(f"options: {option}={value!r}: give {least} to {most}{unit}")


def uniform_integers(generator: np.random.Generator, below: int, size: int) -> NDArray[np.int64]:
    """Return `size` integers, uniform in 0 <= i < below.

    Only `random()` is used: numpy keeps its stream from version to version, unlike that of `integers`.
    """
    return (generator.random(size) * below).astype(np.int64)
