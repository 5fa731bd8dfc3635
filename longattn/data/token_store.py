"""Tokenised documents on disk: written once under a name that is a hash of all they depend on, then memory-mapped."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longattn.data.tokenizer import Tokenizer
from longattn.data.windows import Windows

Integers = NDArray[np.int64]

_TOKENS, _COUNTS = "tokens.arrow", "counts.npy"


class TokenStore:
    """The documents of one split as tokens of text, without special tokens at their ends.

    A folder of two files: `tokens.arrow`, a `datasets` table with a row per document (columns `input_ids`, `special`:
    the positions of special tokens inside the text, and `label` where there is one), and `counts.npy`: how often each
    token id occurs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = datasets.Dataset.from_file(str(folder / _TOKENS)).with_format("arrow")
        self.lengths: Integers = _list_lengths(self._table, "input_ids")
        self.token_counts: Integers = np.load(folder / _COUNTS)

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, document: int, start: int, stop: int) -> Integers:
        """Return the token ids `start` to `stop` of a document."""
        values = self._table[document]["input_ids"].chunk(0).flatten()
        return np.asarray(values.slice(start, stop - start)).astype(np.int64)

    def maskable(self, windows: Windows) -> Integers:
        """Return for each window the number of its tokens that are not special."""
        counts = windows.length.copy()
        special_counts = _list_lengths(self._table, "special")
        for document in np.flatnonzero(special_counts):
            positions = np.asarray(self._table[int(document)]["special"].chunk(0).flatten()).astype(np.int64)
            first, last = np.searchsorted(windows.document, [document, document + 1])
            bounds = np.searchsorted(positions, [windows.start[first:last], windows.stop[first:last]])
            counts[first:last] -= bounds[1] - bounds[0]
        return counts

    def unigram_entropy(self, tokenizer: Tokenizer) -> float:
        """Return the entropy of the distribution of ordinary tokens, in nats: what a guess by frequency loses."""
        counts = self.token_counts[tokenizer.ordinary_ids]
        counts = counts[counts > 0]
        if len(counts) == 0:
            return math.nan
        shares = counts / counts.sum()
        return float(-(shares * np.log(shares)).sum())


def write_token_store(folder: Path, documents: datasets.Dataset, tokenizer: Tokenizer, description: str) -> None:
    """Tokenise `documents` into `folder`, which appears whole or not at all."""
    kind = "uint16" if tokenizer.vocab_size <= 1 << 16 else "int32"
    features = {"input_ids": datasets.List(datasets.Value(kind)), "special": datasets.List(datasets.Value("int32"))}
    if "label" in documents.column_names:
        features["label"] = documents.features["label"]

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = tokenizer.encode_batch([text or "" for text in batch["text"]])
        special = [np.flatnonzero(~tokenizer.is_ordinary[tokens]).astype(np.int32) for tokens in ids]
        return {"input_ids": [tokens.astype(kind) for tokens in ids], "special": special}

    def write(partial: Path) -> None:
        table = documents.map(
            encode,
            batched=True,
            batch_size=128,
            writer_batch_size=128,
            remove_columns=["text"],
            features=datasets.Features(features),
            cache_file_name=str(partial / _TOKENS),
            load_from_cache_file=False,
            new_fingerprint=folder.name,
            desc=f"tokenising {description}",
        )
        counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        for batch in table.with_format("arrow").iter(128):
            values = np.asarray(batch["input_ids"].combine_chunks().flatten())
            counts += np.bincount(values, minlength=tokenizer.vocab_size)
        np.save(partial / _COUNTS, counts)

    write_folder(folder, write)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder that is then renamed to `folder`; where another process was first, its folder stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write(partial)
        partial.chmod(0o755)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_file(file: Path, content: str) -> None:
    """Write a text file that is never seen half written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(content)
    Path(partial).replace(file)


def _list_lengths(table: datasets.Dataset, column: str) -> Integers:
    chunks = table.data.column(column).chunks
    lengths = [np.asarray(pa.compute.list_value_length(chunk)).astype(np.int64) for chunk in chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *lengths])
