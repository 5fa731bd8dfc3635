"""Sinusoidal positions against the formula of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from longattn.errors import ConfigError
from longattn.nn import Sinusoidal


def test_equals_the_formula():
    table = Sinusoidal().embedding(6)(torch.tensor([[0, 1, 9_999], [7, 8, 9]]))
    for row, positions in enumerate([[0, 1, 9_999], [7, 8, 9]]):
        for column, position in enumerate(positions):
            angles = [position / 10_000 ** (2 * i / 6) for i in range(3)]
            wanted = [wave(angle) for angle in angles for wave in (math.sin, math.cos)]
            torch.testing.assert_close(table[row, column].tolist(), wanted, rtol=0, atol=1e-6)


def test_table_does_not_follow_the_dtype_of_the_model():
    """Case B62."""
    module = Sinusoidal().embedding(64)
    exact = module(torch.arange(16_384)[None])
    lowered = module.to(torch.bfloat16)(torch.arange(16_384)[None])
    assert lowered.dtype == torch.float32
    assert torch.equal(exact, lowered)
    angles = torch.arange(16_384, dtype=torch.float64)
    assert (lowered[0, :, 1].double() - angles.cos()).abs().max() < 1e-6


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="base must be > 1, got 0"):
        Sinusoidal(base=0)
    with pytest.raises(ConfigError, match="even d_model, got 7"):
        Sinusoidal().check_dimensions(7, 1)
