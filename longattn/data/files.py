"""The files that a setting means: patterns resolved, URLs listed, empty files left out, missing ones refused."""

from __future__ import annotations

import glob
import logging
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from longattn.discovery import nearest
from longattn.errors import ConfigError

log = logging.getLogger(__name__)

FORMATS = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv", ".txt": "text", ".md": "text",
    ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
"""The format of each suffix."""


def is_url(file: str) -> bool:
    """Whether `file` names another file system than that of this machine."""
    return "://" in file


def resolved_files(patterns: list[str]) -> list[str]:
    """Return the files that `patterns` mean, in order, without empty ones; a URL stays one.

    Raises ConfigError where a file is missing, or where all are empty.
    """
    found = [file for pattern in patterns for file in _resolved(pattern)]
    filled = [file for file in found if is_url(file) or Path(file).stat().st_size > 0]
    shown = ", ".join(patterns)
    if not filled:
        raise ConfigError(f"data_files: {shown} is empty (0 bytes): there is no document in it")
    if len(filled) < len(found):
        log.warning("data_files: %d of the files of %s are empty (0 bytes)", len(found) - len(filled), shown)
    return filled


def file_state(file: str) -> str:
    """Return what changes when the content of `file` does."""
    if is_url(file):
        try:
            system, path = url_to_fs(file)
            return str(system.ukey(path))
        except Exception as error:  # each file system has errors of its own
            raise ConfigError(f"data_files: {file} cannot be read: {' '.join(str(error).split())}") from error
    status = Path(file).stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _resolved(pattern: str) -> list[str]:
    if not pattern:
        raise ConfigError("data_files is an empty word: give a file, or a pattern such as 'documents/*.jsonl'")
    if is_url(pattern):
        return _listed(pattern)
    path = Path(pattern).expanduser()
    if path.is_file():
        found = [str(path.resolve())]
    elif path.is_dir():
        raise ConfigError(f"data_files: {pattern} is a folder; give its files, for example '{pattern.rstrip('/')}/**'")
    elif glob.has_magic(pattern):
        found = sorted(
            str(Path(file).resolve()) for file in glob.glob(str(path), recursive=True) if Path(file).is_file()
        )
        if not found:
            raise ConfigError(f"data_files: no file matches {pattern!r} (looked in {Path.cwd()})")
    else:
        if path.is_symlink():
            raise ConfigError(f"data_files: {pattern} is a link to {path.readlink()}, which does not exist")
        hint = nearest(path.name, [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise ConfigError(f"data_files: {pattern} does not exist (looked in {path.resolve().parent}){hint}")
    return found


def _listed(url: str) -> list[str]:
    """Return the files of a URL, which may be a pattern."""
    if not glob.has_magic(url):
        return [url]
    try:
        found = sorted(str(file.full_name) for file in fsspec.open_files(url, "rb"))
    except Exception as error:  # each file system has errors of its own
        raise ConfigError(f"data_files: {url} cannot be listed: {' '.join(str(error).split())}") from error
    scheme = url.split("://", 1)[0]
    if not found:
        raise ConfigError(f"data_files: no file matches {url!r}")
    return [file if is_url(file) else f"{scheme}://{file}" for file in found]
