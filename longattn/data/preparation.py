"""Everything that is done once for a data set, on one rank: load, split, train the tokenizer, tokenise, all cached."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from longattn.data.masking import counter_generator, random_order
from longattn.data.prepared import Prepared, is_prepared, read_prepared
from longattn.data.sources import (
    Documents,
    Source,
    SourceSettings,
    character_counts,
    content_hash,
    load_documents,
    quiet,
)
from longattn.data.token_store import write_file, write_folder, write_token_store
from longattn.data.tokenizer import Tokenizer, load_tokenizer
from longattn.data.tokenizer_training import TokenizerTraining, train_tokenizer
from longattn.errors import ConfigError

log = logging.getLogger(__name__)

_VERSION = 2
"""Raised when what is written changes, so that older caches are left alone."""


@dataclass(frozen=True, kw_only=True)
class SourceSplits:
    """A source, and which of its documents are for what."""

    source: Source
    """Where the documents come from."""

    split: str = "train"
    """Split to train on."""

    validation_split: str | None = None
    """Split to validate on; None: a share of the training documents."""

    validation_fraction: float = 0.05
    """Share of the training documents to validate on where no split is named."""

    test_split: str | None = None
    """Split to test on; None: the validation documents."""

    def load(self, seed: int) -> dict[str, Documents]:
        """Return the documents of train, and of validation and test where there are any."""
        documents, skipped = load_documents(self.source, self.split)
        parts = {"train": Documents(documents, skipped)}
        if self.validation_split is not None:
            parts["validation"] = load_documents(self.source, self.validation_split)
        elif self.validation_fraction > 0:
            held_out = min(max(1, round(self.validation_fraction * len(documents))), len(documents) - 1)
            if held_out == 0:
                log.warning("there is one document only: it is trained on, and nothing is left to validate on")
            else:
                order = random_order(counter_generator(seed, len(documents)), len(documents))
                parts["train"] = Documents(documents.select(np.sort(order[held_out:])), skipped)
                parts["validation"] = Documents(documents.select(np.sort(order[:held_out])), 0)
        if self.test_split is not None:
            parts["test"] = load_documents(self.source, self.test_split)
        return parts


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What to prepare; equal values share one result as long as the documents are the same."""

    sources: tuple[SourceSplits, ...]
    """Where the documents come from."""

    tokenizer: str | None = None
    """Tokenizer to load; None: train one."""

    training: TokenizerTraining = dataclasses.field(default_factory=TokenizerTraining)
    """How to train one."""

    seed: int = 0
    """Chooses the validation documents and the tokenizer's sample."""

    root: Path
    """Folder of longattn's own cache."""

    progress: bool = False
    """Whether to show progress bars."""

    def run(self) -> Prepared:
        """Do what has not been done yet, note the result for the other ranks, and return it."""
        if (whole := self._prepared_folder()) is not None:
            return whole
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"data.cache_dir: {self.root} cannot be written: {error.strerror}; name another folder"
            ) from error
        with quiet(progress=self.progress):
            loaded = [splits.load(self.seed) for splits in self.sources]
            tokenizer = self._tokenizer([parts["train"].table for parts in loaded])
            folder = self.root / "tokenizers" / tokenizer.fingerprint
            if not folder.is_dir():
                write_folder(folder, tokenizer.save)
            prepared = Prepared(folder, {}, {})
            for parts in loaded:
                for name, documents in parts.items():
                    prepared.parts.setdefault(name, []).append(self._tokenised(name, documents.table, tokenizer))
                    prepared.skipped[name] = prepared.skipped.get(name, 0) + documents.skipped
        write_file(self._note, json.dumps(dataclasses.asdict(prepared), indent=2, default=str))
        return prepared

    def result(self) -> Prepared:
        """Return what `run` has prepared, in this process or another."""
        if (whole := self._prepared_folder()) is not None:
            return whole
        if not self._note.is_file():
            return self.run()
        note = json.loads(self._note.read_text(encoding="utf-8"))
        parts = {name: [Path(store) for store in folders] for name, folders in note["parts"].items()}
        prepared = Prepared(Path(note["tokenizer"]), parts, note["skipped"])
        places = [prepared.tokenizer, *(store for folders in parts.values() for store in folders)]
        return prepared if all(place.is_dir() for place in places) else self.run()

    def _prepared_folder(self) -> Prepared | None:
        """Return what `longattn prepare` has written, where that is the source."""
        if len(self.sources) != 1 or not is_prepared(self.sources[0].source.path):
            return None
        source = self.sources[0].source
        prepared = read_prepared(Path(source.path).expanduser())
        settled = {"path", "source", "validation_fraction"}  # the last has a default, which cannot be told from a wish
        for settings, kind in ((source, SourceSettings), (self.sources[0], SourceSplits)):
            for field in dataclasses.fields(kind):
                if field.name not in settled and getattr(settings, field.name) != field.default:
                    raise ConfigError(
                        f"{field.name} has no effect: path={source.path!r} is prepared already; drop {field.name}"
                    )
        if self.tokenizer is not None:
            wanted, there = load_tokenizer(self.tokenizer), load_tokenizer(prepared.tokenizer)
            if wanted.fingerprint != there.fingerprint:
                raise ConfigError(
                    f"tokenizer={self.tokenizer!r} is not the one that path={source.path!r} was prepared with: drop "
                    "it, or prepare anew"
                )
        return prepared

    @property
    def _note(self) -> Path:
        """The file that tells other ranks where the results lie: named by the settings, not by the documents."""
        settings = dataclasses.asdict(self) | {"root": None, "progress": None, "folder": str(Path.cwd())}
        return self.root / "prepared" / f"{_hash(settings)}.json"

    def _tokenizer(self, parts: list[datasets.Dataset]) -> Tokenizer:
        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        contents = [content_hash(documents) for documents in parts]
        key = _hash([*contents, dataclasses.asdict(self.training), self.seed])
        folder = self.root / "trained_tokenizers" / key
        if not folder.is_dir():
            columns = [name for name in ("text", "text_pair") if all(name in part.column_names for part in parts)]
            documents = datasets.concatenate_datasets([part.select_columns(columns) for part in parts])
            order = self._sample(documents)
            log.info("training a %s tokenizer on %d of %d documents", self.training.kind, len(order), len(documents))

            def texts() -> Iterator[str]:
                return (documents[int(index)][name] or "" for index in order for name in columns)

            trained = train_tokenizer(texts, self.training, progress=self.progress)
            write_folder(folder, trained.save)
        return load_tokenizer(folder)

    def _sample(self, documents: datasets.Dataset) -> Any:
        """Return the documents to train the tokenizer on: all, or random ones up to the wanted number of characters."""
        lengths = character_counts(documents)
        limit = self.training.maximum_characters
        if limit is None or lengths.sum() <= limit:
            return np.arange(len(documents))
        order = random_order(counter_generator(self.seed, len(documents), 1), len(documents))
        return order[: 1 + int(np.searchsorted(np.cumsum(lengths[order]), limit))]

    def _tokenised(self, name: str, documents: datasets.Dataset, tokenizer: Tokenizer) -> Path:
        folder = self.root / "tokens" / _hash([content_hash(documents), tokenizer.fingerprint])
        if folder.is_dir():
            log.info("%s: %d documents, tokenised before (%s)", name, len(documents), folder)
        else:
            write_token_store(folder, documents, tokenizer, name)
            log.info("%s: tokenised %d documents into %s", name, len(documents), folder)
        return folder


def _hash(value: Any) -> str:
    content = json.dumps([_VERSION, value], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
