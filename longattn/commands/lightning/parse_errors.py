"""Turns what jsonargparse says about wrong settings into one line that names the nearest right one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from jsonargparse._util import import_object  # the same look-up that found the class

from longattn.discovery import classes_in, nearest
from longattn.patterns import Pattern


def explain(message: str, parser: ArgumentParser, arguments: list[str]) -> str:
    """Return `message` of jsonargparse as one line: which setting, what is wrong with it, what comes nearest."""
    keys = known_keys(parser)
    text = " ".join(message.split())
    if match := re.search(r"unrecognized arguments: (\S+)", text):
        word = match[1].split("=", 1)[0]
        return f"setting {word} is unknown{_nearest_key(word.removeprefix('--'), keys, '--')}"
    if match := re.search(r"Group '(\S+)' does not accept option '(\S+)'", text):
        return _unknown(f"{match[1]}.{match[2]}", keys, arguments)
    if match := re.search(r"(?:does not accept option|Option) '([^']+)'(?: is not accepted)?$", text):
        owner = re.search(r"given class_path '([^']+)'", text)
        if owner is not None:
            return _unknown_field(owner[1], match[1], text)
        return _unknown(match[1], keys, arguments)
    if match := re.search(r'Parser key "(\S+)": .*Expected a dot import path string: (\S+)', text):
        names = classes_in("longattn.patterns", Pattern)  # type: ignore[type-abstract]
        return f"{match[1]} {match[2]!r} is no class that is known{nearest(match[2], names)}"
    return re.sub(r'^(?:argument |error: )*Parser key "([^"]+)":', r"\1:", text)


def known_keys(parser: ArgumentParser) -> list[str]:
    """Return the full names of the parser's settings, such as model.d_model."""
    return [action.dest for action in parser._actions if action.dest not in ("help", "config")]


def _unknown(key: str, keys: list[str], arguments: list[str]) -> str:
    files = ", ".join(_files_with(key, arguments))
    return f"setting {key!r}{f' of {files}' if files else ''} is unknown{_nearest_key(key, keys)}"


def _unknown_field(class_path: str, field: str, text: str) -> str:
    where = re.search(r'Parser key "([^"]+)"', text)
    fields = [name for name in inspect.signature(import_object(class_path)).parameters if name != "self"]
    place = f"{where[1]}: " if where else ""
    return f"{place}{class_path.rsplit('.', 1)[-1]} has no setting {field!r}{nearest(field, fields)}; it has {fields}"


def _nearest_key(key: str, keys: Iterable[str], prefix: str = "") -> str:
    return nearest(f"{prefix}{key}", [f"{prefix}{known}" for known in keys])


def _files_with(key: str, arguments: list[str]) -> list[str]:
    """Return the configuration files among the arguments in which the setting `key` stands."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    paths = [Path(word) for word in words if word.endswith((".yaml", ".yml", ".json")) and Path(word).is_file()]
    return [str(path) for path in paths if _holds(yaml.safe_load(path.read_text(encoding="utf-8")), key.split("."))]


def _holds(content: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True
