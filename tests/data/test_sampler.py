from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longattn.data.sampler import BatchShape, EvaluationSampler, TrainingSampler
from longattn.errors import ConfigError


def label_counts(epoch, windows):
    """Some function of epoch and window."""
    return (windows * 3 + epoch) % 7


def training(lengths, *, batch_size=1, ranks=1, rank=0, accumulation=1, seed=0, bucket_batches=4):
    shape = BatchShape(batch_size=batch_size, ranks=ranks, rank=rank, accumulation=accumulation)
    return TrainingSampler(np.asarray(lengths), label_counts, shape, seed=seed, bucket_batches=bucket_batches)


def steps_of(lengths, batch_size, ranks, accumulation, *, seed, epoch):
    """Return for each optimizer step its windows, fillers as -1, and the denominators that its parts were given."""
    samplers = [
        training(lengths, batch_size=batch_size, ranks=ranks, rank=rank, accumulation=accumulation, seed=seed)
        for rank in range(ranks)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    batches = [list(sampler) for sampler in samplers]
    assert {len(mine) for mine in batches} == {len(samplers[0])}
    assert all(len(batch) == batch_size for mine in batches for batch in mine)
    steps = []
    for step in range(len(samplers[0]) // accumulation):
        keys = [key for mine in batches for batch in mine[step * accumulation :][:accumulation] for key in batch]
        steps.append((sorted(key.row for key in keys), {key.denominator for key in keys}))
    return steps


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    splits=st.sampled_from([(1, 1, 1), (2, 1, 1), (4, 2, 1), (12, 3, 2), (12, 1, 4), (12, 2, 6), (8, 8, 1)]),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_ranks_and_accumulation_share_the_same_global_batches(size, splits, seed, epoch):
    global_size, ranks, accumulation = splits
    lengths = (np.arange(size) * 37) % 23 + 1
    whole = steps_of(lengths, global_size, 1, 1, seed=seed, epoch=epoch)
    split = steps_of(lengths, global_size // ranks // accumulation, ranks, accumulation, seed=seed, epoch=epoch)
    assert split == whole
    windows = [window for step, _ in whole for window in step if window >= 0]
    assert sorted(windows) == list(range(size))  # each once per epoch
    for step, denominators in whole:
        real = np.array([window for window in step if window >= 0])
        assert denominators == {float(label_counts(epoch, real).sum())}


def test_order_changes_with_epoch_and_seed_and_comes_back():
    lengths = np.arange(100)
    sampler = training(lengths)
    orders = {}
    for epoch in (0, 1, 2, 0):
        sampler.set_epoch(epoch)
        order = [key.row for batch in sampler for key in batch]
        assert orders.setdefault(epoch, order) == order
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != [key.row for batch in training(lengths, seed=1) for key in batch]


def test_buckets_save_padding_without_fixing_neighbours():
    lengths = np.random.Generator(np.random.Philox(0)).integers(1, 1000, 640)

    def padded(bucket_batches):
        batches = list(training(lengths, batch_size=8, bucket_batches=bucket_batches))
        return sum(8 * max(lengths[key.row] for key in batch) for batch in batches), batches

    unsorted, _ = padded(1)
    sorted_, batches = padded(16)
    assert sorted_ < 0.65 * unsorted
    means = [np.mean([lengths[key.row] for key in batch]) for batch in batches]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3  # no short-to-long curriculum within the epoch


def test_ranks_get_like_lengths():
    one, other = (list(training(np.arange(64), batch_size=4, ranks=2, rank=rank)) for rank in range(2))
    for mine, theirs in zip(one, other, strict=True):
        both = sorted(key.row for key in mine + theirs)
        assert {max(key.row for key in mine), max(key.row for key in theirs)} == set(both[-2:])


@pytest.mark.parametrize("batch", [0, 1, 7, 19, 20])
def test_a_pass_can_start_anywhere(batch):
    full = training(np.arange(40), batch_size=1, ranks=2, rank=1, accumulation=3)
    full.set_epoch(2)
    whole = list(full)
    resumed = training(np.arange(40), batch_size=1, ranks=2, rank=1, accumulation=3)
    resumed.start_at(2, batch)
    resumed.set_epoch(2)  # the trainer says it once more
    assert list(resumed) == whole[batch:]
    assert list(resumed) == whole  # only the first pass is cut short
    resumed.start_at(2, batch)
    resumed.set_epoch(3)
    assert len(list(resumed)) == len(whole)


def test_a_start_behind_the_end_is_refused():
    with pytest.raises(ConfigError, match="cannot resume at batch 41 of an epoch of 40"):
        training(np.arange(40)).start_at(0, 41)


@pytest.mark.parametrize("size", [1, 5, 8, 9])
@pytest.mark.parametrize(("batch_size", "ranks"), [(1, 1), (2, 2), (1, 4), (3, 1)])
def test_evaluation_sees_each_window_once_in_order(size, batch_size, ranks):  # case B59
    mine = []
    for rank in range(ranks):
        shape = BatchShape(batch_size=batch_size, ranks=ranks, rank=rank)
        mine.append(list(EvaluationSampler(size, label_counts, shape)))
    assert len({len(batches) for batches in mine}) == 1
    keys = [key for batch in zip(*mine, strict=True) for part in batch for key in part]
    assert [key.row for key in keys if not key.filler] == list(range(size))
    assert {key.epoch for key in keys} == {-1}
    assert len(keys) % (batch_size * ranks) == 0


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"ranks": 0}, {"accumulation": 0}])
def test_shapes_without_rows_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=0: give at least 1"):
        BatchShape(**({"batch_size": 1} | wrong))
