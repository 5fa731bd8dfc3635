"""Documents from anywhere: all that `datasets.load_dataset` opens, `save_to_disk` folders, this machine's corpora."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from longattn.data.corpora import Corpus, Document, corpora
from longattn.data.json_lines import missing_column, read_json_documents
from longattn.data.load_errors import explained, first_bad_byte
from longattn.discovery import nearest
from longattn.errors import ConfigError

log = logging.getLogger(__name__)

_NOISY = (
    *(f"datasets.packaged_modules.{kind}.{kind}" for kind in ("csv", "json", "parquet", "text", "arrow")),
    "huggingface_hub.utils._http",
)
"""Loggers of readers and of the hub, which repeat in several lines what the error says."""

DataFiles = str | list[str] | dict[str, str | list[str]]

_FILE_FORMATS = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv", ".txt": "text", ".md": "text",
    ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where documents come from, in the terms of `datasets.load_dataset`."""

    path: str
    """A corpus of this machine, a format (json, csv, text, parquet, arrow), a folder of `save_to_disk`, or a hub id."""

    name: str | None = None
    """Configuration of a hub data set."""

    data_files: DataFiles | None = None
    """Files, patterns or URLs: one, several, or several per split."""

    text_column: str = "text"
    """Column that holds the text."""

    label_column: str | None = None
    """Column that holds the label."""

    minimum_characters: int | None = None
    """Shorter documents are left out; None: 1, or what the corpus finds sensible."""

    maximum_documents: int | None = None
    """Keep the first so many documents."""

    cache_dir: str | None = None
    """Cache of `datasets`; None: its own choice (HF_HOME, HF_DATASETS_CACHE)."""

    @property
    def files(self) -> dict[str, list[str]]:
        """Files, patterns or URLs of each split."""
        if self.data_files is None:
            return {}
        splits = self.data_files if isinstance(self.data_files, Mapping) else {"train": self.data_files}
        return {name: [files] if isinstance(files, str) else list(files) for name, files in splits.items()}


_TEXT = datasets.Features({"text": datasets.Value("string")})


def load_documents(source: Source, split: str) -> datasets.Dataset:
    """Return the documents of `split` as a data set with the columns text and, where asked for, label.

    `split` is in the terms of `load_dataset`: `train`, `train[:10%]`, `train+validation`. Raises ConfigError for
    whatever the user can mend.
    """
    documents = _opened(source, split)
    least = 1 if source.minimum_characters is None else source.minimum_characters  # a corpus applies its own default
    lengths = character_counts(documents)
    kept = np.flatnonzero(lengths >= least)[: source.maximum_documents]
    if len(kept) == 0:
        raise ConfigError(_no_documents(source, split, len(documents), least))
    return documents if len(kept) == len(documents) else documents.select(kept)


def character_counts(documents: datasets.Dataset) -> NDArray[np.int64]:
    """Return the number of characters of each text, 0 where there is none."""
    counts: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    for batch in documents.select_columns(["text"]).with_format("arrow").iter(1000):
        counts.append(pc.fill_null(pc.utf8_length(batch["text"]), 0).to_numpy().astype(np.int64))
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
        if "label" in batch.column_names:
            digest.update(repr(batch["label"].to_pylist()).encode())
    return digest.hexdigest()


def _opened(source: Source, split: str) -> datasets.Dataset:
    """Return the documents with the columns text and label, empty ones included."""
    if source.path in corpora():
        corpus = corpora()[source.path]()
        _refuse_files(source, f"{source.path!r} is a corpus of this machine")
        if source.label_column not in (None, "label"):
            raise ConfigError(f"label_column={source.label_column!r}: {source.path!r} has one label column, 'label'")
        documents = _take({"train": lambda: _corpus_documents(source, corpus)}, split, f"path={source.path!r}")
        return documents.select_columns(["text"] if source.label_column is None else ["text", "label"])
    folder = Path(source.path).expanduser()
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        _refuse_files(source, f"{source.path!r} is a folder of save_to_disk")
        return _columns(source, _saved(folder, split))
    if source.path == "json" and all("://" not in file for files in source.files.values() for file in files):
        _refuse_name(source)
        parts = {name: _json_documents(source, files) for name, files in _local_files(source).items()}
        return _take(parts, split, f"data_files={source.data_files!r}")
    return _columns(source, _loaded(source, split))


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
    if source.path in _FILE_FORMATS.values():
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
            for file in (file for chosen in files.values() for file in chosen if "://" not in file):
                if bad := first_bad_byte(file):
                    raise bad from error
        raise explained(
            error, source.path, source.name, split, nearest(source.path, [*corpora(), *_FILE_FORMATS.values()])
        ) from error
    assert isinstance(loaded, datasets.Dataset)
    return loaded


def _local_files(source: Source) -> dict[str, list[str]]:
    """Return the files of each split, patterns resolved and empty files left out.

    Raises ConfigError where a file is missing, or where all files of a split are empty.
    """
    if not source.files or not all(source.files.values()):
        raise ConfigError(f"path={source.path!r} reads files: say which with data_files")
    return {name: _filled(patterns) for name, patterns in source.files.items()}


def _filled(patterns: list[str]) -> list[str]:
    found = [file for pattern in patterns for file in _resolved(pattern)]
    filled = [file for file in found if "://" in file or Path(file).stat().st_size > 0]
    shown = ", ".join(patterns)
    if not filled:
        raise ConfigError(f"data_files: {shown} is empty (0 bytes): there is no document in it")
    if len(filled) < len(found):
        log.warning("data_files: %d of the files of %s are empty (0 bytes)", len(found) - len(filled), shown)
    return filled


def _resolved(pattern: str) -> list[str]:
    if not pattern:
        raise ConfigError("data_files is an empty word: give a file, or a pattern such as 'documents/*.jsonl'")
    if "://" in pattern:
        return [pattern]
    path = Path(pattern).expanduser()
    if path.is_file():
        found = [str(path.resolve())]
    elif path.is_dir():
        raise ConfigError(f"data_files: {pattern} is a folder; give its files, for example '{pattern.rstrip('/')}/**'")
    elif glob.has_magic(pattern):
        found = sorted(
            str(Path(file).resolve()) for file in glob.glob(str(path), recursive=True) if Path(file).is_file()
        )
        if not found:
            raise ConfigError(f"data_files: no file matches {pattern!r} (looked in {Path.cwd()})")
    else:
        if path.is_symlink():
            raise ConfigError(f"data_files: {pattern} is a link to {path.readlink()}, which does not exist")
        hint = nearest(path.name, [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise ConfigError(f"data_files: {pattern} does not exist (looked in {path.resolve().parent}){hint}")
    return found


def _refuse_files(source: Source, reason: str) -> None:
    if source.data_files is not None or source.name is not None:
        flag = "data_files" if source.data_files is not None else "name"
        raise ConfigError(f"{flag} has no effect: {reason}; drop {flag}, or choose another path")


def _refuse_name(source: Source) -> None:
    if source.name is not None:
        raise ConfigError(f"name={source.name!r} has no effect: path={source.path!r} reads files; drop name")


def _refuse_file_as_path(path: str) -> None:
    suffixes = [suffix for suffix in Path(path).suffixes if suffix in _FILE_FORMATS]
    if suffixes and (Path(path).is_file() or path.count("/") != 1):
        kind = _FILE_FORMATS[suffixes[0]]
        raise ConfigError(f"path={path!r} is a file name: give path={kind!r} and data_files={path!r}")
    if path.startswith((".", "/", "~")) and not Path(path).expanduser().exists():
        raise ConfigError(f"path={path!r} does not exist")


def _refuse_folder_of_texts(path: str) -> None:
    """Raise for a folder of text files, of which `datasets` would make one document per line."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return
    kinds = Counter(_FILE_FORMATS.get(file.suffix) for file in folder.rglob("*") if file.is_file())
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


def _corpus_documents(source: Source, corpus: Corpus) -> datasets.Dataset:
    least = corpus.minimum_characters if source.minimum_characters is None else source.minimum_characters
    features = datasets.Features({column: datasets.Value("string") for column in ("text", "label", "source")})
    arguments = {"corpus": source.path, "minimum_characters": least, "maximum_documents": source.maximum_documents}
    documents = _generated(_read_corpus, arguments, corpus.identity(), features, source)
    if len(documents) == 0:
        raise ConfigError(f"path={source.path!r}: no document of at least {least} characters: {corpus.explain_empty()}")
    return documents


def _read_corpus(corpus: str, minimum_characters: int, maximum_documents: int | None) -> Iterator[Document]:
    return itertools.islice(corpora()[corpus]().documents(minimum_characters), maximum_documents)


def _json_documents(source: Source, files: list[str]) -> Callable[[], datasets.Dataset]:
    def read() -> datasets.Dataset:
        states = [(Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files]
        arguments = {"files": files, "text_column": source.text_column, "label_column": source.label_column}
        features = None  # a label may be of any type, and tells by itself
        if source.label_column is None:
            features = _TEXT
        return _generated(read_json_documents, arguments, repr(states), features, source)

    return read


def _generated(
    generator: Callable[..., Iterator[object]],
    arguments: Mapping[str, object],
    identity: str,
    features: datasets.Features | None,
    source: Source,
) -> datasets.Dataset:
    """Return the documents of a generator, which runs once for each `identity` of what it reads."""
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
            return datasets.Dataset.from_dict({"text": []}, features=_TEXT)
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


def _columns(source: Source, documents: datasets.Dataset) -> datasets.Dataset:
    """Return the documents with their columns called text and label."""
    wanted = {"text": source.text_column}
    if source.label_column is not None:
        wanted["label"] = source.label_column
    for column, flag in zip(wanted.values(), ("text_column", "label_column"), strict=False):
        if column not in documents.column_names:
            raise missing_column(flag, column, documents.column_names, f"path={source.path!r}")
    kind = documents.features[wanted["text"]]
    if getattr(kind, "dtype", None) not in ("string", "large_string"):
        raise ConfigError(
            f"text_column={source.text_column!r} of path={source.path!r} holds {kind}, but text must be a string"
        )
    chosen = documents.select_columns(list(dict.fromkeys(wanted.values())))
    return chosen.rename_columns({old: new for new, old in wanted.items() if old != new})


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
