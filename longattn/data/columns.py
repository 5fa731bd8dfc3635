"""The columns of a data set of any schema as text, text_pair and label."""

from __future__ import annotations

import hashlib
from typing import Any

import datasets

from longattn.data.fields import TextField, missing_field
from longattn.data.json_lines import Record
from longattn.data.records import RecordReader, SkippedRecords


def with_named_columns(documents: datasets.Dataset, reader: RecordReader, place: str) -> datasets.Dataset:
    """Return the documents with the columns that `reader` makes; columns that hold plain text are only renamed."""
    names = documents.column_names
    sources: dict[str, str] = {}
    for column, field in (("text", reader.text), ("text_pair", reader.text_pair)):
        if field is None:
            continue
        _check_there(field, names, place)
        if len(field.paths) == 1 and _is_string(documents.features.get(field.paths[0])):
            sources[column] = field.paths[0]
    if reader.label_column is not None:
        if reader.label_column in names:
            sources["label"] = reader.label_column
        elif reader.label_column.split(".")[0] not in names:
            raise missing_field("label_column", reader.label_column, names, place)
    if len(set(sources.values())) < len(reader.columns):  # something to put together, or one column in two roles
        return _read_out(documents, reader, place)
    return documents.select_columns(list(sources.values())).rename_columns(
        {old: new for new, old in sources.items() if old != new}
    )


def text_features(columns: list[str]) -> datasets.Features:
    """Return the features of columns that all hold text."""
    return datasets.Features({column: datasets.Value("string") for column in columns})


def _check_there(field: TextField, names: list[str], place: str) -> None:
    for path in field.paths:
        if path not in names and path.split(".")[0] not in names:
            raise missing_field(field.flag, path.split(".")[0], names, place)


def _is_string(kind: Any) -> bool:
    return getattr(kind, "dtype", None) in ("string", "large_string")


def _read_out(documents: datasets.Dataset, reader: RecordReader, place: str) -> datasets.Dataset:
    """Return what `reader` finds in each record; those left out are counted."""
    needed = {name for path in reader.paths for name in (path, path.split(".")[0])}
    documents = documents.select_columns([name for name in documents.column_names if name in needed])
    skipped = SkippedRecords()

    def read(batch: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        records: list[Record] = [
            (f"{place} row {index}", dict(zip(batch, values, strict=True)))
            for index, values in zip(indices, zip(*batch.values(), strict=True), strict=True)
        ]
        found = list(reader.documents(records, skipped))
        return {column: [document[column] for document in found] for column in reader.columns}

    features = text_features(reader.columns)
    if reader.label_column in documents.column_names:
        features["label"] = documents.features[reader.label_column]
    nested_label = reader.label_column not in (None, *documents.column_names)  # its type shows when it is read
    read_out = documents.map(
        read,
        batched=True,
        with_indices=True,
        batch_size=64,
        writer_batch_size=64,
        remove_columns=documents.column_names,
        features=None if nested_label else features,
        new_fingerprint=hashlib.sha256(f"{documents._fingerprint}\0{reader}".encode()).hexdigest()[:16],
        desc="reading texts",
    )
    skipped.log()
    return read_out
