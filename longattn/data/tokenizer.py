"""The tokenizer as the rest of longattn sees it, and loading one from a file, a folder or the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from longattn.data.long_text import encode_long
from longattn.errors import ConfigError

ROLES = ("pad", "unk", "cls", "sep", "mask")

_KNOWN_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}

_CHARACTERS_AT_ONCE = 4_000_000
"""Text given to the library in one call; its encodings take about a hundred bytes per token."""


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids of the special tokens."""

    pad: int
    """Padding."""

    unk: int | None
    """Text that the vocabulary cannot spell; None where it can spell all."""

    cls: int
    """First token of each row."""

    sep: int
    """Last token of each row, and between the parts of a pair."""

    mask: int
    """Stands for a token to be predicted."""


class Tokenizer:
    """A `tokenizers.Tokenizer` of its own, without truncation or padding, that knows its special tokens.

    Special tokens that stand in a text are encoded as text, so that only longattn places them.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, names: dict[str, str]) -> None:
        self._json = _without_padding(tokenizer)
        self._names = names
        self._tokenizer = tokenizers.Tokenizer.from_str(self._json)
        self._tokenizer.encode_special_tokens = True
        ids = {role: _id_of(self._tokenizer, name) for role, name in names.items()}
        self.special = SpecialTokens(ids["pad"], ids.get("unk"), ids["cls"], ids["sep"], ids["mask"])
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values())
        added = self._tokenizer.get_added_tokens_decoder()
        special_ids = {token_id for token_id, token in added.items() if token.special} | set(ids.values())
        self.is_ordinary: NDArray[np.bool_] = np.zeros(self.vocab_size, dtype=np.bool_)
        self.is_ordinary[[token_id for token_id in vocabulary.values() if token_id not in special_ids]] = True
        self.ordinary_ids: NDArray[np.int64] = np.flatnonzero(self.is_ordinary)

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides what a text is encoded to."""
        content = self._json + json.dumps(self._names, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens, and ids that no token has."""
        return frozenset(np.flatnonzero(~self.is_ordinary).tolist())

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the token ids of each text, without special tokens at its ends."""
        encoded: list[NDArray[np.int64]] = []
        for part in _parts(texts):
            if len(part[0]) > _CHARACTERS_AT_ONCE:  # then it is alone
                ids = encode_long(self._tokenizer, part[0])
                if ids is not None:
                    encoded.append(ids)
                    continue
            for encoding in self._tokenizer.encode_batch_fast(part, add_special_tokens=False):
                encoded.append(np.asarray(encoding.ids, dtype=np.int64))
        return encoded

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        text = self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def token(self, token_id: int) -> str:
        """Return the token of an id as the vocabulary writes it; "" where there is none."""
        return self._tokenizer.id_to_token(int(token_id)) or ""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and tokenizer_config.json into `folder`, for longattn and transformers to load."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {f"{role}_token": name for role, name in self._names.items()}
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        _write(target / "tokenizer.json", self._json)
        _write(target / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._json, self._names)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json file, a folder that holds one, or a hub id (needs `transformers`).

    Raises ConfigError where there is none, or where it has no padding, start, end or mask token.
    """
    place = Path(path).expanduser()
    if place.is_dir() and (place / "tokenizer.json").is_file():
        place = place / "tokenizer.json"
    if place.is_file():
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(place))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(
                f"tokenizer={str(path)!r}: {place} is no tokenizer.json of the tokenizers library: {error}"
            ) from error
        return Tokenizer(tokenizer, _special_names(tokenizer, _declared_names(place.parent), str(path)))
    return _load_with_transformers(str(path), exists=place.exists())


def _load_with_transformers(path: str, *, exists: bool) -> Tokenizer:
    looks_like_a_path = exists or path.startswith((".", "/", "~")) or path.endswith(".json") or path.count("/") > 1
    if looks_like_a_path and not exists:
        raise ConfigError(f"tokenizer={path!r}: no such file or folder; give a tokenizer.json, its folder, or a hub id")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        reason = "a folder without tokenizer.json" if exists else "no file here, so taken for a hub id"
        raise ConfigError(
            f"tokenizer={path!r} is {reason}, which needs transformers: "
            "pip install 'longattn[hub]', or give a tokenizer.json"
        ) from error
    try:
        fast = AutoTokenizer.from_pretrained(path, use_fast=True)
    except Exception as error:  # the hub, the network and many tokenizer classes: all mean the same to the user
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"tokenizer={path!r}: no such file or folder here, and transformers cannot load it from the hub: {reason}"
        ) from error
    backend = getattr(fast, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(
            f"tokenizer={path!r}: {type(fast).__name__} has no fast form; save it as a tokenizer.json first"
        )
    declared = {role: name for role in ROLES if (name := getattr(fast, f"{role}_token", None))}
    declared.setdefault("cls", fast.bos_token or "")
    declared.setdefault("sep", fast.eos_token or "")
    return Tokenizer(backend, _special_names(backend, declared, path))


def _declared_names(folder: Path) -> dict[str, str]:
    """Return the special tokens that the transformers files beside a tokenizer.json name."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if not (folder / file).is_file():
            continue
        try:
            content = json.loads((folder / file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{folder / file}: not a JSON file: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{folder / file}: not a JSON object, as transformers writes it")
        for role in ROLES:
            value = content.get(f"{role}_token")
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                names[role] = value
    return names


def _special_names(tokenizer: tokenizers.Tokenizer, declared: dict[str, str], path: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for role in ROLES:
        for name in (declared.get(role), *_KNOWN_NAMES[role]):
            if name and tokenizer.token_to_id(name) is not None:
                names[role] = name
                break
    missing = [role for role in ROLES if role != "unk" and role not in names]
    if missing:
        known = "; ".join(f"{role}: {' or '.join(_KNOWN_NAMES[role])}" for role in missing)
        raise ConfigError(
            f"tokenizer={path!r} has no special token for {known}: an encoder needs them; add them or train a tokenizer"
        )
    return names


def _without_padding(tokenizer: tokenizers.Tokenizer) -> str:
    """Return the tokenizer as JSON, without the truncation and padding that earlier use may have left in it."""
    content = json.loads(tokenizer.to_str())
    content["truncation"] = content["padding"] = None
    return json.dumps(content, ensure_ascii=False)


def _id_of(tokenizer: tokenizers.Tokenizer, name: str) -> int:
    token_id = tokenizer.token_to_id(name)
    assert token_id is not None
    return int(token_id)


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    characters = 0
    for text in texts:
        if part and characters + len(text) > _CHARACTERS_AT_ONCE:
            yield part
            part, characters = [], 0
        part.append(text)
        characters += len(text)
    if part:
        yield part


def _rebuilt(content: str, names: dict[str, str]) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(content), names)


def _write(path: Path, content: str) -> None:
    """Write a file that is never seen half written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(content, encoding="utf-8")
    partial.replace(path)
