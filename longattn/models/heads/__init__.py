"""Task models. A new one is a file in this folder; it is found by its task's name."""

from __future__ import annotations

from longattn.models.heads.base import TaskModel, task_model, tasks
from longattn.models.heads.masked_language_model import MaskedLanguageModel

__all__ = ["MaskedLanguageModel", "TaskModel", "task_model", "tasks"]
