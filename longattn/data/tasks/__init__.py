"""Tasks: what the model is asked to do with a document; one class in one file each."""

from longattn.data.tasks.base import Task, TaskSettings, WindowTokens, filler_row, task_class

__all__ = ["Task", "TaskSettings", "WindowTokens", "filler_row", "task_class"]
