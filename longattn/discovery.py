"""Finds the classes that a folder of modules defines, so that adding one is adding a file."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Hashable, Iterable
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")


@functools.cache
def _discover(package: str, base: Hashable) -> MappingProxyType[str, type]:
    assert isinstance(base, type)
    found: dict[str, type] = {}
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{module_info.name}")
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
            if own and issubclass(value, base) and not inspect.isabstract(value):
                found[name] = value
    return MappingProxyType(dict(sorted(found.items())))


def classes_in(package: str, base: type[T]) -> dict[str, type[T]]:
    """Return every public concrete subclass of `base` defined in the modules of `package`, by class name."""
    return dict(_discover(package, base))  # type: ignore[arg-type]


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the choice closest to `word`, or "" when none is close."""
    matches = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
