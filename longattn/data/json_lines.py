"""Reads JSON lines, and JSON files that hold one list of objects, and says where a file is wrong.

The reader of `datasets` infers one schema for all columns, so a field that longattn does not need can make it fail, and
it names no line. This one takes the columns asked for. A line ends at a line feed and nowhere else.
"""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec  # type: ignore[import-untyped]

from longattn.discovery import nearest
from longattn.errors import ConfigError

_SHOWN_COLUMNS = 20


def read_json_documents(files: Sequence[str], text_column: str, label_column: str | None) -> Iterator[dict[str, Any]]:
    """Yield {"text", and "label" where `label_column` is given} of each object in `files`.

    Raises ConfigError with file and line for a broken line, a missing column, text that is no string, or bytes that are
    not UTF-8.
    """
    for file in files:
        for place, record in _readable_records(file):
            if not isinstance(record, dict):
                raise ConfigError(
                    f"{place}: {_kind(record)}, but each line must be a JSON object with a field {text_column!r}"
                )
            document = {"text": text_of(record, text_column, place)}
            if label_column is not None:
                document["label"] = _field(record, label_column, place, "label_column")
                if isinstance(document["label"], str):
                    _check_text(document["label"], label_column, place)
            yield document


def text_of(record: dict[str, Any], text_column: str, place: str) -> str:
    """Return the text of a record; null counts as an empty document."""
    value = _field(record, text_column, place, "text_column")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{place}: field {text_column!r} holds {_kind(value)}, but text must be a string")
    _check_text(value, text_column, place)
    return value


def _check_text(value: str, column: str, place: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: field {column!r} holds half a surrogate pair (\\u{ord(value[error.start]):04x}) "
            f"at character {error.start}, which is no text; remove it or replace it by \\ufffd"
        ) from error


def missing_column(flag: str, column: str, columns: Sequence[str], place: str) -> ConfigError:
    """Return the error for a column that is not there: it lists those that are."""
    names = ", ".join(columns[:_SHOWN_COLUMNS]) + (", …" if len(columns) > _SHOWN_COLUMNS else "")
    return ConfigError(
        f"{flag}={column!r}: no such column in {place}{nearest(column, columns)}; there are: {names or 'none'}"
    )


def _field(record: dict[str, Any], column: str, place: str, flag: str) -> Any:
    if column not in record:
        raise missing_column(flag, column, list(record), place)
    return record[column]


def _readable_records(file: str) -> Iterator[tuple[str, Any]]:
    """Yield what `_records` yields; a file that cannot be read or unpacked is named."""
    try:
        yield from _records(file)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _records(file: str) -> Iterator[tuple[str, Any]]:
    """Yield (file:line, parsed JSON) of each line that is not blank, or of each entry of a list."""
    with fsspec.open(file, "rb", compression="infer") as stream:
        position = 0
        for number, line in enumerate(stream, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                position += len(line)
                continue
            if line.lstrip().startswith(b"[") and position == 0:
                yield from _entries(file, line + stream.read())
                return
            yield f"{file}:{number}", _parsed(line, f"{file}:{number}", position)
            position += len(line)


def _entries(file: str, content: bytes) -> Iterator[tuple[str, Any]]:
    entries = _parsed(content, file, 0)
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
        yield f"{file} (entry {number})", entry


def _parsed(content: bytes, place: str, position: int) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise not_utf8(place, position + error.start, content[error.start]) from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        advice = "write each object in one line" if content.strip() == b"{" else "mend or remove the line"
        raise ConfigError(f"{place}: broken JSON ({error.msg}, {where}); {advice}") from error
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{place}: JSON that cannot be read ({error}); mend or remove the line") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: JSON nested too deeply to be read; mend or remove the line") from error


def not_utf8(place: str, offset: int, byte: int) -> ConfigError:
    """Return the error for a byte that is not UTF-8; `offset` counts bytes from the start of the file."""
    # The byte-order marks of UTF-16 begin with bytes that other encodings hardly ever have there.
    encoding = "utf-16" if offset == 0 and byte in (0xFE, 0xFF) else "latin1"
    return ConfigError(
        f"{place}: not UTF-8: byte 0x{byte:02x} at offset {offset}; convert the file, "
        f"for example with `iconv -f {encoding} -t utf-8`"
    )


def _kind(value: Any) -> str:
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
