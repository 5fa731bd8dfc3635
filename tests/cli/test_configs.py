"""Every committed YAML is parsed, built, and trained for one tiny step on the CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

CONFIGS = Path(__file__).parents[2] / "configs"

FILES = sorted(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_config_trains_for_a_step(longattn, settings, corpus, tmp_path, metrics_of, path):
    given = yaml.safe_load(path.read_text())
    if "sources" in given.get("data", {}):
        sources = json.dumps([{"path": "json", "data_files": str(corpus), "weight": 0.5}] * 2)
        one = ("--data.path", "--data.data_files")
        settings = [*(flag for flag in settings if not flag.startswith(one)), f"--data.sources={sources}"]
    model = given.get("model", {})
    needed = [flag for flag in settings if not flag.startswith("--model.")]
    if "num_layers" in model:  # a size: its width is kept, its depth is not
        needed += ["--model.num_layers=1"]
    else:
        needed += [flag for flag in settings if flag.startswith("--model.")]
    if model.get("layer_patterns"):
        needed += [f"--model.num_layers={len(model['layer_patterns'])}"]
    outcome = longattn(
        "fit", "--config", path, *needed, "--trainer.max_steps=1", "--trainer.limit_val_batches=0",
        "--trainer.val_check_interval=null", "--data.split=train", "--data.text_column=text",
        "--data.label_column=null", "--data.text_pair_column=null", "--data.name=null", "--data.options=null",
        "--data.validation_split=null", "--data.test_split=null", "--data.minimum_characters=null", "--data.stride=0",
        "--data.validation_fraction=0.2", "--run.tensorboard=false",
        f"--run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert math.isfinite(float(metrics_of(tmp_path / "run")[0]["train/loss"]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_config_is_kept_as_it_is_written(longattn, path):
    """What a file says is what the run's configuration holds: nothing in it is without effect."""
    outcome = longattn("fit", "--config", path, "--print_config")
    assert outcome.code == 0, outcome.err
    _assert_holds(yaml.safe_load(outcome.out), yaml.safe_load(path.read_text()), path.name)


def _assert_holds(whole, part, where):
    if isinstance(part, dict) and isinstance(whole, dict):
        for name, value in part.items():
            if name == "class_path":
                assert whole[name].rsplit(".", 1)[-1] == value
            elif name != "path":
                _assert_holds(whole[name], value, f"{where}: {name}")
    elif isinstance(part, list) and isinstance(whole, list):
        assert len(whole) == len(part), where
        for one, other in zip(whole, part, strict=True):
            _assert_holds(one, other, where)
    else:
        assert json.dumps(whole) == json.dumps(part), where


@pytest.mark.parametrize("pattern", sorted((CONFIGS / "pattern").glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("size", sorted((CONFIGS / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_of_different_folders_can_be_merged(longattn, pattern, size):
    outcome = longattn(
        "fit", "--config", CONFIGS / "pattern" / "sliding_window.yaml", "--config", CONFIGS / "strategy" / "cpu.yaml",
        "--config", size, "--config", pattern, "--data.path=json", "--print_config",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    merged, wanted = yaml.safe_load(outcome.out)["model"], yaml.safe_load(pattern.read_text())["model"]
    _assert_holds(merged, wanted, pattern.name)


@pytest.mark.slow
def test_the_smoke_run_is_whole_and_learns(longattn, tmp_path, metrics_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = longattn("fit", "--config", CONFIGS / "experiment" / "smoke.yaml", "--data.cache_dir", tmp_path / "cache")
    assert outcome.code == 0, outcome.err
    (folder,) = (tmp_path / "runs").iterdir()
    rows = metrics_of(folder)
    assert [int(row["step"]) for row in rows] == list(range(1, 21))
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"]) - 1.0
    assert float(rows[-1]["val/loss"]) < float(rows[9]["val/loss"])
    assert (folder / "checkpoints" / "step_00000020.ckpt").exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["architecture"]["dropout"] == 0.0
