"""Small documents, and caches that no other test has seen."""

from __future__ import annotations

import json

import datasets
import pytest

from longattn.data import TextDataModule, TokenizerTraining, train_tokenizer

WORDS = ["the", "model", "reads", "long", "documents", "and", "learns", "which", "token", "sees", "another"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf_cache")


def text(number: int, words: int) -> str:
    return " ".join(WORDS[(number * 7 + word * (number + 3)) % len(WORDS)] for word in range(words)) + f" {number}."


@pytest.fixture
def texts():
    """29 texts of 3 to 143 words."""
    return [text(number, 3 + number * 5) for number in range(29)]


@pytest.fixture
def jsonl(tmp_path, texts, write_jsonl):
    return write_jsonl(tmp_path / "documents.jsonl", [{"text": text} for text in texts])


@pytest.fixture(scope="session")
def tokenizer():
    documents = [text(number, 50) for number in range(20)]
    return train_tokenizer(lambda: documents, TokenizerTraining(vocab_size=300))


@pytest.fixture
def tokenizer_folder(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def build(tmp_path, jsonl, tokenizer_folder):
    """A function that builds and sets up a data module on the small documents, with changes."""

    def built(trainer=None, **changes):
        settings = {
            "path": "json", "data_files": str(jsonl), "tokenizer": str(tokenizer_folder), "max_length": 64,
            "batch_size": 2, "cache_dir": str(tmp_path / "cache"), "validation_fraction": 0.2,
        }  # fmt: skip
        data = TextDataModule(**(settings | changes))
        data.trainer = trainer
        data.prepare_data()
        data.setup()
        return data

    return built


@pytest.fixture(scope="session")
def write_jsonl():
    """A function that writes records as JSON lines and returns the path."""

    def written(path, records):
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        path.write_text("".join(lines), encoding="utf-8")
        return path

    return written
