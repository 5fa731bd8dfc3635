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
    """Documents as tokens of text, without special tokens at their ends; those of several folders one after the other.

    A folder of two files: `tokens.arrow`, a `datasets` table with a row per document (columns `input_ids`; `special`:
    the positions of special tokens inside the text; `pair_start`: the tokens before the second text of a pair, its
    separator included; and `label`, where there are any), and `counts.npy`: how often each token id occurs.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = list(folders)
        tables = [datasets.Dataset.from_file(str(folder / _TOKENS)) for folder in folders]
        self.folder_sizes = [len(table) for table in tables]
        columns = ["input_ids", "special", *(["pair_start"] if "pair_start" in tables[0].column_names else [])]
        joined = datasets.concatenate_datasets([table.select_columns(columns) for table in tables])
        self._table = joined.with_format("arrow")
        self.lengths: Integers = _list_lengths(self._table, "input_ids")
        self.token_counts: Integers = np.sum([np.load(folder / _COUNTS) for folder in folders], axis=0)

    @property
    def pair_start(self) -> Integers | None:
        """(documents,): tokens before the second text of each pair; None where documents are single texts."""
        if "pair_start" not in self._table.column_names:
            return None
        return np.asarray(self._table.data.column("pair_start").to_numpy()).astype(np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def window_tokens(self, windows: Windows, window: int) -> Integers:
        """Return the token ids of a window."""
        start, stop, gap_start, gap_stop = (
            int(column[window]) for column in (windows.start, windows.stop, windows.gap_start, windows.gap_stop)
        )
        values = self._table[int(windows.document[window])]["input_ids"].chunk(0).flatten()
        if gap_start == gap_stop:
            return np.asarray(values.slice(start, stop - start)).astype(np.int64)
        parts = [values.slice(start, gap_start - start), values.slice(gap_stop, stop - gap_stop)]
        return np.concatenate([np.asarray(part) for part in parts]).astype(np.int64)

    def maskable(self, windows: Windows) -> Integers:
        """Return for each window the number of its tokens that are not special."""
        counts = windows.length.copy()
        special_counts = _list_lengths(self._table, "special")
        for document in np.flatnonzero(special_counts):
            positions = np.asarray(self._table[int(document)]["special"].chunk(0).flatten()).astype(np.int64)
            first, last = np.searchsorted(windows.document, [document, document + 1])
            bounds = np.searchsorted(
                positions,
                [column[first:last] for column in (windows.start, windows.gap_start, windows.gap_stop, windows.stop)],
            )
            counts[first:last] -= bounds[1] - bounds[0] + bounds[3] - bounds[2]
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
    paired = "text_pair" in documents.column_names
    if paired:
        features["pair_start"] = datasets.Value("int32")

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = tokenizer.encode_batch([text or "" for text in batch["text"]])
        starts = {}
        if paired:
            second = tokenizer.encode_batch([text or "" for text in batch["text_pair"]])
            starts = {"pair_start": [len(tokens) + 1 for tokens in ids]}
            between = np.array([tokenizer.special.sep])
            ids = [np.concatenate([one, between, other]) for one, other in zip(ids, second, strict=True)]
        special = [np.flatnonzero(~tokenizer.is_ordinary[tokens]).astype(np.int32) for tokens in ids]
        return {"input_ids": [tokens.astype(kind) for tokens in ids], "special": special, **starts}

    def write(partial: Path) -> None:
        table = documents.map(
            encode,
            batched=True,
            batch_size=128,
            writer_batch_size=128,
            remove_columns=[column for column in ("text", "text_pair") if column in documents.column_names],
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
