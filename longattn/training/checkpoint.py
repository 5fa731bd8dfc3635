"""What a checkpoint says about itself: plain values only, so that reading one never runs code in it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from longattn.errors import ConfigError
from longattn.models import TaskModel
from longattn.nn.position import Position
from longattn.patterns import Pattern

_log = logging.getLogger(__name__)

_FREE = ("kernel", "dropout", "attention_dropout", "initializer_range", "pad_token_id")
"""Fields of the architecture that change neither the weights' shapes nor what they mean."""

_VISIBLE = ("pattern", "layer_patterns")
"""Fields that change who sees whom with the same weights: allowed, and said."""


def plain_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the module's arguments as plain values, which the module takes as well."""
    return {name: _plain(value) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Pattern | Position):
        return value.to_config()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def check_readable(path: Path) -> None:
    """Raise ConfigError unless the file at `path` is a whole checkpoint of longattn; its tensors are not read."""
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except UnpicklingError as error:
        raise ConfigError(f"ckpt_path {str(path)!r} is broken, or holds more than tensors and plain values") from error
    except RuntimeError as error:
        raise ConfigError(f"ckpt_path {str(path)!r} is no checkpoint of torch, or a broken one") from error
    if not isinstance(content, dict) or not {"longattn", "pytorch-lightning_version"} <= set(content):
        raise ConfigError(f"ckpt_path {str(path)!r} was not written by `longattn fit`: give one of a run's checkpoints")


def check_checkpoint(checkpoint: dict[str, Any], network: TaskModel, tokenizer: str | None, names: set[str]) -> None:
    """Raise ConfigError if the checkpoint's weights belong to another task, architecture or tokenizer than `network`.

    `tokenizer` is the fingerprint of the tokenizer in use, `names` are those of the weights wanted. A pattern that
    differs is allowed, with a warning: the weights fit.
    """
    saved = checkpoint.get("longattn")
    if not isinstance(saved, dict):
        raise ConfigError("the checkpoint was not written by longattn: it lacks the entry 'longattn'")
    if saved["task"] != network.task:
        raise ConfigError(f"the checkpoint is of task {saved['task']!r}, the configuration of task {network.task!r}")
    if tokenizer is not None and saved["tokenizer"] not in (None, tokenizer):
        raise ConfigError(
            "the checkpoint was trained with another tokenizer than the data have now: give --data.tokenizer the one "
            "of its run folder (RUN/tokenizer)"
        )
    mine = network.config.to_dict()
    differing = [name for name in mine if name not in _FREE and saved["encoder"].get(name) != mine[name]]
    fatal = [name for name in differing if name not in _VISIBLE]
    if fatal:
        both = ", ".join(f"{name} {saved['encoder'].get(name)!r} (here {mine[name]!r})" for name in fatal)
        raise ConfigError(
            f"the checkpoint has another architecture: {both}; give the configuration it was trained with"
        )
    missing, unexpected = sorted(names - set(checkpoint["state_dict"])), sorted(set(checkpoint["state_dict"]) - names)
    if missing or unexpected:
        raise ConfigError(
            f"the checkpoint's weights do not fit: {len(missing)} missing {missing[:2]}, {len(unexpected)} unexpected "
            f"{unexpected[:2]}; give the configuration it was trained with"
        )
    if differing:
        _log.warning("the checkpoint was trained with another %s; the configuration's is used", " and ".join(differing))
