from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from longattn.data.masking import IGNORED_LABEL, Masking, counter_generator, counter_hash, mask_tokens, masked_count
from longattn.errors import ConfigError

PAD, CLS, SEP, MASK, VOCABULARY = 0, 2, 3, 4, 1000
SPECIAL = np.array([0, 1, 2, 3, 4])
ORDINARY = np.arange(5, VOCABULARY)


def masked(tokens, masking=Masking(), **key):  # noqa: B008
    key = {"seed": 0, "epoch": 0, "document": 0} | key
    return mask_tokens(tokens, ~np.isin(tokens, SPECIAL), masking, mask_id=MASK, ordinary_ids=ORDINARY, **key)


def document(number, length=1000):
    words = np.random.Generator(np.random.Philox(number)).integers(5, VOCABULARY, length)
    return np.concatenate([[CLS], words, [SEP]])


def test_shares_over_a_hundred_thousand_tokens():
    chosen = replaced_by_mask = kept = other = 0
    for number in range(100):
        tokens = document(number)
        inputs, labels = masked(tokens, document=number)
        at = labels != IGNORED_LABEL
        assert (labels[at] == tokens[at]).all()
        assert (inputs[~at] == tokens[~at]).all()
        chosen += at.sum()
        replaced_by_mask += (inputs[at] == MASK).sum()
        kept += (inputs[at] == tokens[at]).sum()
        other += ((inputs[at] != MASK) & (inputs[at] != tokens[at])).sum()
        assert not np.isin(inputs[at & (inputs != MASK)], SPECIAL).any()
    assert chosen == 100 * 150
    assert replaced_by_mask / chosen == pytest.approx(0.8, abs=0.015)
    assert other / chosen == pytest.approx(0.1, abs=0.01)
    assert kept / chosen == pytest.approx(0.1, abs=0.01)


def test_never_pads_or_specials_even_among_nine_pads_in_ten():  # case B31a
    tokens = np.concatenate([document(0, 48), np.full(450, PAD)])
    inputs, labels = masked(tokens, Masking(probability=0.5))
    special = np.isin(tokens, SPECIAL)
    assert (labels[special] == IGNORED_LABEL).all()
    assert (inputs[special] == tokens[special]).all()
    assert (labels != IGNORED_LABEL).sum() == 24


def test_nothing_masked_in_a_short_document():  # case B31b
    tokens = document(0, 4)
    inputs, labels = masked(tokens, Masking(probability=0.0001))
    assert (labels == IGNORED_LABEL).all()
    assert (inputs == tokens).all()


def test_token_id_zero_is_a_label_like_any_other():  # case B31c
    inputs, labels = mask_tokens(
        np.zeros(10, dtype=np.int64), np.ones(10, dtype=bool), Masking(probability=1.0),
        mask_id=MASK, ordinary_ids=np.array([0, 7]), seed=0, epoch=0, document=0,
    )  # fmt: skip
    assert (labels == 0).all()
    assert (inputs == MASK).any()


def test_count_is_known_beforehand_and_right_on_average():
    documents = np.arange(20_000)
    counts = masked_count(0.15, np.full(20_000, 3), seed=1, epoch=2, document=documents)
    assert set(counts.tolist()) == {0, 1}
    assert counts.mean() == pytest.approx(0.45, abs=0.01)
    for number in range(50):
        _, labels = masked(document(number, number), seed=1, epoch=2, document=number)
        expected = masked_count(0.15, np.array([number]), seed=1, epoch=2, document=np.array([number]))
        assert (labels != IGNORED_LABEL).sum() == expected[0]


def test_all_tokens_at_probability_one():
    counts = masked_count(1.0, np.arange(1000), seed=0, epoch=0, document=np.arange(1000))
    assert (counts == np.arange(1000)).all()


def test_a_function_of_seed_epoch_and_document():
    tokens = document(0)
    first = masked(tokens, seed=3, epoch=1, document=5)
    again = masked(tokens, seed=3, epoch=1, document=5)
    assert all((left == right).all() for left, right in zip(first, again, strict=True))
    for other in ({"seed": 4}, {"epoch": 2}, {"document": 6}, {"epoch": -1}):
        changed = masked(tokens, **({"seed": 3, "epoch": 1, "document": 5} | other))
        overlap = ((changed[1] != IGNORED_LABEL) & (first[1] != IGNORED_LABEL)).sum()
        assert 5 < overlap < 45  # 150 of 1000 twice, chosen independently: 22.5 expected


def test_global_random_state_is_left_alone():
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    masked(document(0))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_the_draws_are_pinned():
    """A resumed run must draw what the interrupted one would have: these numbers may never change."""
    assert counter_hash(1, 2, np.array([3, 4])).tolist() == PINNED_HASH
    assert counter_generator(1, 2, 3).random(2).tolist() == PINNED_RANDOM


PINNED_HASH = [15020427595393229491, 14056738641343212577]
PINNED_RANDOM = [0.25763785204206047, 0.13169670128731492]


@pytest.mark.parametrize(
    "wrong", [{"probability": 0.0}, {"probability": 1.5}, {"mask_share": 0.95}, {"random_share": -0.1}]
)
def test_wrong_shares_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"masking\.{name}={value}"):
        Masking(**wrong)
