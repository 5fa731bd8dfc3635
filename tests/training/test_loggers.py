"""metrics.csv: one row per step, whatever comes when."""

from __future__ import annotations

import csv
import math

import pytest

from longattn.training.loggers import FIRST_COLUMNS, MetricsCSV


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_per_step_counted_from_one_with_empty_cells(tmp_path):
    logger = MetricsCSV(tmp_path / "run" / "metrics.csv")
    logger.log_metrics({"train/loss": 0.1 + 0.2, "epoch": 0}, step=0)
    logger.log_metrics({"train/loss": 2.0, "epoch": 0}, step=1)
    logger.log_metrics({"val/loss": 3.0, "epoch": 0}, step=1)
    first, second = rows(logger.path)
    assert tuple(first) == FIRST_COLUMNS
    assert (first["step"], first["val/loss"]) == ("1", "")
    assert float(first["train/loss"]) == 0.1 + 0.2
    assert (second["step"], second["epoch"], second["train/loss"], second["val/loss"]) == ("2", "0", "2.0", "3.0")


def test_a_new_column_is_added_to_the_rows_before(tmp_path):
    logger = MetricsCSV(tmp_path / "metrics.csv")
    logger.log_metrics({"train/loss": 1.0}, step=0)
    logger.log_metrics({"train/loss": 2.0, "speed": 5.0}, step=1)
    logger.log_metrics({"late": 7}, step=1)
    logger.log_metrics({"speed": 6.0}, step=2)
    assert [row["speed"] for row in rows(logger.path)] == ["", "5.0", "6.0"]
    assert [row["late"] for row in rows(logger.path)] == ["", "7", ""]
    assert [row["train/loss"] for row in rows(logger.path)] == ["1.0", "2.0", ""]


def test_a_later_logger_goes_on_in_the_same_file(tmp_path):
    path = tmp_path / "metrics.csv"
    MetricsCSV(path).log_metrics({"train/loss": 1.0, "speed": 5.0}, step=0)
    MetricsCSV(path).log_metrics({"speed": 6.0}, step=1)
    assert [row["speed"] for row in rows(path)] == ["5.0", "6.0"]


def test_rows_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    path = tmp_path / "metrics.csv"
    before = MetricsCSV(path)
    for step in range(5):
        before.log_metrics({"train/loss": float(step)}, step=step)
    after = MetricsCSV(path)
    after.drop_rows_after(3)
    after.log_metrics({"train/loss": 30.0}, step=3)
    assert [(row["step"], row["train/loss"]) for row in rows(path)] == [
        ("1", "0.0"),
        ("2", "1.0"),
        ("3", "2.0"),
        ("4", "30.0"),
    ]


def test_half_a_row_that_a_killed_run_left_is_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    MetricsCSV(path).log_metrics({"train/loss": 1.0}, step=0)
    with path.open("a") as file:
        file.write("2,0")
    MetricsCSV(path).log_metrics({"train/loss": 2.0}, step=1)
    assert [(row["step"], row["train/loss"]) for row in rows(path)] == [("1", "1.0"), ("2", "2.0")]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_written_as_such(tmp_path, value):
    logger = MetricsCSV(tmp_path / "metrics.csv")
    logger.log_metrics({"train/loss": value}, step=0)
    assert repr(float(rows(logger.path)[0]["train/loss"])) == repr(value)
