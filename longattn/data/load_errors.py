"""Turns what `datasets`, its readers and the hub raise into one line that says what to do."""

from __future__ import annotations

import codecs
from pathlib import Path

from longattn.data.json_lines import not_utf8
from longattn.errors import ConfigError

_BLOCK = 1 << 20


def explained(error: Exception, path: str, name: str | None, split: str, hint: str = "") -> ConfigError:
    """Return the ConfigError for an error of `load_dataset`; `hint` names what the user may have meant by `path`."""
    reasons = _chain(error)
    text = " ".join(" ".join(str(reason) for reason in reasons).split())
    kinds = {kind.__name__ for reason in reasons for kind in type(reason).__mro__}
    where = f"path={path!r}" + (f" name={name!r}" if name else "")
    if "scripts are no longer supported" in text or "loading script" in text:
        if path in _PARQUET_COPIES:
            return ConfigError(
                f"{where} needs a loading script, which datasets 4 and later do not run: take its parquet copy, "
                f"path={_PARQUET_COPIES[path]!r}"
            )
        return ConfigError(
            f"{where} needs a loading script, which datasets 4 and later do not run: look on the hub for a "
            "parquet copy (branch refs/convert/parquet), or download the files and give path='json', 'csv', 'text' or "
            "'parquet' with data_files"
        )
    if "OfflineModeIsEnabled" in kinds or "offline" in text.lower():
        return ConfigError(f"{where}: not in the cache, and the hub is switched off (HF_HUB_OFFLINE){hint}; {_LOCAL}")
    if kinds & _NO_CONNECTION:
        return ConfigError(f"{where}: the hub cannot be reached: check the network{hint}; {_LOCAL}")
    if kinds & {"DatasetNotFoundError", "RepositoryNotFoundError"} or "doesn't exist on the Hub" in text:
        return ConfigError(
            f"{where}: no such folder here, and no such data set on the hub, or it needs a login "
            f"(`hf auth login`){hint}; {_LOCAL}"
        )
    if "corresponds to no data" in text:
        return ConfigError(f"{where} split={split!r}: no documents")
    if "Unknown split" in text:
        return ConfigError(f"split={split!r} of {where}: {_short(str(reasons[0]))}")
    return ConfigError(f"{where} cannot be read: {_short(str(reasons[-1]) or type(reasons[-1]).__name__)}")


_LOCAL = (
    "without a network take a corpus of this machine (path='python_library' or 'manual_pages') "
    "or your own files (path='json', data_files=...)"
)

_PARQUET_COPIES = {
    "SemEvalWorkshop/hyperpartisan_news_detection": "jonathanli/hyperpartisan-longformer-split",
    "hyperpartisan_news_detection": "jonathanli/hyperpartisan-longformer-split",
    "deepmind/pg19": "emozilla/pg19",
    "pg19": "emozilla/pg19",
    "lex_glue": "coastalcph/lex_glue",
    "imdb": "stanfordnlp/imdb",
}
"""Data sets of long documents that hold a script, or are asked for by an old name, and their copies."""

_NO_CONNECTION = {
    "ConnectionError",
    "ConnectError",
    "LocalEntryNotFoundError",
    "ProxyError",
    "Timeout",
    "TimeoutException",
}


def first_bad_byte(file: str) -> ConfigError | None:
    """Return the error for the first byte of `file` that is not UTF-8; None where all are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    with Path(file).open("rb") as stream:
        while True:
            block = stream.read(_BLOCK)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return not_utf8(file, position - pending + error.start, error.object[error.start])
            if not block:
                return None
            position += len(block)


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and what caused it, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:299] + "…"
