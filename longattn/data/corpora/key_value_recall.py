"""Recall of the value that belongs to a key, over a set distance (after RULER, Hsieh et al. 2024, 2404.06654, 3.1)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from longattn.data.corpora.base import Document
from longattn.data.corpora.generated import GeneratedCorpus, uniform_integers
from longattn.data.masking import counter_generator, random_order
from longattn.discovery import nearest
from longattn.errors import ConfigError

_QUESTION = "question"
_QUESTIONS = ("start", "end")
_PAIR_WORDS = 2
"""A pair is a key and its value; the question is the word `question` and the key."""

_TEXT = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its about "
    "than into them can only other time new some could these two may first then do any like my now over such our man"
)
_FILLERS = _TEXT.split()
"""Words that say nothing about a key."""

_LONGEST = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyValueRecall(GeneratedCorpus):
    """A question for the value of a key, such as `question key17`, and filler words with the answer, `key17 value3`.

    Use: does information travel over `distance` words? The value follows the key once, in one place; the label is that
    value, such as `value3`. Other keys with values of their own are strewn in at random. A model that does not see the
    pair is right once in `values` times; one that sees all pairs but not which is asked for, somewhat more often.
    """

    name: ClassVar[str] = "key_value_recall"
    version: ClassVar[int] = 1

    length: int = 2048
    """Words of each text."""

    distance: int = 1024
    """Words between the question and the pair it asks for."""

    values: int = 10
    """Number of values, which are the classes, all equally frequent."""

    keys: int = 100
    """Number of keys that a text may hold."""

    distractors: int = 20
    """Pairs of other keys, each key once."""

    question: str = "end"
    """Where the question stands: "start" or "end" of the text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("length", self.length, 2 * _PAIR_WORDS, _LONGEST, "words")
        room = self.length - 2 * _PAIR_WORDS
        self.check("distance", self.distance, 0, room, f"words, for a length of {self.length}")
        self.check("values", self.values, 2, _LONGEST)
        self.check("keys", self.keys, 1, _LONGEST)
        slots = self.distance // _PAIR_WORDS + (room - self.distance) // _PAIR_WORDS
        self.check("distractors", self.distractors, 0, min(slots, self.keys - 1), "pairs, for this length and keys")
        if self.question not in _QUESTIONS:
            raise ConfigError(
                f"options: question={self.question!r}{nearest(self.question, _QUESTIONS)}: give 'start' or 'end'"
            )

    def document(self, index: int) -> Document:
        generator = counter_generator(self.seed, index)
        key, *other_keys = random_order(generator, self.keys)[: self.distractors + 1].tolist()
        value, *other_values = uniform_integers(generator, self.values, self.distractors + 1).tolist()
        rest = self.length - 2 * _PAIR_WORDS - self.distance
        between, beyond = (
            [_FILLERS[word] for word in uniform_integers(generator, len(_FILLERS), words)]
            for words in (self.distance, rest)
        )
        places = [(words, place) for words in (between, beyond) for place in range(0, len(words) - 1, _PAIR_WORDS)]
        for pair, slot in enumerate(random_order(generator, len(places))[: self.distractors].tolist()):
            words, place = places[slot]
            words[place : place + _PAIR_WORDS] = [f"key{other_keys[pair]}", f"value{other_values[pair]}"]
        asked, answer = [_QUESTION, f"key{key}"], [f"key{key}", f"value{value}"]
        parts = [asked, between, answer, beyond] if self.question == "start" else [beyond, answer, between, asked]
        text = " ".join(word for part in parts for word in part)
        return Document(text=text, label=f"value{value}", source=f"{self.name}#{index}")
