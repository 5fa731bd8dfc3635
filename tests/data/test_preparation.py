from __future__ import annotations

import os

import numpy as np
import pytest

import longattn.data.preparation as preparation
from longattn.data import TextDataModule, TokenizerTraining, train_tokenizer
from longattn.data.prepared import Prepared
from longattn.data.token_store import TokenStore, write_folder
from longattn.data.windows import Windowing, cut
from longattn.errors import ConfigError


@pytest.fixture
def tokenised(monkeypatch):
    """The parts that have been tokenised, not found in the cache."""
    done = []
    real = preparation.write_token_store

    def counted(folder, documents, tokenizer, description):
        done.append(description)
        real(folder, documents, tokenizer, description)

    monkeypatch.setattr(preparation, "write_token_store", counted)
    return done


def ids(data, part="train"):
    store = data._parts[part].store
    windows, _ = cut(store.lengths, Windowing(max_length=1, special_tokens=0, long_documents="keep_whole"))
    return [store.window_tokens(windows, window).tolist() for window in range(len(windows))]


def test_the_cache_is_used_again(build, tokenised):  # case B22
    first = build()
    assert tokenised == ["train", "validation"]
    second = build()
    assert tokenised == ["train", "validation"]
    assert ids(first) == ids(second)


def test_the_cache_is_never_used_wrongly(build, tokenised, tmp_path, texts, write_jsonl, tokenizer):  # case B22
    build()
    del tokenised[:]
    other = train_tokenizer(lambda: texts, TokenizerTraining(vocab_size=tokenizer.vocab_size))
    assert other.vocab_size == tokenizer.vocab_size
    other.save(tmp_path / "other")
    with_other = build(tokenizer=str(tmp_path / "other"))
    assert tokenised == ["train", "validation"]
    edited = [text.replace("model", "ledom") for text in texts]
    path = tmp_path / "documents.jsonl"
    size, time = path.stat().st_size, path.stat().st_mtime_ns
    write_jsonl(path, [{"text": text} for text in edited])
    assert path.stat().st_size == size
    os.utime(path, ns=(time + 1000, time + 1000))
    with_edit = build()
    assert tokenised == ["train", "validation"] * 2
    cold = build(cache_dir=str(tmp_path / "cold"))
    assert ids(with_edit) == ids(cold)
    assert ids(with_other) != ids(with_edit)


@pytest.mark.parametrize("change", [{"max_length": 32}, {"stride": 8}, {"long_documents": "keep_head"}])
def test_windows_are_cut_anew_without_tokenising(build, tokenised, tmp_path, change):  # case B22
    build()
    del tokenised[:]
    warm, cold = build(**change), build(**change, cache_dir=str(tmp_path / "cold"))
    assert tokenised == ["train", "validation"]  # the cold ones
    for mine, theirs in zip(warm.val_dataloader(), cold.val_dataloader(), strict=True):
        assert mine["input_ids"].tolist() == theirs["input_ids"].tolist()


def test_a_tokenizer_is_trained_once_and_on_training_documents_only(tmp_path, write_jsonl, monkeypatch):
    trained_on = []
    real = preparation.train_tokenizer

    def counted(documents, training, **options):
        trained_on.append(sorted(documents()))
        return real(documents, training, **options)

    monkeypatch.setattr(preparation, "train_tokenizer", counted)
    files = {
        "train": str(write_jsonl(tmp_path / "t.jsonl", [{"text": "aaa bbb"}, {"text": "ccc"}])),
        "validation": str(write_jsonl(tmp_path / "v.jsonl", [{"text": "zzz"}])),
    }
    for _ in range(2):
        data = TextDataModule(
            "json",
            data_files=files,
            max_length=16,
            cache_dir=str(tmp_path),
            tokenizer_training=TokenizerTraining(vocab_size=270),
        )
        data.setup()
    assert trained_on == [["aaa bbb", "ccc"]]


def test_the_sample_for_the_tokenizer_is_bounded_and_fixed(build, monkeypatch):
    samples = []

    def sampled(documents, training, **_):
        samples.append(list(documents()))
        raise ConfigError("enough")

    monkeypatch.setattr(preparation, "train_tokenizer", sampled)
    for _ in range(2):
        with pytest.raises(ConfigError, match="enough"):
            build(tokenizer=None, tokenizer_training=TokenizerTraining(vocab_size=300, maximum_characters=1000))
    assert samples[0] == samples[1]
    characters = sum(len(text) for text in samples[0])
    assert 1000 <= characters < 1000 + max(len(text) for text in samples[0])


def test_other_ranks_read_what_one_has_prepared(build, monkeypatch):
    first = build()
    monkeypatch.setattr(preparation, "load_documents", lambda *_: pytest.fail("a rank read the documents itself"))
    assert first._preparation.result() == Prepared(
        first._preparation.result().tokenizer,
        {name: part.store.folders for name, part in first._parts.items()},
        {"train": 0, "validation": 0},
    )


def test_a_cache_that_was_thrown_away_is_made_again(build):
    first = build()
    (folder,) = first._parts["train"].store.folders
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert first._preparation.result().parts["train"] == [folder]
    assert TokenStore(folder).lengths.sum() > 0


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fails(partial):
        (partial / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "x", fails)
    assert list(tmp_path.iterdir()) == []
    write_folder(tmp_path / "x", lambda partial: (partial / "a").write_text("first"))
    write_folder(tmp_path / "x", lambda partial: (partial / "a").write_text("second"))
    assert (tmp_path / "x" / "a").read_text() == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_unigram_entropy_is_that_of_the_training_tokens(build):
    data = build()
    tokens = np.concatenate(ids(data))
    shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
    assert data.statistics.unigram_entropy == pytest.approx(-(shares * np.log(shares)).sum())
    assert data.statistics.tokens == len(tokens)


def test_special_tokens_in_documents_are_not_maskable(build, tmp_path, write_jsonl):
    """A WordPiece tokenizer turns what it cannot spell into [UNK], which must not be predicted."""
    records = [{"text": "known words " * 30 + "漢 字 " * number} for number in range(6)]
    path = write_jsonl(tmp_path / "x.jsonl", records)
    training = TokenizerTraining(kind="wordpiece", vocab_size=40)
    train_tokenizer(lambda: ["known words"] * 3, training).save(tmp_path / "knows_no_han")
    data = build(data_files=str(path), tokenizer=str(tmp_path / "knows_no_han"), max_length=32, stride=3)
    unknown = data.tokenizer.special.unk
    part = data._parts["train"]
    assert part.store.token_counts[unknown] > 0
    for batch in data.train_dataloader():
        assert (batch["labels"] != unknown).all()
        assert batch["loss_denominator"] == (batch["labels"] != -100).sum()
