"""Checks the options of a corpus against its constructor, before it is called."""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from longattn.discovery import nearest
from longattn.errors import ConfigError


def check_options(kind: type, name: str, options: Mapping[str, Any], internal: Collection[str]) -> None:
    """Raise ConfigError for an option that `kind` has not, one of another type than annotated, or one left out.

    `name` is what users call the corpus; arguments of the constructor in `internal` are no options.
    """
    known = [parameter for parameter in inspect.signature(kind).parameters if parameter not in internal]
    types_of = get_type_hints(kind.__init__)  # type: ignore[misc]
    for option, value in options.items():
        if option not in known:
            raise ConfigError(
                f"options: {option!r} is no option of path={name!r}{nearest(option, known)}; "
                f"there are: {', '.join(known) or 'none'}"
            )
        if not _fits(value, types_of[option]):
            raise ConfigError(f"options: {option}={value!r} of path={name!r} must be {_in_words(types_of[option])}")
    for option in required_options(kind, internal):
        if option not in options:
            raise ConfigError(f"options: path={name!r} needs {option} ({_in_words(types_of[option])})")


def required_options(kind: type, internal: Collection[str]) -> list[str]:
    """Return the options of `kind` that have no default."""
    parameters = inspect.signature(kind).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.name not in internal]


def _fits(value: object, annotation: Any) -> bool:
    """Return whether a value is of the annotated type; a whole number is a float, a bool is no number."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(annotation))
    if get_origin(annotation) is list:
        (inner,) = get_args(annotation)
        return isinstance(value, list) and all(_fits(item, inner) for item in value)
    if annotation in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if annotation is float else annotation)


def _in_words(annotation: Any) -> str:
    """Return `int`, `list of str or null` and the like."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_in_words(choice) for choice in get_args(annotation))
    if get_origin(annotation) is list:
        return f"list of {_in_words(get_args(annotation)[0])}"
    return "null" if annotation is types.NoneType else str(annotation.__name__)
