"""The command line itself: its list of commands and its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import longattn as longattn_package
from longattn import __version__
from longattn.commands.base import Command, commands


def test_help_lists_every_command_with_one_line(longattn):
    outcome = longattn("--help")
    assert outcome.code == 0
    assert {"fit", "validate", "test", "predict"} <= set(commands())
    for name, command in commands().items():
        assert command.summary
        assert "\n" not in command.summary
        assert f"  {name}" in outcome.out
        assert command.summary in outcome.out


def test_no_command_shows_the_help_and_is_wrong_input(longattn):
    outcome = longattn()
    assert outcome.code == 2
    assert "usage: longattn" in outcome.out


def test_version(longattn):
    assert longattn("--version").out.strip() == f"longattn {__version__}"


def test_an_unknown_command_names_the_nearest(longattn):
    outcome = longattn("validat")
    assert outcome.code == 2
    assert outcome.err == (
        "longattn: error: command 'validat' is unknown (did you mean 'validate'?): `longattn --help` lists them\n"
    )


def test_a_failing_command_shows_a_traceback_and_gives_1(longattn, monkeypatch):
    class Broken(Command):
        name = "broken"
        summary = "fails"

        def run(self, arguments: list[str]) -> int:
            raise RuntimeError("out of luck")

    monkeypatch.setattr("longattn.cli.commands", lambda: {"broken": Broken()})
    outcome = longattn("broken")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert "out of luck" in outcome.err


def test_python_m_longattn_is_the_same_program(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "longattn", "fit", "--config", "missing.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(longattn_package.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "missing.yaml" in result.stderr


def test_listing_commands_does_not_load_lightning(tmp_path):
    code = "import sys; from longattn.cli import main; main(['--help']); print('lightning' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_the_help_of_a_command_shows_every_group_and_what_fields_mean(longattn, command):
    text = " ".join(longattn(command, "--help").out.split())
    for flag in ("--model.pattern", "--data.path", "--trainer.max_steps", "--run.dir", "--seed_everything", "--config"):
        assert flag in text
    assert "Attention heads; must divide d_model." in text
    assert "Optimizer steps over which the rate rises in a straight line" in text
    assert "Optimizer steps from one checkpoint to the next" in text
