"""Finds settings that cannot hold together before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from longattn.data import TextDataModule
from longattn.errors import ConfigError
from longattn.training.module import EncoderModule


def check_settings(module: EncoderModule, data: TextDataModule, trainer: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first contradiction between the model's, the data's and the trainer's settings."""
    check_length(module, data.max_length)
    check_end(trainer)
    check_schedule(module, trainer)


def check_length(module: EncoderModule, max_length: int) -> None:
    """Raise ConfigError if the model cannot take documents of `max_length` tokens."""
    config = module.encoder_config(vocab_size=1)
    positions = torch.arange(max_length)[None]
    try:
        config.position_scheme.check_positions(positions, given=False)
        for layer in range(config.num_layers):
            config.pattern_of(layer).check_length(max_length)
    except ConfigError as error:
        raise ConfigError(f"data.max_length {max_length} does not fit the model: {error}") from error


def check_end(trainer: Mapping[str, Any]) -> None:
    """Raise ConfigError unless something ends the training."""
    if trainer["max_steps"] == -1 and trainer["max_epochs"] is None and trainer["max_time"] is None:
        raise ConfigError(
            "nothing ends the training: give --trainer.max_steps, --trainer.max_epochs or --trainer.max_time"
        )


def check_schedule(module: EncoderModule, trainer: Mapping[str, Any]) -> None:
    """Raise ConfigError if the schedule needs a number of steps that nothing tells."""
    if trainer["max_steps"] == -1 and trainer["max_epochs"] in (None, -1):
        module.schedule.resolve(None)
