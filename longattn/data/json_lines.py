"""Reads JSON lines, and JSON files that hold one list of objects, and says where a file is wrong.

The reader of `datasets` infers one schema for all columns, so a field that longattn does not need can make it fail, and
it names no line. This one yields the objects as they are. A line ends at a line feed and nowhere else.
"""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import fsspec  # type: ignore[import-untyped]

from longattn.data.fields import kind_of
from longattn.errors import ConfigError

Record = tuple[str, dict[str, Any] | ConfigError]
"""(file:line, the object there, or what is wrong with it)."""

_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def read_records(file: str) -> Iterator[Record]:
    """Yield each object of a file, local or a URL, compressed or not; what is wrong with a line comes in its place.

    Raises ConfigError where the file cannot be read or unpacked.
    """
    try:
        with fsspec.open(file, "rb", compression="infer") as stream:
            yield from _records(file, stream)
    except _UNREADABLE as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _records(file: str, stream: BinaryIO) -> Iterator[Record]:
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
        place = f"{file}:{number}"
        yield place, _record(line, place, position)
        position += len(line)


def _record(line: bytes, place: str, position: int) -> dict[str, Any] | ConfigError:
    """Return the object of a line that starts `position` bytes into its file, or what is wrong with it."""
    try:
        value = _parsed(line, place, position)
    except ConfigError as error:
        return error
    return _object(value, place)


def _entries(file: str, content: bytes) -> Iterator[Record]:
    entries = _parsed(content, file, 0)
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
        place = f"{file} (entry {number})"
        yield place, _object(entry, place)


def _object(value: Any, place: str) -> dict[str, Any] | ConfigError:
    if isinstance(value, dict):
        return value
    return ConfigError(f"{place}: {kind_of(value)}, but each line must be a JSON object with a field for the text")


def _parsed(content: bytes, place: str, position: int) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise not_utf8(place, position + error.start, content[error.start]) from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        advice = "write each object in one line" if content.strip() == b"{" else "mend or remove the line"
        raise ConfigError(
            f"{place}: broken JSON ({error.msg}, {where}); {advice}, or skip such lines by bad_records='skip'"
        ) from error
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
