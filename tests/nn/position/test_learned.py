"""Learned positions: a table, and a clear end of it."""

from __future__ import annotations

import pytest
import torch

from longattn.errors import ConfigError
from longattn.nn import Learned


def test_has_one_row_per_position():
    assert Learned(max_length=5).embedding(8).weight.shape == (5, 8)


def test_longer_document_is_refused_with_both_numbers():
    learned = Learned(max_length=64)
    learned.check_positions(torch.arange(64)[None], given=False)
    with pytest.raises(
        ConfigError, match="a document of 65 tokens is longer than the learned position table of 64 rows"
    ):
        learned.check_positions(torch.arange(65)[None], given=False)


def test_row_of_short_packed_documents_may_be_longer_than_the_table():
    Learned(max_length=4).check_positions(torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), given=False)


def test_positions_that_the_user_chose_are_looked_at():
    with pytest.raises(ConfigError, match="of 10 tokens is longer than the learned position table of 4 rows"):
        Learned(max_length=4).check_positions(torch.tensor([[0, 9]]), given=True)
    with pytest.raises(ConfigError, match="position_ids must be >= 0, got -1"):
        Learned(max_length=4).check_positions(torch.tensor([[0, -1]]), given=True)


@pytest.mark.parametrize("max_length", [0, -3, 2.5, True])
def test_wrong_length_is_named(max_length):
    with pytest.raises(ConfigError, match=f"max_length must be an integer >= 1, got {max_length}"):
        Learned(max_length=max_length)
