"""ALiBi's slopes and its symmetric bias."""

from __future__ import annotations

import pytest
import torch

from longattn.nn import Alibi
from longattn.nn.position import AlibiBias


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [0.5 * i for i in range(1, 17)]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_those_of_the_paper(num_heads, exponents):
    slopes = AlibiBias(num_heads).slopes(torch.arange(num_heads))
    torch.testing.assert_close(slopes, torch.tensor([2.0**-exponent for exponent in exponents]))


def test_bias_falls_with_the_distance_in_both_directions():
    bias = Alibi().bias(8)(torch.tensor([0, 7])[:, None, None], torch.arange(4)[:, None], torch.arange(4))
    distance = (torch.arange(4)[:, None] - torch.arange(4)).abs().float()
    torch.testing.assert_close(bias, torch.stack((-distance / 2, -distance / 256)))


def test_equal_biases_are_interchangeable():
    assert Alibi().bias(6) == Alibi().bias(6)
    assert hash(Alibi().bias(6)) == hash(AlibiBias(6))
    assert Alibi().bias(6) != Alibi().bias(8)
