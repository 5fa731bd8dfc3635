"""Metrics of each task. A new task's are a file in this folder; they are found by the task's name."""

from __future__ import annotations

from longattn.training.metrics.base import TaskMetrics, WeightedSums, build_metrics, tasks_with_metrics

__all__ = ["TaskMetrics", "WeightedSums", "build_metrics", "tasks_with_metrics"]
