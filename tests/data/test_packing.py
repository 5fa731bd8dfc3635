from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longattn.data.packing import best_fit, one_per_row
from longattn.models import EncoderConfig, MaskedLanguageModel
from longattn.patterns import Longformer


@given(
    lengths=st.lists(st.integers(1, 40), max_size=60),
    capacity=st.integers(1, 40),
    seed=st.integers(0, 3),
)
def test_each_window_is_in_one_row_and_no_row_is_too_long(lengths, capacity, seed):
    sizes = np.array(lengths, dtype=np.int64)
    table = best_fit(sizes, capacity, np.random.default_rng(seed).permutation(len(sizes)))
    assert sorted(table.windows.tolist()) == list(range(len(lengths)))
    assert table.lengths.tolist() == [sizes[table.row(row)].sum() for row in range(len(table))]
    for row in range(len(table)):
        assert table.lengths[row] <= capacity or len(table.row(row)) == 1
    if len(table):
        free = capacity - table.lengths
        firsts = sizes[table.windows[table.starts[:-1]]]
        for later in range(1, len(table)):  # a row is opened only where no earlier one had room
            assert all(firsts[later] > free[earlier] for earlier in range(later))


def test_the_fullest_row_that_fits_is_taken():
    table = best_fit(np.array([7, 5, 3, 2]), 10, np.arange(4))
    assert [table.row(row).tolist() for row in range(len(table))] == [[0, 2], [1, 3]]


def test_rows_are_nearly_full():
    """Windows as the manual pages make them: many full ones, and rests of all lengths."""
    draw = np.random.Generator(np.random.Philox(1))
    lengths = np.concatenate([np.full(150, 8192), draw.integers(3, 8192, 400)])
    table = best_fit(lengths, 8192, np.arange(len(lengths)))
    assert lengths.sum() / (len(table) * 8192) > 0.97


def test_sums_over_rows():
    table = best_fit(np.array([7, 5, 3, 2]), 10, np.arange(4))
    rows = np.array([1, 0])
    values = np.array([10, 20, 30, 40])
    assert table.sums(values[table.windows_of(rows)], rows).tolist() == [60, 40]
    assert one_per_row(np.array([4, 9])).row(1).tolist() == [1]
    assert table.windows_of(np.array([], dtype=np.int64)).tolist() == []


def segments_of(batches):
    found = {}
    for batch in batches:
        for window, (row, start, stop) in zip(batch["window_index"].tolist(), batch["segments"].tolist(), strict=True):
            if window >= 0:
                assert window not in found
                found[window] = [batch[name][row, start:stop].tolist() for name in ("input_ids", "labels")]
    return found


def test_packing_changes_rows_and_nothing_else(build):
    apart, packed = build(), build(packing=True)
    assert packed.statistics.windows == apart.statistics.windows == len(segments_of(apart.train_dataloader()))
    assert packed.statistics.rows < 0.9 * apart.statistics.rows
    batches = list(packed.train_dataloader())
    assert segments_of(batches) == segments_of(apart.train_dataloader())
    assert len(batches) == len(packed.train_dataloader())
    for batch in batches:
        assert batch["loss_denominator"] == max(1, batch["labels"].ne(-100).sum())


def test_each_epoch_orders_packed_rows_anew_and_a_loader_goes_on(build):
    loader = build(packing=True).train_dataloader()
    loader.set_epoch(1)
    other = [batch["window_index"].tolist() for batch in loader]
    loader.set_epoch(2)
    whole = [batch["window_index"].tolist() for batch in loader]
    assert other != whole
    for _ in zip(range(3), loader, strict=False):
        pass
    resumed = build(packing=True).train_dataloader()
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(2)
    assert [batch["window_index"].tolist() for batch in resumed] == whole[3:]


@pytest.mark.parametrize("pattern", [None, Longformer(radius=5)])
def test_the_loss_of_packed_rows_is_that_of_rows_apart(build, pattern):
    """Documents in one row neither see each other nor each other's positions, and each has its own global token."""
    losses = []
    for packing in (False, True):
        data = build(packing=packing, batch_size=4)
        data.resolve_global_tokens(pattern is not None)
        config = EncoderConfig(
            data.vocab_size, d_model=16, num_heads=2, num_layers=2, d_ff=32, pattern=pattern, dropout=0.0
        )
        torch.manual_seed(0)
        model = MaskedLanguageModel(config).double()
        names = ("input_ids", "attention_mask", "global_attention_mask", "document_ids", "labels")
        total = sum(
            model(**{name: batch[name] for name in names if name in batch}).loss_sum
            for batch in data.train_dataloader()
        )
        gradients = torch.autograd.grad(total, list(model.parameters()))
        losses.append((total.detach(), *gradients))
    for apart, packed in zip(*losses, strict=True):
        torch.testing.assert_close(packed, apart, rtol=1e-6, atol=1e-8)
