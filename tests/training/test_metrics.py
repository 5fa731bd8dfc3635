"""Metrics: corpus-level numbers, whatever the batches (case B61)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from longattn.errors import ConfigError
from longattn.models import tasks
from longattn.training.metrics import build_metrics, tasks_with_metrics

TOKEN_LOSSES = [[0.1, 0.2, 0.1], [0.3, 0.5, 0.1, 0.4, 0.2]]
ALL_LOSSES = [*TOKEN_LOSSES[0], *TOKEN_LOSSES[1]]


def output_of(losses: list[float]):
    """An output whose token losses are `losses`, and whose predictions are right."""
    wanted = torch.tensor(losses, dtype=torch.float64)
    labels = torch.zeros(1, len(losses), dtype=torch.int64)
    positions = torch.stack([torch.zeros(len(losses), dtype=torch.int64), torch.arange(len(losses))], dim=1)
    count = torch.tensor(len(losses))
    output = SimpleNamespace(
        losses=wanted,
        predictions=labels[0],
        loss_sum=wanted.sum(),
        label_count=count,
        label_positions=positions,
    )
    batch = {"labels": labels, "input_ids": labels, "segments": torch.tensor([[0, 0, len(losses)]])}
    return output, batch


@pytest.mark.parametrize("batches", [TOKEN_LOSSES, [ALL_LOSSES], [[loss] for loss in ALL_LOSSES]])
def test_loss_and_perplexity_weigh_every_token_the_same(batches):
    metrics = build_metrics("masked_language_model")
    for losses in batches:
        metrics.update(*output_of(losses))
    values = metrics.compute()
    assert float(values["loss"]) == pytest.approx(0.2375, abs=1e-9)
    assert float(values["perplexity"]) == pytest.approx(1.2681, abs=1e-4)
    assert float(values["masked_accuracy"]) == 1.0


def test_reset_forgets_and_what_was_not_measured_has_no_value():
    metrics = build_metrics("masked_language_model")
    metrics.update(*output_of([0.5]))
    metrics.reset()
    metrics.update(*output_of([]))
    assert metrics.compute() == {}


def test_rows_of_documents_sum_over_windows():
    metrics = build_metrics("masked_language_model")
    parts = [metrics.document_sums(*output_of(losses)) for losses in TOKEN_LOSSES]
    sums = {name: sum(part[name].item() for part in parts) for name in parts[0]}
    row = metrics.document_row({"document": 3, **sums})
    assert row["document"] == 3
    assert row["tokens"] == row["masked_tokens"] == 8
    assert row["loss"] == pytest.approx(0.2375, abs=1e-6)
    assert metrics.document_row({"document": 0, "tokens": 2, "masked_tokens": 0, "loss": 0.0})["loss"] is None


def test_documents_of_a_packed_row_are_told_apart():
    """Row 0 holds a document of 3 tokens, one of 2 without a label and one of 4; row 1 one of 5."""
    output = SimpleNamespace(
        losses=torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]),
        label_positions=torch.tensor([[0, 1], [0, 2], [0, 5], [0, 8], [1, 4]]),
    )
    batch = {
        "input_ids": torch.zeros(2, 10, dtype=torch.int64),
        "segments": torch.tensor([[0, 0, 3], [0, 3, 5], [0, 5, 9], [1, 0, 5]]),
    }
    sums = build_metrics("masked_language_model").document_sums(output, batch)
    assert {name: value.tolist() for name, value in sums.items()} == {
        "tokens": [3, 2, 4, 5],
        "masked_tokens": [2, 0, 2, 1],
        "loss": [3.0, 0.0, 12.0, 16.0],
    }


def test_every_task_model_has_metrics():
    assert set(tasks_with_metrics()) == set(tasks())


def test_an_unknown_task_is_named():
    with pytest.raises(ConfigError, match=r"masked_language_modl.*masked_language_model"):
        build_metrics("masked_language_modl")
