"""Turns what jsonargparse says about wrong settings into one line that names the nearest right one."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from longattn.discovery import classes_in, nearest
from longattn.errors import ConfigError
from longattn.nn.position import positions
from longattn.patterns import Pattern

_NOT_SETTINGS = ("help", "config", "print_config")
_SECTIONS = ("trainer", "model", "data", "run", "parallel")
_CONFIG = ("--config", "-c")


def explain(message: str, parser: ArgumentParser, arguments: list[str]) -> str:
    """Return `message` of jsonargparse as one line: which setting, what is wrong with it, what comes nearest."""
    text = " ".join(message.split())
    keys = [action.dest for action in parser._actions if action.dest not in _NOT_SETTINGS]
    if match := re.search(r"unrecognized arguments: (\S+)", text):
        word = match[1].split("=", 1)[0]
        return f"setting {word} is unknown{nearest(word, [f'--{key}' for key in keys])}"
    if match := re.search(r"arguments are required: (.+)$", text):
        names = [name.split(".", 1)[-1] for name in re.split(r", | and ", match[1])]
        return f"setting {', '.join(names)} is missing: give --{names[0]}, or write it into a --config file"
    if match := re.search(r'Parser key "config": File does not exist: (.+)$', text):
        return f"--config {match[1]} does not exist"
    if "Problems parsing config" in text:
        return f"--config {_broken_file(arguments)}: {text.split('config: ', 1)[-1]}"
    if match := re.search(r"Group '(\S+)' does not accept option '(\S+)'", text):
        return _unknown_key(f"{match[1]}.{match[2]}", keys, arguments)
    key = match[1] if (match := re.search(r'Parser key "([^"]+)":', text)) else ""
    if match := re.search(r"given class_path '([^']+)': Option '([^']+)' is not accepted", text):
        return _unknown_field(key, match[1], match[2])
    if match := re.search(r"(?:Option|does not accept option) '([^']+)'", text):
        return _unknown_key(match[1], keys, arguments)
    if match := re.search(r"Expected a dot import path string: (\S+)", text):
        names = [*classes_in("longattn.patterns", Pattern), *positions()]  # type: ignore[type-abstract]
        return f"{key} {match[1]!r} is no class that is known{nearest(match[1], names)}"
    return _wrong_value(key, text)


def check_config_files(arguments: list[str]) -> None:
    """Raise ConfigError for a `--config` file that holds no settings, or an empty section where there must be some."""
    for path in _given_configs(arguments):
        try:
            content = _content(path)
        except UnicodeDecodeError as error:
            raise ConfigError(f"--config {path} is not UTF-8: give a YAML file") from error
        except yaml.YAMLError:
            continue  # the parser says where
        if content is None:
            raise ConfigError(f"--config {path} holds no setting: write some, or drop it")
        if not isinstance(content, dict):
            raise ConfigError(f"--config {path} holds {content!r:.40}, but must hold settings such as 'model:'")
        empty = _empty_section(content, "")
        if empty is not None:
            raise ConfigError(f"{empty!r} of --config {path} is empty: write its settings, or drop the line")


def _empty_section(content: dict[str, Any], place: str) -> str | None:
    """Return the first section without content: a part of the settings, or the arguments of a class."""
    for name, value in content.items():
        if value is None and ((not place and name in _SECTIONS) or name == "init_args"):
            return f"{place}{name}"
        found = _empty_section(value, f"{place}{name}.") if isinstance(value, dict) else None
        if found is not None:
            return found
    return None


def _unknown_key(key: str, keys: list[str], arguments: list[str]) -> str:
    files = ", ".join(str(path) for path in _config_files(arguments) if _holds(_content(path), key.split(".")))
    return f"setting {key!r}{f' of {files}' if files else ''} is unknown{nearest(key, keys)}"


def _unknown_field(key: str, class_path: str, field: str) -> str:
    module, name = class_path.rsplit(".", 1)
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    fields = [parameter for parameter in parameters if parameter != "self"]
    return f"{key}: {name} has no setting {field!r}{nearest(field, fields)}; it has {', '.join(fields) or 'none'}"


def _wrong_value(key: str, text: str) -> str:
    """Return what a setting must be and what it is, from "Expected a ..." of each type that it may have."""
    problem = re.search(r"given class_path '([^']+)': (?:Parser key \"([^\"]+)\": )?(.*?)(?: - Expected|$)", text)
    if problem is not None:
        name = problem[1].rsplit(".", 1)[-1]
        return _wrong_value(f"{key}: {name}{'.' + problem[2] if problem[2] else ''}", problem[3])
    own = re.search(r"Errors: - (.*?)(?: - Expected| Given value)", text)
    if own is not None and not own[1].startswith("Expected"):
        return own[1]
    given = re.search(r"(?:Got value|Given value): (.+)$", text)
    wanted = list(dict.fromkeys(_choices(re.findall(r"Expected an? (typing\.Literal\[.*?\]|<class '[^']+'>)", text))))
    if given is None or not wanted:
        return re.sub(r'^Parser key "([^"]+)":', r"\1:", text)
    return f"{key} must be {_either(wanted)}, got {given[1]!r}{nearest(given[1], wanted)}"


def _choices(types: Iterable[str]) -> Iterable[str]:
    for kind in types:
        if kind.startswith("typing.Literal"):
            yield from (str(choice) for choice in ast.literal_eval(kind.removeprefix("typing.Literal")))
        elif "NoneType" in kind:
            yield "null"
        else:
            yield kind.removeprefix("<class '").removesuffix("'>").rsplit(".", 1)[-1]


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _given_configs(arguments: list[str]) -> list[Path]:
    """Return the files that `--config` names."""
    paths = [Path(after) for word, after in itertools.pairwise(_words(arguments)) if word in _CONFIG]
    return [path for path in paths if path.is_file()]


def _config_files(arguments: list[str]) -> list[Path]:
    """Return the files of settings that any flag names, such as `--model model.yaml`."""
    named = [Path(word) for word in _words(arguments) if word.endswith((".yaml", ".yml", ".json"))]
    return list(dict.fromkeys([*_given_configs(arguments), *(path for path in named if path.is_file())]))


def _words(arguments: list[str]) -> list[str]:
    """Return flags and their values as words of their own."""
    return [part for word in arguments for part in (word.split("=", 1) if word.startswith("-") else [word])]


def _broken_file(arguments: list[str]) -> str:
    for path in _config_files(arguments):
        try:
            _content(path)
        except yaml.YAMLError:
            return str(path)
    return "file"


def _content(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _holds(content: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True
