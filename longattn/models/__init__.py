"""Models: the encoder, its configuration, and one model per task."""

from __future__ import annotations

from longattn.models.config import EncoderConfig
from longattn.models.encoder import Encoder
from longattn.models.heads import MaskedLanguageModel, TaskModel, task_model, tasks
from longattn.models.outputs import EncoderOutput, MaskedLanguageModelOutput

__all__ = [
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "MaskedLanguageModel",
    "MaskedLanguageModelOutput",
    "TaskModel",
    "task_model",
    "tasks",
]
