"""Presets for data sets of the hub, each on a small local copy of the same schema, with its traps."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
import yaml
from datasets import ClassLabel, Features, List, Sequence, Value

from longattn.data import TextDataModule

FOLDER = Path(__file__).parents[2] / "configs" / "data"

TEXT, NUMBER = Value("string"), Value("int64")


def classes(count):
    return ClassLabel(names=[f"class {index}" for index in range(count)])


SPLITS = ("train", "validation", "test")

# name: (configuration, features, record, text, second text, splits)
SCHEMAS = {
    "arxiv_classification": (
        "no_ref", {"text": TEXT, "label": classes(11)}, {"text": "body", "label": 10}, "body", None, SPLITS,
    ),
    "patent_classification": (
        "patent", {"text": TEXT, "label": classes(9)}, {"text": "claim", "label": 8}, "claim", None, SPLITS,
    ),
    "lex_glue_ecthr_a": (
        "ecthr_a", {"text": List(TEXT), "labels": List(classes(10))},
        {"text": ["one", "two"], "labels": []}, "one\ntwo", None, SPLITS,
    ),
    "lex_glue_ecthr_b": (
        "ecthr_b", {"text": List(TEXT), "labels": List(classes(10))},
        {"text": ["one", "two"], "labels": [9, 1]}, "one\ntwo", None, SPLITS,
    ),
    "lex_glue_scotus": (
        "scotus", {"text": TEXT, "label": classes(13)}, {"text": "opinion", "label": 12}, "opinion", None, SPLITS,
    ),
    "lex_glue_eurlex": (
        "eurlex", {"text": TEXT, "labels": List(classes(127))}, {"text": "law", "labels": [99]}, "law", None, SPLITS,
    ),
    "hyperpartisan": (
        None, {"text": TEXT, "label": NUMBER}, {"text": "news", "label": 1}, "news", None, SPLITS,
    ),
    "imdb": (
        None, {"text": TEXT, "label": classes(2)}, {"text": "film", "label": 1}, "film", None,
        ("train", "test", "unsupervised"),
    ),
    "newsgroups20": (
        None, {"text": TEXT, "label": NUMBER, "label_text": TEXT},
        {"text": "post", "label": 19, "label_text": "x"}, "post", None, ("train", "test"),
    ),
    "pg19": (
        None, {"short_book_title": TEXT, "publication_date": NUMBER, "url": TEXT, "text": TEXT},
        {"short_book_title": "t", "publication_date": 1900, "url": "u", "text": "book " * 300}, "book " * 300, None,
        SPLITS,
    ),
    "quality": (
        None, {"id": TEXT, "question": TEXT, "context": TEXT, **dict.fromkeys("ABCD", TEXT), "label": NUMBER},
        {"id": "1", "question": "why", "context": "story", "A": "a", "B": "b", "C": "c", "D": "d", "label": 3},
        "why\na\nb\nc\nd", "story", ("train", "test"),
    ),
    "qasper": (
        None,
        {
            "id": TEXT, "title": TEXT, "abstract": TEXT,
            "full_text": Sequence({"section_name": TEXT, "paragraphs": List(TEXT)}),
        },
        {
            "id": "1", "title": "Title", "abstract": "Abstract",
            "full_text": {"section_name": ["s", None], "paragraphs": [["p1", "p2"], ["p3"]]},
        },
        "Title\n\nAbstract\n\np1\n\np2\n\np3", None, SPLITS,
    ),
}  # fmt: skip


def test_every_preset_of_the_hub_is_here():
    hub = {
        file.stem for file in FOLDER.glob("*.yaml") if "/" in yaml.safe_load(file.read_text())["data"].get("path", "")
    }
    assert hub == set(SCHEMAS)


@pytest.fixture
def copy(tmp_path):
    """A function that writes a data set of a schema as the hub holds it: parquet, and a card that lists the files."""

    def written(name):
        configuration, features, record, _, _, splits = SCHEMAS[name]
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        for split in splits:
            rows = [record] * (10 if split == "train" else 3)
            part = datasets.Dataset.from_list(rows, features=Features(features))
            part.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
        files = [{"split": split, "path": f"data/{split}-*"} for split in splits]
        card = {"configs": [{"config_name": configuration or "default", "data_files": files}]}
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")
        return folder

    return written


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_preset_reads_text_and_label(name, copy, tmp_path, tokenizer_folder):
    settings = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["data"]
    folder = copy(name)
    data = TextDataModule(
        **settings | {"path": str(folder), "cache_dir": str(tmp_path / "cache"), "tokenizer": str(tokenizer_folder)}
    )
    _, _, record, text, second, splits = SCHEMAS[name]
    (source,) = data._preparation.sources
    parts = {part: documents.table for part, documents in source.load(seed=0).items()}
    assert set(parts) == {"train", "validation", "test"}
    named_validation = "validation" in splits
    assert {part: len(documents) for part, documents in parts.items()} == {
        "train": 10 if named_validation else 9, "validation": 3 if named_validation else 1, "test": 3,
    }  # fmt: skip
    for documents in parts.values():
        assert documents[0]["text"] == text
        assert documents[0].get("text_pair") == second
        if source.source.label_column is not None:
            assert documents[0]["label"] == record[source.source.label_column]
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape[0] == settings["batch_size"]
