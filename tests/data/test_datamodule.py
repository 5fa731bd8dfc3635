from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from longattn.data import Masking, TextDataModule
from longattn.errors import ConfigError


def trainer(ranks=1, rank=0, accumulation=1):
    return SimpleNamespace(
        world_size=ranks,
        global_rank=rank,
        accumulate_grad_batches=accumulation,
        is_global_zero=rank == 0,
        overfit_batches=0.0,
    )


def rows(batches):
    """Return every window: (input tokens, labels), without padding."""
    found = {}
    for batch in batches:
        for window, (row, start, stop) in zip(batch["window_index"].tolist(), batch["segments"].tolist(), strict=True):
            if window >= 0:
                assert window not in found
                assert batch["attention_mask"][row, start:stop].all()
                found[window] = tuple(batch[name][row, start:stop].tolist() for name in ("input_ids", "labels"))
    return found


def test_a_batch(build):
    data = build()
    batches = list(data.train_dataloader())
    special = data.tokenizer.special
    for batch in batches:
        tokens, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        assert tokens.shape == mask.shape == labels.shape
        assert tokens.shape[1] <= 64
        assert tokens[:, 0].eq(special.cls).all()
        assert tokens[~mask].eq(special.pad).all()
        assert labels[~mask].eq(-100).all()
        assert labels[tokens.eq(special.cls) | tokens.eq(special.sep)].eq(-100).all()
        assert batch["loss_denominator"] == max(1, labels.ne(-100).sum())
        assert batch["real_tokens"] == mask.sum()
    assert len(rows(batches)) == data.statistics.windows
    assert len(batches) == len(data.train_dataloader())


def test_documents_can_be_put_together_again(build, texts):
    data = build(masking=Masking(probability=1.0, mask_share=0.0, random_share=0.0))
    found = rows(data.train_dataloader())
    parts = {}
    windows = data._parts["train"].windows
    for window, (_, labels) in found.items():
        parts.setdefault(int(windows.document[window]), {})[int(windows.start[window])] = labels[1:-1]
    whole = [[token for _, part in sorted(pieces.items()) for token in part] for pieces in parts.values()]
    read = {data.tokenizer.decode(tokens) for tokens in whole}
    assert read < set(texts)
    assert len(read) == data.statistics.documents == len(texts) - data.validation_statistics.documents


@pytest.mark.parametrize(("batch_size", "ranks", "accumulation"), [(4, 2, 1), (2, 1, 4), (2, 2, 2), (1, 4, 2)])
def test_every_split_of_the_work_trains_on_the_same(build, batch_size, ranks, accumulation):
    def step_of(batches, step):
        group = batches[step * accumulation * ranks :][: accumulation * ranks]
        assert len({batch["loss_denominator"] for batch in group}) == 1
        return rows(group), group[0]["loss_denominator"]

    whole = build(batch_size=8)
    expected = [(rows([batch]), batch["loss_denominator"]) for batch in whole.train_dataloader()]
    loaders = [
        build(batch_size=batch_size, trainer=trainer(ranks, rank, accumulation)).train_dataloader()
        for rank in range(ranks)
    ]
    batches = [batch for together in zip(*loaders, strict=True) for batch in together]
    assert [step_of(batches, step) for step in range(len(expected))] == expected


def test_each_epoch_masks_and_orders_anew(build):
    loader = build().train_dataloader()
    first = list(loader)
    loader.set_epoch(1)
    second = list(loader)
    loader.set_epoch(0)
    again = list(loader)
    assert rows(first) == rows(again)
    assert rows(first).keys() == rows(second).keys()
    assert [batch["window_index"].tolist() for batch in first] != [batch["window_index"].tolist() for batch in second]
    differs = [window for window, row in rows(first).items() if row != rows(second)[window]]
    assert len(differs) > 0.9 * len(rows(first))


@pytest.mark.slow
def test_workers_change_nothing_and_live_on(build):
    here, with_workers = build().train_dataloader(), build(num_workers=2).train_dataloader()
    for epoch in range(3):
        here.set_epoch(epoch)
        with_workers.set_epoch(epoch)
        for mine, theirs in zip(here, with_workers, strict=True):
            assert mine["input_ids"].tolist() == theirs["input_ids"].tolist()
            assert mine["labels"].tolist() == theirs["labels"].tolist()


def test_a_pass_leaves_the_global_random_state_alone(build):
    loader = build().train_dataloader()
    state = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_validation_is_the_same_each_time(build):
    data = build(evaluation_batch_size=4)
    loader = data.val_dataloader()
    first, second = list(loader), list(loader)
    assert rows(first) == rows(second)
    windows = [window for batch in first for window in batch["window_index"].tolist() if window >= 0]
    assert windows == list(range(data.validation_statistics.windows))
    assert rows(data.test_dataloader()) == rows(data.predict_dataloader()) == rows(first)


@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_loader_goes_on_where_another_stopped(build, stop):
    loader = build().train_dataloader()
    loader.set_epoch(3)
    whole = [batch["input_ids"].tolist() for batch in loader]
    for _, batch in zip(range(stop), loader, strict=False):
        last = batch
    assert last["input_ids"].tolist() == whole[stop - 1]
    resumed = build().train_dataloader()
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(3)
    assert [batch["input_ids"].tolist() for batch in resumed] == whole[stop:]


def test_at_the_end_of_an_epoch_the_next_one_begins(build):
    loader, resumed = build().train_dataloader(), build().train_dataloader()
    list(loader)
    resumed.load_state_dict(loader.state_dict())
    loader.set_epoch(1)
    assert [b["window_index"].tolist() for b in resumed] == [b["window_index"].tolist() for b in loader]


def test_going_on_with_other_data_is_refused(build):
    state = build().train_dataloader().state_dict()
    with pytest.raises(ConfigError, match="cannot go on inside an epoch"):
        build(max_length=32).train_dataloader().load_state_dict(state)


@pytest.mark.parametrize(
    ("asked", "pattern_uses_globals", "present"),
    [("auto", True, True), ("auto", False, False), ("none", True, False), ("first", True, True)],
)
def test_global_tokens(build, asked, pattern_uses_globals, present):  # case B08
    data = build(global_tokens=asked)
    assert data.resolve_global_tokens(pattern_uses_globals) == ("first" if present else "none")
    for loader in (data.train_dataloader(), data.val_dataloader()):
        for batch in loader:
            assert ("global_attention_mask" in batch) == present
            if present:
                assert batch["global_attention_mask"].sum(1).eq(1).all()
                assert batch["global_attention_mask"][:, 0].all()


def test_global_tokens_that_no_layer_would_use_are_refused(build):
    with pytest.raises(ConfigError, match="global_tokens='first'"):
        build(global_tokens="first").resolve_global_tokens(False)


def test_the_log_says_what_was_cut(build, caplog):
    caplog.set_level(logging.INFO, "longattn")
    data = build(validation_fraction=0.0, long_documents="keep_head")
    lost = data.statistics.truncated_tokens
    assert lost == sum(max(0, length - 62) for length in data._parts["train"].store.lengths.tolist()) > 0
    said = [record for record in caplog.records if f"{lost} tokens" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    caplog.clear()
    data = build(validation_fraction=0.0)
    said = [record.getMessage() for record in caplog.records if "windows in all" in record.getMessage()]
    assert len(said) == 1
    assert f"{data.statistics.long_documents} documents are longer than max_length=64" in said[0]
    assert data.statistics.truncated_tokens == 0


def test_other_ranks_log_nothing_about_the_data(build, caplog):
    build()
    caplog.set_level(logging.INFO, "longattn.data.datamodule")
    caplog.clear()
    data = build(trainer=trainer(ranks=2, rank=1))
    data.setup()
    assert [record for record in caplog.records if record.name == "longattn.data.datamodule"] == []


def test_splits_from_a_dictionary_of_files(build, tmp_path, write_jsonl):
    files = {
        name: str(write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"{name} document {i}"} for i in range(size)]))
        for name, size in (("train", 5), ("validation", 2), ("test", 3))
    }
    data = build(data_files=files)
    assert (data.statistics.documents, data.validation_statistics.documents) == (5, 2)
    assert len(rows(data.test_dataloader())) == 3


def test_the_split_by_fraction_is_reproducible(build):
    def held_out(**settings):
        return sorted(str(row) for row in rows(build(**settings).val_dataloader()).values())

    assert held_out() == held_out()
    assert len(held_out()) != 0
    assert held_out(seed=1) != held_out()


def test_one_document_and_no_validation(build, tmp_path, write_jsonl, caplog):
    data = build(data_files=str(write_jsonl(tmp_path / "one.jsonl", [{"text": "only one"}])))
    assert "nothing is left to validate on" in caplog.text
    assert data.val_dataloader() == []
    assert data.validation_statistics is None
    batches = list(data.train_dataloader())
    assert [batch["document_index"].tolist() for batch in batches] == [[0, -1]]
    with pytest.raises(ConfigError, match="no validation documents"):
        data.test_dataloader()


def test_empty_documents_are_counted_and_left_out(build, tmp_path, write_jsonl, caplog):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "a"}, {"text": ""}, {"text": "b"}])
    data = build(data_files=str(path), minimum_characters=0, validation_fraction=0.0)
    assert (data.statistics.documents, data.statistics.empty_documents, data.statistics.windows) == (3, 1, 2)
    assert "1 documents have no token and are left out" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "data.batch_size=0: give at least 1"),
        ({"num_workers": -1}, "data.num_workers=-1: give at least 0"),
        ({"validation_fraction": 1.0}, r"data.validation_fraction=1.0"),
        ({"global_tokens": "last"}, "data.global_tokens='last'"),
        ({"stride": 62}, "stride=62 with max_length=64"),
        ({"max_length": 2}, "max_length=2"),
        ({"task": "masked_language_mode"}, "did you mean 'masked_language_model'"),
    ],
)
def test_wrong_settings_fail_before_anything_is_read(wrong, message):
    with pytest.raises(ConfigError, match=message):
        TextDataModule(**({"path": "nowhere", "max_length": 64} | wrong))


class Recorder(pl.LightningModule):
    """Notes the windows of each training batch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []
        self.predicted = []

    def training_step(self, batch, _):
        self.seen.append(batch["window_index"].tolist())
        return self.weight.sum()

    def validation_step(self, batch, _):
        pass

    def predict_step(self, batch, _):
        return batch["window_index"].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.slow
def test_a_real_trainer_goes_on_in_the_middle_of_an_epoch(build, tmp_path):  # case B32
    def fit(checkpoint=None, **options):
        module = Recorder()
        save = pl.callbacks.ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=9, save_top_k=-1)
        fitter = pl.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[save],
            accumulate_grad_batches=2, default_root_dir=tmp_path, **options,
        )  # fmt: skip
        fitter.fit(module, datamodule=build(batch_size=1), ckpt_path=checkpoint, weights_only=True)
        return module, fitter

    whole, fitter = fit(max_epochs=3)
    per_epoch = fitter.num_training_batches
    assert len(whole.seen) == 3 * per_epoch
    epochs = [whole.seen[epoch * per_epoch :][:per_epoch] for epoch in range(3)]
    assert len({tuple(sorted(window for batch in epoch for window in batch)) for epoch in epochs}) == 1
    assert epochs[0] != epochs[1]
    (checkpoint,) = (tmp_path / "checkpoints").glob("*step=18.ckpt")
    resumed, fitter = fit(checkpoint, max_epochs=3)
    assert resumed.seen == whole.seen[36:]
    predicted = fitter.predict(resumed, datamodule=build())
    assert [w for batch in predicted for w in batch if w >= 0] == list(range(len(rows(build().predict_dataloader()))))


def test_a_real_trainer_can_overfit_a_few_batches(build, tmp_path):
    module = Recorder()
    fitter = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=3,
        overfit_batches=2, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    fitter.fit(module, datamodule=build())
    assert len(module.seen) == 6
    assert module.seen[:2] == module.seen[2:4] == module.seen[4:]


@pytest.mark.slow
def test_nothing_is_printed_where_stderr_is_no_terminal(tmp_path, jsonl, tokenizer_folder):
    script = (
        "from longattn.data import TextDataModule\n"
        f"d = TextDataModule('json', data_files={str(jsonl)!r}, tokenizer={str(tokenizer_folder)!r}, max_length=64,"
        f" cache_dir={str(tmp_path / 'cache')!r})\n"
        "d.setup(); list(d.train_dataloader())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout == done.stderr == ""


def test_statistics_are_plain_values(build):
    values = dataclasses.asdict(build().statistics)
    assert {type(value) for value in values.values()} == {int, float}
