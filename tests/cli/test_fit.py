"""A run from the command line: its folder, its configuration, and going on where it stopped."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

FIT_COLUMNS = ["step", "epoch", "train/loss", "val/loss"]


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    """A finished run of 6 steps."""
    from longattn.cli import main

    folder = tmp_path_factory.mktemp("runs") / "run"
    code = main(
        [
            "fit",
            *settings,
            f"--run.dir={folder}",
            "--trainer.max_steps=6",
            "--run.save_every_steps=4",
            "--trainer.val_check_interval=3",
            "--model.pattern=SlidingWindow",
            "--model.pattern.radius=4",
        ]
    )
    assert code == 0
    return folder


def test_the_run_folder_holds_what_the_design_says(run, metrics_of):
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "metrics.csv", "loss.png", "checkpoints", "tensorboard", "log.txt", "tokenizer"} == names
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step_00000004.ckpt",
        "step_00000006.ckpt",
    ]
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    rows = metrics_of(run)
    assert list(rows[0])[:4] == FIT_COLUMNS
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 7)]
    assert [bool(row["val/loss"]) for row in rows] == [False, False, True, False, False, True]
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"])
    for name in ("train/perplexity", "learning_rate", "gradient_norm", "tokens_per_second", "peak_memory_bytes"):
        assert float(rows[0][name]) > 0


def test_the_log_says_what_was_done(run):
    log = (run / "log.txt").read_text()
    for words in ("run folder", "model: ", "SlidingWindow(radius=4", "step 6/6", "validation: loss", "saved "):
        assert words in log


def test_the_configuration_is_complete_and_gives_the_same_run_again(run, longattn, tmp_path, metrics_of):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["pattern"]["init_args"]["radius"] == 4
    assert config["model"]["architecture"]["norm"] == "layer_norm"
    assert config["run"]["dir"] == str(run)
    outcome = longattn("fit", "--config", run / "config.yaml", "--run.dir", tmp_path / "again")
    assert outcome.code == 0, outcome.err
    again = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
    config["run"]["dir"] = again["run"]["dir"] = None
    assert again == config
    column = [row["train/loss"] for row in metrics_of(run)]
    assert [row["train/loss"] for row in metrics_of(tmp_path / "again")] == column


def test_the_checkpoint_loads_with_weights_only(run):
    checkpoint = torch.load(run / "checkpoints" / "step_00000006.ckpt", weights_only=True)
    assert checkpoint["longattn"]["encoder"]["pattern"] == {"class": "SlidingWindow", "radius": 4, "dilation": 1}
    json.dumps(checkpoint["longattn"])


def test_a_resumed_run_writes_the_rows_that_an_uninterrupted_one_has(run, longattn, tmp_path, metrics_of):
    folder = tmp_path / "resumed"
    start = ("fit", "--config", run / "config.yaml", "--run.dir", folder)
    assert longattn(*start).code == 0
    first = (folder / "config.yaml").read_text()
    outcome = longattn(*start, "--ckpt_path", folder / "checkpoints" / "step_00000004.ckpt")
    assert outcome.code == 0, outcome.err
    rows, whole = metrics_of(folder), metrics_of(run)
    assert [row["step"] for row in rows] == [row["step"] for row in whole]
    assert [(row["train/loss"], row["val/loss"]) for row in rows] == [
        (row["train/loss"], row["val/loss"]) for row in whole
    ]
    assert (folder / "config.yaml").read_text() == first
    assert not (folder / "config.2.yaml").exists()


def test_a_run_goes_on_beyond_its_end_from_its_folder(run, longattn, tmp_path, metrics_of):
    folder = tmp_path / "longer"
    straight = tmp_path / "straight"
    start = ("fit", "--config", run / "config.yaml", "--model.schedule.shape", "constant", "--run.dir")
    assert longattn(*start, folder).code == 0
    assert longattn(*start, folder, "--ckpt_path", folder, "--trainer.max_steps", 8).code == 0
    assert longattn(*start, straight, "--trainer.max_steps", 8).code == 0
    assert [row["train/loss"] for row in metrics_of(folder)] == [row["train/loss"] for row in metrics_of(straight)]
    assert (folder / "config.2.yaml").exists(), "settings that differ from the first start are kept beside it"


def test_a_second_run_in_the_same_folder_is_refused_and_can_be_forced(run, longattn, tmp_path, metrics_of):
    folder = tmp_path / "twice"
    start = ("fit", "--config", run / "config.yaml", "--run.dir", folder)
    assert longattn(*start).code == 0
    refused = longattn(*start)
    assert refused.code == 2
    assert "--run.if_exists overwrite" in refused.err
    assert "--run.if_exists" in longattn("fit", "--help").out
    assert longattn(*start, "--run.if_exists", "overwrite", "--trainer.max_steps", 2).code == 0
    assert len(metrics_of(folder)) == 2


def test_several_configs_are_merged_and_flags_win(longattn, tmp_path):
    (tmp_path / "a.yaml").write_text("model: {d_model: 64, d_ff: 128}\ndata: {path: python_library}\n")
    (tmp_path / "b.yaml").write_text("model: {d_model: 32, pattern: {class_path: Strided, init_args: {stride: 9}}}\n")
    outcome = longattn(
        "fit", "--config", tmp_path / "a.yaml", "--config", tmp_path / "b.yaml", "--model.d_ff=8", "--print_config"
    )
    assert outcome.code == 0
    model = yaml.safe_load(outcome.out)["model"]
    assert (model["d_model"], model["d_ff"]) == (32, 8)
    assert model["pattern"]["init_args"]["stride"] == 9


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (["SlidingWindow", "--model.pattern.radius", "3"], {"class": "SlidingWindow", "radius": 3, "dilation": 1}),
        (["Dense"], {"class": "Dense"}),
        (
            ["Union", "--model.pattern.parts", "[{class_path: Causal}, {class_path: SlidingWindow}]"],
            {
                "class": "Union",
                "parts": [{"class": "Causal"}, {"class": "SlidingWindow", "radius": 256, "dilation": 1}],
            },
        ),
        (
            ["BlockSparse", "--model.pattern.layout", "[[1, 0], [1, 1]]", "--model.pattern.block_size", "32"],
            {"class": "BlockSparse", "block_size": 32, "heads": 1, "rows": ["10", "11"]},
        ),
    ],
)
def test_a_pattern_is_chosen_by_class_name(longattn, settings, tmp_path, flags, pattern):
    outcome = longattn(
        "fit", *settings, "--run.dir", tmp_path, "--trainer.max_steps", 1, "--trainer.limit_val_batches", 0,
        "--model.kernel", "reference", "--model.pattern", *flags,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    checkpoint = torch.load(tmp_path / "checkpoints" / "step_00000001.ckpt", weights_only=True)
    assert checkpoint["longattn"]["encoder"]["pattern"] == pattern


def test_two_runs_with_the_same_seed_have_the_same_losses_and_another_seed_others(
    longattn, settings, tmp_path, metrics_of
):
    columns = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        start = ("fit", *settings, "--trainer.max_steps", 4, "--trainer.limit_val_batches", 0)
        outcome = longattn(
            *start, "--run.dir", tmp_path / name, "--seed_everything", seed, "--model.architecture.dropout", 0.1
        )
        assert outcome.code == 0, outcome.err
        columns.append([row["train/loss"] for row in metrics_of(tmp_path / name)])
    assert columns[0] == columns[1]
    assert columns[0] != columns[2]


def test_a_run_without_a_folder_gets_one_of_its_own(longattn, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = longattn("fit", *settings, "--trainer.max_steps", 1, "--model.pattern", "Dense")
    assert outcome.code == 0, outcome.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-dense")
    assert (folder / "metrics.csv").exists()


def test_a_failing_run_leaves_its_traceback_in_the_log(longattn, settings, tmp_path, monkeypatch):
    from longattn.training.module import EncoderModule

    def fail(self, batch, batch_idx):
        raise RuntimeError("the machine is on fire")

    monkeypatch.setattr(EncoderModule, "training_step", fail)
    outcome = longattn("fit", *settings, "--trainer.max_steps", 1, "--run.dir", tmp_path / "run")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log
    assert "the machine is on fire" in log


def test_the_libraries_chatter_stays_off_the_terminal(longattn, settings, tmp_path):
    outcome = longattn("fit", *settings, "--trainer.max_steps", 2, "--run.dir", tmp_path / "run")
    assert outcome.code == 0
    assert outcome.err == ""
    for words in ("Tip:", "litlogger", "num_workers", "deprecated", "GPU available", "Seed set"):
        assert words not in outcome.out


def test_a_warning_of_the_users_own_code_is_shown(longattn, settings, tmp_path, monkeypatch):
    import warnings

    from longattn.training.module import EncoderModule

    monkeypatch.setattr(EncoderModule, "on_fit_start", lambda self: warnings.warn("mind the gap"))
    outcome = longattn("fit", *settings, "--trainer.max_steps", 1, "--run.dir", tmp_path / "run")
    assert "mind the gap" in outcome.out
    assert "mind the gap" in (tmp_path / "run" / "log.txt").read_text()


def test_logs_are_as_before_after_a_command(longattn, settings, tmp_path):
    import logging

    before = [(list(logging.getLogger(name).handlers), logging.getLogger(name).propagate) for name in LOGGERS]
    longattn("fit", *settings, "--trainer.max_steps", 1, "--run.dir", tmp_path / "run")
    after = [(list(logging.getLogger(name).handlers), logging.getLogger(name).propagate) for name in LOGGERS]
    assert after == before


LOGGERS = ("longattn", "lightning.pytorch", "lightning.fabric", "py.warnings")
