"""The table and the picture at the end of a run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from longattn.training.callbacks.summary import draw_losses, read_curves, summary_table
from longattn.training.run import RunFolder


def write_metrics(folder: Path, losses: list[float], validation: float | None = None) -> RunFolder:
    rows = [f"{step},0,{loss},{validation if step == len(losses) and validation else ''},100.0"
            for step, loss in enumerate(losses, 1)]  # fmt: skip
    (folder / "metrics.csv").write_text("step,epoch,train/loss,val/loss,tokens_per_second\n" + "\n".join(rows) + "\n")
    return RunFolder(folder)


def text_of(table: object) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_empty_cells_are_no_measurements(tmp_path):
    folder = write_metrics(tmp_path, [5.0, 4.0, 3.0], validation=3.5)
    curves = read_curves(folder.metrics)
    assert curves["train/loss"] == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert curves["val/loss"] == [(3, 3.5)]


def test_the_table_holds_the_validation_loss_against_a_guess_by_word_frequency(tmp_path):
    folder = write_metrics(tmp_path, [5.0, 4.0, 3.0], validation=3.5)
    text = text_of(summary_table(read_curves(folder.metrics), 4.0, folder))
    assert "5.000 at first, 3.000 at last" in text
    assert "3.500, perplexity 33.1" in text
    assert "4.000 (unigram entropy), beaten by 0.500" in text
    assert "not beaten yet" in text_of(summary_table(read_curves(folder.metrics), 3.2, folder))
    assert "guess" not in text_of(summary_table(read_curves(folder.metrics), None, folder))


def test_the_picture_is_drawn(tmp_path):
    folder = write_metrics(tmp_path, [5 - 0.05 * step for step in range(60)], validation=3.5)
    draw_losses(read_curves(folder.metrics), 4.0, folder.loss_picture)
    assert folder.loss_picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
