"""Documents from anywhere: all that `datasets.load_dataset` opens, `save_to_disk` folders, this machine's corpora."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from longattn.data.columns import text_features, with_named_columns
from longattn.data.corpora import build_corpus, corpora
from longattn.data.fields import TextField, missing_field
from longattn.data.files import FORMATS, file_state, is_url, resolved_files
from longattn.data.load_errors import explained, first_bad_byte
from longattn.data.records import BadRecords, RecordReader, read_json_documents
from longattn.discovery import nearest
from longattn.errors import ConfigError

log = logging.getLogger(__name__)

_NOISY = (
    *(f"datasets.packaged_modules.{kind}.{kind}" for kind in ("csv", "json", "parquet", "text", "arrow")),
    "huggingface_hub.utils._http",
)
"""Loggers of readers and of the hub, which repeat in several lines what the error says."""

DataFiles = str | list[str] | dict[str, str | list[str]]


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where documents come from, in the terms of `datasets.load_dataset`, and what is read of them."""

    path: str
    """A corpus of this machine, a format (json, csv, text, parquet, arrow), a folder of `save_to_disk`, or a hub id."""

    name: str | None = None
    """Configuration of a hub data set."""

    data_files: DataFiles | None = None
    """Files, patterns or URLs: one, several, or several per split."""

    options: dict[str, Any] | None = None
    """Settings of a corpus of this machine."""

    text_column: str | list[str] = "text"
    """Column that holds the text, or several whose texts are joined; `a.b` is field b of column a, and of every entry
    where a is a list."""

    text_separator: str = "\n\n"
    """Stands between the texts of several columns, and between the strings of a list."""

    text_pair_column: str | list[str] | None = None
    """Column that holds the second text of a pair."""

    label_column: str | None = None
    """Column that holds the label; `a.b` as for the text."""

    bad_records: BadRecords = "error"
    """What to do with a line that is no JSON, or a record whose text is none: `error`, or `skip` and count."""

    minimum_characters: int | None = None
    """Shorter documents are left out; None: 1, or what the corpus finds sensible."""

    maximum_documents: int | None = None
    """Keep the first so many documents."""

    @property
    def files(self) -> dict[str, list[str]]:
        """Files, patterns or URLs of each split."""
        if self.data_files is None:
            return {}
        splits = self.data_files if isinstance(self.data_files, Mapping) else {"train": self.data_files}
        return {name: [files] if isinstance(files, str) else list(files) for name, files in splits.items()}

    @property
    def reader(self) -> RecordReader:
        """What turns a record of this source into a document."""
        return RecordReader(
            text=self._field("text_column", self.text_column),
            text_pair=None if self.text_pair_column is None else self._field("text_pair_column", self.text_pair_column),
            label_column=self.label_column,
            bad_records=self.bad_records,
        )

    def _field(self, flag: str, columns: str | list[str]) -> TextField:
        paths = (columns,) if isinstance(columns, str) else tuple(columns)
        if not paths or not all(paths):
            raise ConfigError(f"{flag}={columns!r}: give the name of a column, or several")
        return TextField(flag, paths, self.text_separator)


@dataclass(frozen=True, kw_only=True)
class Source(SourceSettings):
    """A source, and where what is read of it is kept."""

    cache_dir: str | None = None
    """Cache of `datasets`; None: its own choice (HF_HOME, HF_DATASETS_CACHE)."""


class Documents(NamedTuple):
    """What a split holds."""

    table: datasets.Dataset
    """Columns text and, where asked for, text_pair and label."""

    skipped: int
    """Documents that were left out: too short, empty, or unreadable and not wanted."""


def load_documents(source: Source, split: str) -> Documents:
    """Return the documents of `split`.

    `split` is in the terms of `load_dataset`: `train`, `train[:10%]`, `train+validation`. Raises ConfigError for
    whatever the user can mend.
    """
    documents = _opened(source, split)
    least = 1 if source.minimum_characters is None else source.minimum_characters  # a corpus applies its own default
    lengths = character_counts(documents)
    long_enough = np.flatnonzero(lengths >= least)
    if len(long_enough) == 0:
        raise ConfigError(_no_documents(source, split, len(documents), least))
    kept = long_enough[: source.maximum_documents]
    table = documents if len(kept) == len(documents) else documents.select(kept)
    return Documents(table, len(documents) - len(long_enough))


def character_counts(documents: datasets.Dataset) -> NDArray[np.int64]:
    """Return the number of characters of each document, those of both texts of a pair."""
    counts: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    columns = [column for column in ("text", "text_pair") if column in documents.column_names]
    for batch in documents.select_columns(columns).with_format("arrow").iter(1000):
        parts = [pc.fill_null(pc.utf8_length(batch[column]), 0).to_numpy().astype(np.int64) for column in columns]
        counts.append(np.sum(parts, axis=0))
    return np.concatenate(counts)


def content_hash(documents: datasets.Dataset) -> str:
    """Return a hash of all that the documents hold, whatever file or order of bytes they came from."""
    digest = hashlib.blake2b(",".join(documents.column_names).encode(), digest_size=16)
    for batch in documents.with_format("arrow").iter(1000):
        for value in batch["text"]:
            buffer = value.as_buffer()
            digest.update((0 if buffer is None else buffer.size).to_bytes(8, "little"))
            if buffer is not None:
                digest.update(buffer)
        for column in ("text_pair", "label"):
            if column in batch.column_names:
                digest.update(repr(batch[column].to_pylist()).encode())
    return digest.hexdigest()


def _opened(source: Source, split: str) -> datasets.Dataset:
    """Return the documents with the columns text, text_pair and label, empty ones included."""
    if source.path in corpora():
        documents = _take({"train": lambda: _corpus_documents(source)}, split, f"path={source.path!r}")
        return documents.select_columns(source.reader.columns)
    if source.options:
        raise ConfigError(f"options have no effect: path={source.path!r} is no corpus of this machine; drop options")
    folder = Path(source.path).expanduser()
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        _refuse_files(source, f"{source.path!r} is a folder of save_to_disk")
        return with_named_columns(_saved(folder, split), source.reader, f"path={source.path!r}")
    if source.path == "json":
        _refuse_name(source)
        parts = {name: _json_documents(source, files) for name, files in _local_files(source).items()}
        return _take(parts, split, f"data_files={source.data_files!r}")
    return with_named_columns(_loaded(source, split), source.reader, f"path={source.path!r}")


def _loaded(source: Source, split: str) -> datasets.Dataset:
    """Open the source with `datasets.load_dataset`."""
    arguments: dict[str, object] = {}
    files: dict[str, list[str]] = {}
    if source.path == "text":
        arguments = {"sample_by": "document", "encoding": "utf-8-sig"}  # "-sig": a byte-order mark is no text
    if source.path == "csv":
        arguments = {"keep_default_na": False}  # the words "NA", "null" and "None" are text
        if all(Path(file).suffixes[:1] == [".tsv"] for chosen in source.files.values() for file in chosen):
            arguments["sep"] = "\t"
    if source.path in FORMATS.values():
        files = _local_files(source)
        _refuse_name(source)
        arguments["data_files"] = files
    elif source.data_files is not None:
        arguments["data_files"] = source.files if isinstance(source.data_files, Mapping) else source.data_files
    else:
        _refuse_file_as_path(source.path)
        _refuse_folder_of_texts(source.path)
    try:
        loaded = datasets.load_dataset(source.path, source.name, split=split, cache_dir=source.cache_dir, **arguments)
    except Exception as error:  # every reader and the hub have errors of their own
        if isinstance(error.__cause__, UnicodeDecodeError) or isinstance(error, UnicodeDecodeError):
            for file in (file for chosen in files.values() for file in chosen if not is_url(file)):
                if bad := first_bad_byte(file):
                    raise bad from error
        raise explained(
            error, source.path, source.name, split, nearest(source.path, [*corpora(), *FORMATS.values()])
        ) from error
    assert isinstance(loaded, datasets.Dataset)
    return loaded


def _local_files(source: Source) -> dict[str, list[str]]:
    """Return the files of each split, patterns resolved and empty files left out."""
    if not source.files or not all(source.files.values()):
        raise ConfigError(f"path={source.path!r} reads files: say which with data_files")
    return {name: resolved_files(patterns) for name, patterns in source.files.items()}


def _refuse_files(source: Source, reason: str) -> None:
    if source.data_files is not None or source.name is not None:
        flag = "data_files" if source.data_files is not None else "name"
        raise ConfigError(f"{flag} has no effect: {reason}; drop {flag}, or choose another path")


def _refuse_name(source: Source) -> None:
    if source.name is not None:
        raise ConfigError(f"name={source.name!r} has no effect: path={source.path!r} reads files; drop name")


def _refuse_file_as_path(path: str) -> None:
    suffixes = [suffix for suffix in Path(path).suffixes if suffix in FORMATS]
    if suffixes and (Path(path).is_file() or path.count("/") != 1):
        kind = FORMATS[suffixes[0]]
        raise ConfigError(f"path={path!r} is a file name: give path={kind!r} and data_files={path!r}")
    if path.startswith((".", "/", "~")) and not Path(path).expanduser().exists():
        raise ConfigError(f"path={path!r} does not exist")


def _refuse_folder_of_texts(path: str) -> None:
    """Raise for a folder of text files, of which `datasets` would make one document per line."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return
    kinds = Counter(FORMATS.get(file.suffix) for file in folder.rglob("*") if file.is_file())
    if kinds["text"] and not any(count for kind, count in kinds.items() if kind not in ("text", None)):
        pattern = str(Path(path) / "**" / "*.txt")
        raise ConfigError(f"path={path!r} is a folder of text files: give path='text' and data_files={pattern!r}")


def _saved(folder: Path, split: str) -> datasets.Dataset:
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # a damaged folder fails in many ways
        raise ConfigError(f"path={str(folder)!r}: not a whole folder of save_to_disk: {error}") from error
    parts = saved if isinstance(saved, Mapping) else {"train": saved}
    return _take({name: partial(parts.__getitem__, name) for name in parts}, split, f"path={str(folder)!r}")


def _corpus_documents(source: Source) -> datasets.Dataset:
    _refuse_files(source, f"{source.path!r} is a corpus of this machine")
    for flag in ("label_column", "text_pair_column"):
        named, only = getattr(source, flag), flag.removesuffix("_column")
        if named not in (None, only):
            raise ConfigError(f"{flag}={named!r}: {source.path!r} has one {only} column, {only!r}")
    corpus = build_corpus(source.path, source.options or {})
    least = corpus.minimum_characters if source.minimum_characters is None else source.minimum_characters
    wanted = source.reader.columns
    features = text_features(wanted)
    arguments = {
        "corpus": source.path, "options": source.options or {}, "columns": tuple(wanted), "minimum_characters": least,
        "maximum_documents": source.maximum_documents,
    }  # fmt: skip
    documents = _generated(_read_corpus, arguments, corpus.identity(), features, source)
    if len(documents) == 0:
        raise ConfigError(f"path={source.path!r}: no document of at least {least} characters: {corpus.explain_empty()}")
    return documents


def _read_corpus(
    corpus: str,
    options: dict[str, Any],
    columns: tuple[str, ...],
    minimum_characters: int,
    maximum_documents: int | None,
) -> Iterator[dict[str, Any]]:
    for document in itertools.islice(build_corpus(corpus, options).documents(minimum_characters), maximum_documents):
        if missing := [column for column in columns if column not in document]:
            raise missing_field(f"{missing[0]}_column", missing[0], document, f"path={corpus!r}")
        yield {column: document[column] for column in columns}  # type: ignore[literal-required]


def _json_documents(source: Source, files: list[str]) -> Callable[[], datasets.Dataset]:
    def read() -> datasets.Dataset:
        reader = source.reader
        features = None  # a label may be of any type, and tells by itself
        if source.label_column is None:
            features = text_features(reader.columns)
        states = repr([file_state(file) for file in files])
        return _generated(read_json_documents, {"files": tuple(files), "reader": reader}, states, features, source)

    return read


def _generated(
    generator: Callable[..., Iterator[object]],
    arguments: Mapping[str, object],
    identity: str,
    features: datasets.Features | None,
    source: Source,
) -> datasets.Dataset:
    """Return the documents of a generator, which runs once for each `identity` of what it reads.

    No argument may be a list: `datasets` would run the generator for each entry.
    """
    call = f"{generator.__module__}.{generator.__qualname__}\0{sorted(arguments.items())}\0{identity}\0{features}"
    try:
        return datasets.Dataset.from_generator(
            generator,
            features=features,
            gen_kwargs=dict(arguments),
            cache_dir=source.cache_dir,
            fingerprint=hashlib.sha256(call.encode()).hexdigest()[:16],
        )
    except Exception as error:  # `datasets` wraps what a generator raises
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        if "corresponds to no data" in str(error) or type(error.__cause__).__name__ == "SchemaInferenceError":
            columns = source.reader.columns
            return datasets.Dataset.from_dict({column: [] for column in columns}, features=text_features(columns))
        raise explained(error, source.path, source.name, "train") from error


def _take(parts: Mapping[str, Callable[[], datasets.Dataset]], split: str, place: str) -> datasets.Dataset:
    """Return the part of named splits that a split in the terms of `load_dataset` means."""
    names = re.findall(r"(?:^|\+)\s*([\w.-]+)", split)
    for name in names:
        if name not in parts:
            raise ConfigError(f"split={split!r}: {place} has no {name!r}; there are: {', '.join(parts)}")
    loaded = {name: parts[name]() for name in dict.fromkeys(names)}
    if split in loaded:
        return loaded[split]
    try:
        instructions = datasets.ReadInstruction.from_spec(split).to_absolute(
            {name: len(part) for name, part in loaded.items()}
        )
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"split={split!r} is not understood ({error}); write train, train[:10%] or train+validation"
        ) from error
    pieces = []
    for instruction in instructions:
        part = loaded[instruction.splitname]
        stop = len(part) if instruction.to is None else instruction.to
        pieces.append(part.select(range(instruction.from_ or 0, stop)))
    return datasets.concatenate_datasets(pieces)


def _no_documents(source: Source, split: str, total: int, least: int) -> str:
    where = f"path={source.path!r}" + (f" data_files={source.data_files!r}" if source.data_files is not None else "")
    if total == 0:
        return f"{where} split={split!r}: no documents"
    if least > 1:
        return f"{where} split={split!r}: none of {total} documents has {least} characters; lower minimum_characters"
    return f"{where} split={split!r}: all {total} documents are empty in column {source.text_column!r}"


@contextlib.contextmanager
def quiet(*, progress: bool) -> Iterator[None]:
    """Let `datasets` show progress bars or not, and keep its readers from logging what we raise; restore all after."""
    was_disabled = datasets.are_progress_bars_disabled()
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    (datasets.enable_progress_bars if progress else datasets.disable_progress_bars)()
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        (datasets.disable_progress_bars if was_disabled else datasets.enable_progress_bars)()
