"""The scripts that measure run through, at sizes that mean nothing: nobody should find out on a rented GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS.parent)


@pytest.mark.slow
def test_gpu_check_runs_all_its_parts_without_a_gpu(tmp_path):
    small = ["--lengths", 64, 128, "--repeats", 1, "--largest", 128, "--d_model", 128, "--steps", 60]
    done = run("gpu_check", "--device", "cpu", *small, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {row["length"] for row in report["speed"]["rows"]} == {64, 128}
    assert report["speed"]["given_up"] == {}
    assert report["length"]["largest"] == 128
    assert len(report["training"]["losses"]) == 60
    assert set(report["kernels"]["kernels"]) == {"reference", "sdpa", "chunked", "flex", "flash"}
    assert (tmp_path / "gpu_check.png").stat().st_size > 10_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_says_in_one_line_that_there_is_no_gpu():
    done = run("gpu_check")
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_check: error: torch finds no CUDA GPU")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_bench_step_measures_a_step_and_the_rate_of_the_machine(tmp_path):
    cases = ["longattn SlidingWindow", "attention SlidingWindow(64)", "transformers RoBERTa (SDPA)"]
    small = ["--lengths", 128, 256, "--rounds", 1, "--steps", 1, "--dtypes", "fp32", "--allocators", "default"]
    done = run("bench_step", *small, "--cases", *cases, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["case"], row["length"]): row for row in json.loads((tmp_path / "step.json").read_text())}
    assert all(row["error"] is None for row in rows.values())
    assert rows["longattn SlidingWindow", 256]["time_ratio"] == 1.0
    assert 0.0 < rows["longattn SlidingWindow", 256]["roofline"] < 2.0
    assert rows["transformers RoBERTa (SDPA)", 128]["peak_mib"] > 0
    assert "| 256 | fp32 | default | longattn SlidingWindow | 1.00 |" in (tmp_path / "step.md").read_text()
    assert (tmp_path / "step.png").stat().st_size > 10_000


@pytest.mark.slow
def test_bench_data_says_how_full_rows_are_and_how_fast_they_come(tmp_path):
    small = ["--path", "python_library", "--maximum_documents", 40, "--max_length", 2048, "--vocab_size", 400]
    small += ["--d_model", 32, "--num_layers", 1, "--rounds", 1, "--cache_dir", tmp_path / "cache"]
    done = run("bench_data", *small, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    apart, packed = json.loads((tmp_path / "bench_data.json").read_text())
    assert packed["efficiency"] > 0.97
    assert packed["rows"] <= apart["rows"]
    assert packed["ratio"] > 0
