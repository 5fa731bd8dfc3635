"""Text out of a record: from one field, from several, from a list of paragraphs, or from a nested place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longattn.discovery import nearest
from longattn.errors import ConfigError

_SHOWN_FIELDS = 20


@dataclass(frozen=True)
class TextField:
    """Where a text stands in a record.

    A path such as `full_text.paragraphs` goes into nested fields, and into every entry of a list on its way; a field of
    that very name comes first. All strings that are found are one text.
    """

    flag: str
    """The setting that names it, for errors."""

    paths: tuple[str, ...]
    """Fields, or paths of fields, in the order of their texts."""

    separator: str
    """Stands between the strings that are joined."""

    def read(self, record: Mapping[str, Any], place: str) -> str:
        """Return the text; null counts as empty. Raises ConfigError, which begins with `place`, where it is no text."""
        strings = [
            string
            for path in self.paths
            for string in self._strings(value_at(record, path, self.flag, place), path, place)
        ]
        return self.separator.join(string for string in strings if string)

    def _strings(self, value: Any, path: str, place: str) -> Iterator[str]:
        if value is None:
            return
        if isinstance(value, str):
            check_text(value, path, place)
            yield value
        elif isinstance(value, list):
            for entry in value:
                yield from self._strings(entry, path, place)
        else:
            raise ConfigError(
                f"{place}: field {path!r} holds {kind_of(value)}, but text must be a string or a list of strings"
            )


def value_at(record: Mapping[str, Any], path: str, flag: str, place: str) -> Any:
    """Return the value of a field or path of fields; of a list on the way, the values of all its entries."""
    if path in record:
        return record[path]
    name, _, rest = path.partition(".")
    if not rest or name not in record:
        raise missing_field(flag, name, list(record), place)
    return _within(record[name], rest, flag, place)


def _within(value: Any, path: str, flag: str, place: str) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_within(entry, path, flag, place) for entry in value]
    if isinstance(value, Mapping):
        return value_at(value, path, flag, place)
    raise ConfigError(f"{place}: {flag} looks for {path!r} within {kind_of(value)}, which has no fields")


def missing_field(flag: str, name: str, names: Iterable[str], place: str) -> ConfigError:
    """Return the error for a field or column that is not there: it lists those that are."""
    known = list(names)
    shown = ", ".join(known[:_SHOWN_FIELDS]) + (", …" if len(known) > _SHOWN_FIELDS else "")
    return ConfigError(
        f"{flag}={name!r}: no such column in {place}{nearest(name, known)}; there are: {shown or 'none'}"
    )


def check_text(value: str, path: str, place: str) -> None:
    """Raise ConfigError where `value` is no text that can be written as UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: field {path!r} holds half a surrogate pair (\\u{ord(value[error.start]):04x}) "
            f"at character {error.start}, which is no text; remove it or replace it by \\ufffd"
        ) from error


def kind_of(value: Any) -> str:
    """Return what JSON calls the type of `value`, with its article."""
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
