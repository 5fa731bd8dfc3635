"""Every command and every piece of code in the README runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from longattn.cli import main
from longattn.commands.base import commands

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TINY = [
    "--trainer.max_steps=1",
    "--trainer.accelerator=cpu",
    "--model.d_model=16",
    "--model.num_heads=2",
    "--model.d_ff=32",
    "--data.max_length=256",
    "--data.maximum_documents=20",
    "--data.tokenizer_training.vocab_size=300",
]
"""Settings that make a `fit` of the README last a second."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def lines_that_start_with(word: str) -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.split()[:1] == [word]]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the README's commands run one after the other, as they would in a checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "mine.yaml").write_text(blocks("yaml")[0])
    texts = [f"Document {i}. " + "The cup fell because it was full of tea. " * 30 for i in range(40)]
    (folder / "documents.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.mark.parametrize("line", lines_that_start_with("longattn"))
def test_a_command_runs(place, monkeypatch, line):
    monkeypatch.chdir(place)
    words = shlex.split(line)[1:]
    assert main([*words, *(TINY if words[0] == "fit" else [])]) == 0


def test_there_are_commands_to_run():
    assert len(lines_that_start_with("longattn")) >= 6


@pytest.mark.parametrize("block", blocks("python"))
def test_the_python_code_runs(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_the_scripts_are_there():
    named = [line.split()[0] for block in blocks("bash") for line in block.splitlines() if line.startswith("scripts/")]
    assert named == ["scripts/quickstart", "scripts/test"], "exactly two commands set everything up"
    for name in {*named, *re.findall(r"`(scripts/[a-z_]+)`", README)}:
        assert os.access(ROOT / name, os.X_OK), name


def test_the_table_of_commands_is_complete():
    table = README.split("## Commands")[1].split("##")[0]
    for name in commands():
        assert re.search(rf"`(longattn )?{name}`", table), name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
