"""Data that are ready to be read: tokenised, in one folder that can be moved, and said to be whole by its summary."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longattn.errors import ConfigError

FORMAT = "longattn prepared 1"
"""Raised when the files of a prepared folder change."""

_SUMMARY, _TOKENIZER = "summary.json", "tokenizer"


@dataclass(frozen=True)
class Prepared:
    """Where prepared data lie."""

    tokenizer: Path
    """Folder of the tokenizer."""

    parts: dict[str, list[Path]]
    """Folders of the token stores of train, one per source, and of validation and test where there are any."""

    skipped: dict[str, int]
    """Documents that were left out of each part."""


def is_prepared(path: str) -> bool:
    """Whether `path` is a folder that `longattn prepare` has written."""
    summary = Path(path).expanduser() / _SUMMARY
    try:
        return summary.is_file() and f'"{FORMAT.rsplit(" ", 1)[0]}' in summary.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def refuse_existing(folder: Path) -> None:
    """Raise ConfigError where there is something already in the place of a folder that is to be written."""
    if folder.exists():
        raise ConfigError(f"output={str(folder)!r} is there already: remove it, or name another folder")


def read_prepared(folder: Path) -> Prepared:
    """Return what lies in a prepared folder; ConfigError where it is of another version, or a part is missing."""
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
        parts = {name: [folder / store for store in part["stores"]] for name, part in summary["parts"].items()}
        prepared = Prepared(folder / _TOKENIZER, parts, {n: part["skipped"] for n, part in summary["parts"].items()})
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / _SUMMARY} is damaged: prepare the data anew") from error
    if summary.get("format") != FORMAT:
        raise ConfigError(f"{folder} is of another version of longattn ({summary.get('format')}): prepare anew")
    for place in (prepared.tokenizer, *(store for stores in parts.values() for store in stores)):
        if not place.is_dir():
            raise ConfigError(f"{folder} is not whole: {place.relative_to(folder)} is missing; prepare the data anew")
    return prepared


def copy_prepared(prepared: Prepared, summary: dict[str, dict[str, Any]], folder: Path) -> None:
    """Fill `folder` with copies of all that is prepared, the summary last; `summary` tells about each part."""
    shutil.copytree(prepared.tokenizer, folder / _TOKENIZER)
    parts: dict[str, dict[str, Any]] = {}
    for name, stores in prepared.parts.items():
        names = [name if len(stores) == 1 else f"{name}-{number}" for number in range(len(stores))]
        for store, own_name in zip(stores, names, strict=True):
            shutil.copytree(store, folder / own_name, copy_function=_linked_or_copied)
        skipped = prepared.skipped.get(name, 0) + summary[name].pop("empty_documents")
        parts[name] = {"stores": names, "skipped": skipped, **summary[name]}
    counted = ("documents", "tokens", "skipped", "truncated_tokens")
    totals = {key: sum(part[key] for part in parts.values()) for key in counted}
    content = {"format": FORMAT, **totals, "parts": parts}
    (folder / _SUMMARY).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _linked_or_copied(source: str, target: str) -> None:
    """Let both names mean one file where the file system can: they are never written again."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
