"""What happens around the steps of a run: progress, throughput, checkpoints, the run folder's files."""

from __future__ import annotations

from longattn.training.callbacks.checkpoint import SaveCheckpoints
from longattn.training.callbacks.predictions import WritePredictions
from longattn.training.callbacks.progress import ProgressBar, ProgressLines
from longattn.training.callbacks.run_files import WriteRunFiles
from longattn.training.callbacks.summary import SummariseRun
from longattn.training.callbacks.throughput import Throughput

__all__ = [
    "ProgressBar",
    "ProgressLines",
    "SaveCheckpoints",
    "SummariseRun",
    "Throughput",
    "WritePredictions",
    "WriteRunFiles",
]
