"""Records as documents: a text, perhaps a second one, perhaps a label; what is wrong with one is told or skipped."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from longattn.data.fields import TextField, check_text, value_at
from longattn.data.json_lines import Record, read_records
from longattn.errors import ConfigError

log = logging.getLogger(__name__)

BadRecords = Literal["error", "skip"]


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """Turns records into documents: {"text", and "text_pair" and "label" where asked for}."""

    text: TextField
    """Where the text stands."""

    text_pair: TextField | None = None
    """Where the second text of a pair stands."""

    label_column: str | None = None
    """Field, or path of fields, of the label."""

    bad_records: BadRecords = "error"
    """What to do with a record that has no text that can be read."""

    def __post_init__(self) -> None:
        if self.bad_records not in ("error", "skip"):
            raise ConfigError(f"bad_records={self.bad_records!r}: give error or skip")

    @property
    def columns(self) -> list[str]:
        """What each document has."""
        pair = [] if self.text_pair is None else ["text_pair"]
        return ["text", *pair, *([] if self.label_column is None else ["label"])]

    @property
    def paths(self) -> list[str]:
        """The fields, and paths of fields, that are read."""
        paths = [path for field in (self.text, self.text_pair) if field is not None for path in field.paths]
        return paths if self.label_column is None else [*paths, self.label_column]

    def document(self, record: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return the document of one record; raise ConfigError, which names `place`, where it is none."""
        document: dict[str, Any] = {"text": self.text.read(record, place)}
        if self.text_pair is not None:
            document["text_pair"] = self.text_pair.read(record, place)
        if self.label_column is not None:
            label = value_at(record, self.label_column, "label_column", place)
            if isinstance(label, str):
                check_text(label, self.label_column, place)
            document["label"] = label
        return document

    def documents(self, records: Iterable[Record], counted: SkippedRecords) -> Iterator[dict[str, Any]]:
        """Yield the document of each record; one that is not wanted is counted, and an empty document in its place."""
        for place, record in records:
            try:
                if isinstance(record, ConfigError):
                    raise record
                yield self.document(record, place)
            except ConfigError as error:
                if self.bad_records == "error":
                    raise
                counted.add(error)
                yield {"text": "", **dict.fromkeys(self.columns[1:])}


class SkippedRecords:
    """Counts the records that were left out, and keeps the first reason."""

    def __init__(self) -> None:
        self.count = 0
        self.first: str | None = None

    def add(self, reason: ConfigError) -> None:
        """Count one more."""
        self.count += 1
        self.first = self.first or str(reason)

    def log(self) -> None:
        """Say how many there were, if any."""
        if self.count:
            log.warning("left out %d records that could not be read, the first of them: %s", self.count, self.first)


def read_json_documents(files: tuple[str, ...], reader: RecordReader) -> Iterator[dict[str, Any]]:
    """Yield the documents of JSON files, one file after the other."""
    skipped = SkippedRecords()
    for file in files:
        yield from reader.documents(read_records(file), skipped)
    skipped.log()
