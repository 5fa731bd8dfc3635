"""Do two long texts belong to one document? Pairs of halves (as in the matching of SMITH, arXiv 2004.12297)."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from longattn.data.corpora.base import Corpus, Document, build_corpus, corpora
from longattn.data.corpora.generated import GeneratedCorpus
from longattn.data.corpora.options import required_options
from longattn.data.masking import counter_generator, counter_hash
from longattn.discovery import nearest
from longattn.errors import ConfigError

_LONGEST = 10_000_000


@dataclasses.dataclass(frozen=True)
class _Text:
    """A document long enough for two halves."""

    text: str
    source: str
    borders: NDArray[np.int64]
    """Where lines begin, and the end of the text, in characters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentMatching(GeneratedCorpus):
    """Pairs of texts: two halves that follow each other in one document (`same`), or of two documents (`different`).

    Use: compare two long texts, where no single place tells the answer. Of each two pairs in a row one is `same`; both
    texts of a pair are drawn alike whatever the label, from anywhere in documents drawn at random. Pairs share
    documents, those for validation too: a model that learns documents by heart is rewarded.

    All usable documents of the corpus are held in memory, 1 byte per character of English: about 10 MB for
    `python_library`, 20 MB for the manual pages of a usual system. They are read with the first pair.
    """

    name: ClassVar[str] = "document_matching"
    version: ClassVar[int] = 1

    corpus: str = "python_library"
    """Corpus of this machine that the documents are from."""

    characters: int = 8000
    """Most characters of each half, which ends with a whole line and has more than half as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("characters", self.characters, 200, _LONGEST, "characters")
        if self.count % 2:
            raise ConfigError(f"options: count={self.count!r}: give an even number, as half of the pairs are `same`")
        choices = [
            name
            for name, kind in corpora().items()
            if not issubclass(kind, GeneratedCorpus) and not required_options(kind, kind.internal_options)
        ]
        if self.corpus not in choices:
            raise ConfigError(
                f"options: corpus={self.corpus!r}{nearest(self.corpus, choices)}: give one of {', '.join(choices)}"
            )

    def identity(self) -> str:
        return hashlib.sha256(f"{super().identity()}\0{self._source.identity()}".encode()).hexdigest()[:32]

    def document(self, index: int) -> Document:
        uniform = counter_generator(self.seed, index).random(4)
        count = len(self._texts)
        one = int(uniform[0] * count)
        # The first of each two pairs is the `same` one or the second, by a toss: labels cannot be told from the order.
        same = (int(counter_hash(self.seed, index // 2)[0] >> np.uint64(63)) + index) % 2 == 0
        other = one if same else (one + 1 + int(uniform[1] * (count - 1))) % count
        first, second = self._texts[one], self._texts[other]
        return Document(
            text=self._halves(first, uniform[2])[0],
            text_pair=self._halves(second, uniform[2] if same else uniform[3])[1],
            label="same" if same else "different",
            source=f"{first.source} + {second.source}",
        )

    @cached_property
    def _source(self) -> Corpus:
        return build_corpus(self.corpus, {})

    @cached_property
    def _texts(self) -> list[_Text]:
        """Return the documents that can be cut at line borders, each text once."""
        found: dict[str, _Text] = {}
        for document in self._source.documents(2 * self.characters):
            text = document["text"]
            begins = [0]
            while (newline := text.find("\n", begins[-1])) >= 0:
                begins.append(newline + 1)
            borders = np.unique(np.array([*begins, len(text)], dtype=np.int64))
            if np.diff(borders).max() <= self.characters // 2:
                found.setdefault(text, _Text(text, document["source"], borders))
        if len(found) < 2:
            raise ConfigError(
                f"options: characters={self.characters!r}: corpus={self.corpus!r} has {len(found)} documents of twice "
                "as many, and pairs need 2; give fewer characters"
            )
        return list(found.values())

    def _halves(self, text: _Text, uniform: float) -> tuple[str, str]:
        """Return two halves that follow each other; `uniform` in [0, 1) says where in the document."""
        begins = np.searchsorted(text.borders, len(text.text) - 2 * self.characters, side="right")
        begin = text.borders[int(uniform * begins)]
        middle = text.borders[np.searchsorted(text.borders, begin + self.characters, side="right") - 1]
        end = text.borders[np.searchsorted(text.borders, middle + self.characters, side="right") - 1]
        return text.text[begin:middle], text.text[middle:end]
