"""Loss, perplexity and accuracy over the masked tokens of masked language modelling (Devlin et al. 2019, sec. 3.1)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from longattn.training.metrics.base import TaskMetrics, WeightedSums


class MaskedLanguageModelMetrics(TaskMetrics):
    """Corpus-level numbers: every masked token weighs the same, whichever document, batch or rank it is in."""

    task: ClassVar[str] = "masked_language_model"

    def __init__(self) -> None:
        self._sums = WeightedSums(3)

    def to(self, device: torch.device) -> None:
        self._sums.to(device)

    def update(self, output: Any, batch: dict[str, Any]) -> None:
        correct = (output.predictions == _labels(output, batch)).sum()
        sums = (output.loss_sum.detach(), correct, output.label_count)
        self._sums.update(torch.stack([value.to(self._sums.sums) for value in sums]))

    def compute(self) -> dict[str, Tensor]:
        loss_sum, correct, count = self._sums.compute().unbind()
        if not count:
            return {}
        loss = loss_sum / count
        return {"loss": loss, "perplexity": loss.exp(), "masked_accuracy": correct / count}

    def reset(self) -> None:
        self._sums.reset()

    def document_sums(self, output: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
        row, start, stop = batch["segments"].unbind(1)
        length = batch["input_ids"].shape[1]
        # Segments are in the order of their first tokens, so each labelled position is in the last one begun before it.
        begins, (label_row, token) = row * length + start, output.label_positions.unbind(1)
        segment = torch.searchsorted(begins, label_row * length + token, right=True) - 1
        zeros = output.losses.new_zeros(len(begins), dtype=torch.float64)
        return {
            "tokens": stop - start,
            "masked_tokens": torch.bincount(segment, minlength=len(begins)),
            "loss": zeros.index_add(0, segment, output.losses.double()),
        }

    def document_row(self, sums: dict[str, Any]) -> dict[str, Any]:
        masked = sums["masked_tokens"]
        return {**sums, "loss": sums["loss"] / masked if masked else None}


def _labels(output: Any, batch: dict[str, Any]) -> Tensor:
    """Return the tokens wanted at the labelled positions, (N,)."""
    row, token = output.label_positions.unbind(1)
    labels: Tensor = batch["labels"][row, token]
    return labels
