"""Every command and every piece of code in the README runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

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


BLOCKS: list[tuple[str, str]] = re.findall(r"^```([a-z]+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
"""(language, text) of each block of the README, in order."""


def texts(language: str) -> list[str]:
    return [text for own, text in BLOCKS if own == language]


def test_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """In a folder like a checkout, command after command, as later ones need what earlier ones have written."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    documents = [f"Document {i}. " + "The cup fell because it was full of tea. " * 30 for i in range(40)]
    lines = [json.dumps({"text": text}) + "\n" for text in documents]
    (tmp_path / "documents.jsonl").write_text("".join(lines))
    (tmp_path / "mine.yaml").write_text(texts("yaml")[0])
    monkeypatch.chdir(tmp_path)
    commands_run = 0
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, "README.md", "exec"), {"__name__": "readme"})
        for line in text.splitlines() if language == "bash" else []:
            program, *words = shlex.split(line)
            if program == "longattn":
                assert main([*words, *(TINY if words[0] == "fit" else [])]) == 0, line
                commands_run += 1
    assert commands_run >= 6
    assert (tmp_path / "my_model" / "model.safetensors").exists()


def test_the_scripts_are_there():
    named = [line.split()[0] for text in texts("bash") for line in text.splitlines() if line.startswith("scripts/")]
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
