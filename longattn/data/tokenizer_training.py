"""Trains a tokenizer on documents: byte-level BPE, WordPiece or Unigram, the same file from the same documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from longattn.data.tokenizer import Tokenizer
from longattn.errors import ConfigError

Kind = Literal["bpe", "wordpiece", "unigram"]

Documents = Callable[[], Iterable[str]]
"""A function that yields the texts, from the first each time."""

NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}

_LARGEST_ALPHABET = 1000
_LARGEST_PIECE = 200_000  # characters


@dataclass(frozen=True, kw_only=True)
class TokenizerTraining:
    """How to train a tokenizer where none is given."""

    kind: Kind = "bpe"
    """`bpe`: byte-level, spells every text; `wordpiece`: BERT's; `unigram`: SentencePiece's."""

    vocab_size: int = 8192
    """Largest vocabulary, in tokens, the five special ones included."""

    maximum_characters: int | None = 20_000_000
    """Train on a random sample of documents with about this many characters; null: on all."""

    lowercase: bool = False
    """Whether upper and lower case are the same to the model."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"tokenizer_training.kind={self.kind!r}: give one of {', '.join(get_args(Kind))}")
        least = 256 + len(NAMES) if self.kind == "bpe" else len(NAMES) + 1
        if self.vocab_size < least:
            raise ConfigError(f"tokenizer_training.vocab_size={self.vocab_size}: {self.kind} needs at least {least}")
        if self.maximum_characters is not None and self.maximum_characters < 1:
            raise ConfigError(
                f"tokenizer_training.maximum_characters={self.maximum_characters}: give at least 1, or null"
            )


def train_tokenizer(documents: Documents, training: TokenizerTraining, *, progress: bool = False) -> Tokenizer:
    """Return a tokenizer trained on the texts that `documents()` yields; it may be called more than once.

    BPE and WordPiece depend on the texts alone. The Unigram trainer of the library adds up probabilities in an order of
    its own, so its scores are rounded and its pieces sorted, which leaves a difference between two trainings possible
    but rare: train once and share the file, as `TextDataModule` does.
    """
    tokenizer = _TRAIN[training.kind](lambda: _in_pieces(documents()), training, progress)
    names = list(NAMES.values())
    tokenizer.add_special_tokens(names)
    cls, sep = (NAMES["cls"], tokenizer.token_to_id(NAMES["cls"])), (NAMES["sep"], tokenizer.token_to_id(NAMES["sep"]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}", pair=f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1", special_tokens=[cls, sep]
    )
    return Tokenizer(tokenizer, dict(NAMES))


def _in_pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, long ones cut before a blank: the library takes a hundred times a text's size to train on it."""
    for text in texts:
        start = 0
        while len(text) - start > _LARGEST_PIECE:
            stop = text.rfind(" ", start + 1, start + _LARGEST_PIECE)
            stop = stop if stop > 0 else start + _LARGEST_PIECE
            yield text[start:stop]
            start = stop
        yield text[start:]


def _normalizer(training: TokenizerTraining) -> Any:
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if training.lowercase else [])]
    return normalizers.Sequence(steps)


def _train_bpe(documents: Documents, training: TokenizerTraining, progress: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    # No Unicode normalisation: bytes in, the same bytes out.
    if training.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=training.vocab_size,
        special_tokens=list(NAMES.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    tokenizer.train_from_iterator(documents(), trainer)
    return tokenizer


def _train_wordpiece(documents: Documents, training: TokenizerTraining, progress: bool) -> tokenizers.Tokenizer:
    normalizer = _normalizer(training)
    alphabet = _alphabet(documents(), normalizer, limit=(training.vocab_size - len(NAMES)) // 2)

    def empty(model: models.WordPiece) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    trained = empty(models.WordPiece(unk_token=NAMES["unk"]))
    # The trainer numbers the characters inside words ("##e") in the random order of a hash map, and ties between merges
    # follow the numbers. Declared beforehand they have numbers of their own; the final tokenizer does not hold them
    # as special tokens.
    trainer = trainers.WordPieceTrainer(
        vocab_size=training.vocab_size,
        special_tokens=[*NAMES.values(), *(f"##{character}" for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=progress,
    )
    trained.train_from_iterator(documents(), trainer)
    return empty(models.WordPiece(trained.get_vocab(with_added_tokens=True), unk_token=NAMES["unk"]))


def _train_unigram(documents: Documents, training: TokenizerTraining, progress: bool) -> tokenizers.Tokenizer:
    normalizer = _normalizer(training)

    def empty(model: models.Unigram) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer

    trained = empty(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=training.vocab_size,
        special_tokens=list(NAMES.values()),
        initial_alphabet=_alphabet(documents(), normalizer, limit=training.vocab_size - len(NAMES)),
        unk_token=NAMES["unk"],
        show_progress=progress,
    )
    try:
        trained.train_from_iterator(documents(), trainer)
    except Exception as error:  # the library raises plain Exception
        if "not large enough" not in str(error):
            raise
        raise ConfigError(
            f"tokenizer_training.vocab_size={training.vocab_size} is too small for the characters of the documents: "
            "unigram needs a token for each; give more, or take kind bpe"
        ) from error
    pieces = _pieces(trained)
    ordinary = sorted(
        ((piece, round(score, 4)) for piece, score in pieces if piece not in NAMES.values()),
        key=lambda entry: (-entry[1], entry[0]),
    )
    # Low scores for special tokens: a text that happens to hold "[MASK]" is spelled in other pieces.
    special = [(name, 0.0 if name == NAMES["unk"] else -1000.0) for name in NAMES.values()]
    unknown = list(NAMES.values()).index(NAMES["unk"])
    return empty(models.Unigram([*special, *ordinary], unk_id=unknown, byte_fallback=False))


def _pieces(tokenizer: tokenizers.Tokenizer) -> list[tuple[str, float]]:
    """Return the pieces of a Unigram tokenizer with their log probabilities."""
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def _alphabet(texts: Iterable[str], normalizer: Any, *, limit: int) -> list[str]:
    """Return the most frequent characters, in the order of their code points."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    kept = [character for character in counts if not character.isspace()]
    kept.sort(key=lambda character: (-counts[character], character))
    return sorted(kept[: min(limit, _LARGEST_ALPHABET)])


_TRAIN = {"bpe": _train_bpe, "wordpiece": _train_wordpiece, "unigram": _train_unigram}
