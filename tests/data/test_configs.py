from __future__ import annotations

from pathlib import Path

import pytest
from jsonargparse import ArgumentParser, set_parsing_settings

from longattn.data import TextDataModule

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "data").glob("*.yaml"))


def parser():
    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # as the command line does
    built = ArgumentParser(exit_on_error=False)
    built.add_argument("--config", action="config")
    built.add_class_arguments(TextDataModule, "data")
    return built


def instantiated(settings):
    """Return the data module of parsed settings; the method's name depends on the version of jsonargparse."""
    built = parser()
    return getattr(built, "instantiate", built.instantiate_classes)(built.parse_object({"data": settings})).data


@pytest.fixture
def manual(tmp_path, monkeypatch):
    """A folder of manual pages, for machines without any."""
    (tmp_path / "man" / "man1").mkdir(parents=True)
    for number in range(3):
        page = f".TH P{number} 1\n.SH NAME\np{number} \\- a page\n" + f"Words of page {number}.\n" * 20
        (tmp_path / "man" / "man1" / f"p{number}.1").write_text(page)
    monkeypatch.setenv("MANPATH", str(tmp_path / "man"))


@pytest.mark.usefixtures("manual")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_config_is_read_and_gives_a_batch(config, tmp_path, jsonl, tokenizer_folder):
    arguments = [f"--config={config}", f"--data.cache_dir={tmp_path}", f"--data.tokenizer={tokenizer_folder}"]
    settings = parser().parse_args(arguments).data.as_dict()
    if settings["sources"] is not None:
        settings["sources"] = [settings["sources"][0], {"path": "json", "data_files": str(jsonl), "weight": 2.0}]
        settings["sources"][0]["maximum_documents"] = 3
        settings |= {"maximum_documents": None, "minimum_characters": None}
    elif settings["path"] == "folder":
        settings["options"] = {"folder": str(jsonl.parent), "suffixes": [".jsonl"]}
    elif "/" in settings["path"]:
        pytest.skip("on the hub: read from a local copy in test_presets.py")
    elif settings["data_files"] is not None:
        settings |= {"path": "json", "data_files": str(jsonl)}  # the files of an example are not there
    else:
        settings |= {"maximum_documents": 4, "minimum_characters": 0}
    data = instantiated(settings)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape[0] == data.batch_size
    assert batch["input_ids"].shape[1] <= data.max_length


def test_every_flag_has_help():
    flags = {action.dest: action.help for action in parser()._actions if action.dest.startswith("data.")}
    assert "data.path" in flags
    assert "data.tokenizer_training.vocab_size" in flags
    assert [name for name, text in flags.items() if not text or len(text.split()) < 3] == []


def test_nested_settings_are_flags():
    settings = parser().parse_args(
        ["--data.path=python_library", "--data.tokenizer_training.vocab_size=500", "--data.masking.probability=0.3",
         "--data.data_files=[a.jsonl, b.jsonl]"]
    ).data  # fmt: skip
    assert settings.tokenizer_training.vocab_size == 500
    assert settings.masking.probability == 0.3
    assert settings.data_files == ["a.jsonl", "b.jsonl"]
