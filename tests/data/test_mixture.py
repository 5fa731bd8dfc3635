from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from longattn.data import SourceConfig
from longattn.data.mixture import repeated
from longattn.data.windows import Windowing, cut
from longattn.errors import ConfigError


@pytest.fixture
def sources(tmp_path, write_jsonl):
    """Ten documents of one word, and twenty of another."""

    def made(first, second):
        files = [
            write_jsonl(tmp_path / f"{word}.jsonl", [{"text": f"{word} {number}"} for number in range(size)])
            for word, size in (("model", 10), ("token", 20))
        ]
        return [
            SourceConfig(path="json", data_files=str(file), weight=weight)
            for file, weight in zip(files, (first, second), strict=True)
        ]

    return made


def seen(data, epoch=0):
    """How often each document is trained on in an epoch, and what it says."""
    loader = data.train_dataloader()
    loader.set_epoch(epoch)
    counts, texts = Counter(), {}
    for batch in loader:
        for document, (row, start, stop) in zip(
            batch["document_index"].tolist(), batch["segments"].tolist(), strict=True
        ):
            if document >= 0:
                counts[document] += 1
                labels, tokens = batch["labels"][row, start:stop], batch["input_ids"][row, start:stop]
                texts[document] = data.tokenizer.decode(labels.where(labels >= 0, tokens).tolist())
    return counts, texts


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 0.25), (2.5, 0.5)])
def test_weights_say_how_often_documents_are_seen(build, sources, weights):
    data = build(path=None, data_files=None, sources=sources(*weights), validation_fraction=0.0)
    counts, texts = seen(data)
    for word, size, weight in (("model", 10, weights[0]), ("token", 20, weights[1])):
        mine = [counts[document] for document, text in texts.items() if text.startswith(word)]
        assert sum(mine) == round(size * weight)
        assert set(mine) <= {int(weight), int(weight) + 1}
    assert seen(data, epoch=1)[0] == counts


def test_validation_documents_come_from_every_source(build, sources):
    data = build(path=None, data_files=None, sources=sources(2.0, 1.0), validation_fraction=0.2)
    assert data.validation_statistics.documents == 2 + 4
    assert data.statistics.documents == 8 + 16
    assert data.statistics.windows == 2 * 8 + 16


def test_repeated_windows_keep_their_places():
    windows, _ = cut(np.array([5, 30, 8]), Windowing(max_length=16, special_tokens=0))
    twice = repeated(windows, [2, 1], [2.0, 1.0], seed=0)
    assert twice.document.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert twice.start.tolist() == [0, 0, 0, 0, 16, 16, 0]


def test_sources_beside_a_single_one_are_refused(build, sources):
    with pytest.raises(ConfigError, match=r"data.path='json' has no effect beside data.sources"):
        build(data_files=None, sources=sources(1.0, 1.0))
    with pytest.raises(ConfigError, match=r"data.text_column='body' has no effect beside data.sources"):
        build(path=None, data_files=None, text_column="body", sources=sources(1.0, 1.0))
    with pytest.raises(ConfigError, match=r"data.path is missing"):
        build(path=None, data_files=None)
    with pytest.raises(ConfigError, match=r"data.sources is empty"):
        build(path=None, data_files=None, sources=[])
    with pytest.raises(ConfigError, match=r"weight=0 of path='x': give a number above 0"):
        SourceConfig(path="x", weight=0)
