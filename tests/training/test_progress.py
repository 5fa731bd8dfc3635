"""The numbers people watch, as a line and as a bar."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from longattn.training.callbacks import ProgressBar, ProgressLines, Throughput
from longattn.training.callbacks import progress as progress_module
from longattn.training.callbacks.progress import numbers_line


def test_a_line_holds_the_stages_numbers_in_a_fixed_order_and_form():
    metrics = {
        "tokens_per_second": 12345.6,
        "learning_rate": 0.0005,
        "train/masked_accuracy": 0.25,
        "val/loss": 9.0,
        "train/loss": 1.23456,
        "peak_memory_bytes": 1e9,
        "train/other": 2.0,
        "gradient_norm": float("nan"),
    }
    expected = "loss 1.2346  accuracy 25.0%  lr 5.00e-04  12,346 tokens/s  other 2.0000"
    assert numbers_line(metrics, "train/") == expected
    assert numbers_line(metrics, "val/") == "loss 9.0000"


def test_lines_come_at_the_first_the_last_and_every_so_many_steps(fit, caplog):
    with caplog.at_level(logging.INFO, logger="longattn"):
        fit(steps=7, trainer={"callbacks": [Throughput(), ProgressLines(3)]})
    lines = [record.message for record in caplog.records if record.message.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == ["step 1/7", "step 3/7", "step 6/7", "step 7/7"]
    assert all("loss " in line and "tokens/s" in line for line in lines)


def test_steps_are_optimizer_steps_and_not_micro_batches(fit, caplog):
    with caplog.at_level(logging.INFO, logger="longattn"):
        fit(steps=2, trainer={"callbacks": [ProgressLines(1)], "accumulate_grad_batches": 3})
    lines = [record.message for record in caplog.records if record.message.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == ["step 1/2", "step 2/2"]


@pytest.fixture
def screen(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    monkeypatch.setattr(progress_module, "terminal", lambda: console)
    return console.file


def test_the_bar_counts_optimizer_steps_and_shows_the_numbers(fit, screen):
    fit(steps=4, trainer={"callbacks": [ProgressBar()], "enable_progress_bar": True, "accumulate_grad_batches": 2})
    shown = screen.getvalue()
    assert "training" in shown
    assert "4/4" in shown
    assert "loss " in shown
    assert "accuracy " in shown
