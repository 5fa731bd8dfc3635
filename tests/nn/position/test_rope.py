"""RoPE: scores depend on the distance alone, at any length and precision."""

from __future__ import annotations

import math

import pytest
import torch

from longattn.errors import ConfigError
from longattn.nn import Rope

D = 8


def _ids(length, start=0):
    return torch.arange(start, start + length)[None]


def _turned(x, rope=None, start=0, dtype=torch.float64):
    return (rope or Rope()).rotation(_ids(x.shape[2], start), x.shape[3], dtype)(x)


def test_equals_complex_multiplication():
    x = torch.randn(2, 3, 5, D, dtype=torch.float64)
    turned = _turned(x)
    for position in range(5):
        for pair in range(D // 2):
            angle = position * 10_000 ** (-2 * pair / D)
            wanted = torch.complex(x[..., position, pair], x[..., position, pair + D // 2]) * complex(
                math.cos(angle), math.sin(angle)
            )
            torch.testing.assert_close(turned[..., position, pair], wanted.real, rtol=0, atol=1e-12)
            torch.testing.assert_close(turned[..., position, pair + D // 2], wanted.imag, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rope", [Rope(), Rope(base=500.0), Rope(scaling="linear", factor=4.0), Rope(scaling="ntk", factor=4.0)]
)
def test_scores_depend_on_the_distance_alone(rope):
    q, k = torch.randn(2, 1, 2, 6, D, dtype=torch.float64).unbind(0)
    near = _turned(q, rope) @ _turned(k, rope).transpose(-2, -1)
    far = _turned(q, rope, start=12_345) @ _turned(k, rope, start=12_345).transpose(-2, -1)
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)


def test_turning_keeps_lengths_and_leaves_position_zero():
    x = torch.randn(1, 2, 6, D, dtype=torch.float64)
    torch.testing.assert_close(_turned(x).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(_turned(x)[:, :, 0], x[:, :, 0])


def test_linear_scaling_divides_positions():
    scaled = Rope(scaling="linear", factor=4.0).rotation(_ids(9) * 4, D, torch.float64)
    plain = Rope().rotation(_ids(9), D, torch.float64)
    torch.testing.assert_close(scaled.cos_BLR, plain.cos_BLR, rtol=0, atol=1e-12)


def test_ntk_scaling_stretches_the_slowest_pair_by_the_factor_and_spares_the_fastest():
    scaled = Rope(scaling="ntk", factor=4.0).rotation(torch.tensor([[1]]), D, torch.float64)
    plain = Rope().rotation(torch.tensor([[1]]), D, torch.float64)
    ratio = plain.sin_BLR.asin() / scaled.sin_BLR.asin()
    torch.testing.assert_close(ratio[0, 0, -1].item(), 4.0, rtol=1e-9, atol=0)
    assert scaled.cos_BLR[0, 0, 0] == plain.cos_BLR[0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tables_are_exact_at_every_position(dtype):
    """Case B62: bf16 counts exactly to 256 only."""
    rotation = Rope().rotation(_ids(16_384), 64, dtype)
    frequencies = torch.tensor([10_000.0 ** (-i / 32) for i in range(32)], dtype=torch.float64)
    angles = torch.arange(16_384, dtype=torch.float64)[:, None] * frequencies
    assert rotation.cos_BLR.dtype == torch.float32
    assert (rotation.cos_BLR[0].double() - angles.cos()).abs().max() < 1e-6
    assert (rotation.sin_BLR[0].double() - angles.sin()).abs().max() < 1e-6


def test_low_precision_input_keeps_its_dtype_and_is_rounded_once():
    x = torch.randn(1, 2, 300, D).bfloat16()
    turned = _turned(x, dtype=torch.bfloat16, start=9_000)
    exact = _turned(x.double(), start=9_000)
    assert turned.dtype == torch.bfloat16
    assert ((turned.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-5).all()


def test_gradients_of_first_and_second_order():
    x = torch.randn(2, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    rotation = Rope().rotation(torch.tensor([[0, 1, 2], [5, 0, 1]]), 4, torch.float64)
    assert torch.autograd.gradcheck(rotation, x)
    assert torch.autograd.gradgradcheck(rotation, x)


def test_rows_with_positions_of_their_own_and_chosen_tokens():
    ids = torch.tensor([[0, 1, 2, 0, 1], [3, 4, 5, 6, 7]])
    x = torch.randn(2, 2, 5, D, dtype=torch.float64)
    rotation = Rope().rotation(ids, D, torch.float64)
    turned = rotation(x)
    torch.testing.assert_close(turned[1:], _turned(x[1:], start=3), rtol=0, atol=1e-12)
    index = torch.tensor([[4, 0], [1, 1]])
    chosen = torch.stack([x[entry][:, index[entry]] for entry in range(2)])
    wanted = torch.stack([turned[entry][:, index[entry]] for entry in range(2)])
    torch.testing.assert_close(rotation.at(index)(chosen), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rope(base=1.0), "base must be > 1, got 1.0"),
        (lambda: Rope(scaling="linaer", factor=2.0), "one of none, linear, ntk, got 'linaer'"),
        (lambda: Rope(scaling="linear", factor=0.5), "factor must be >= 1, got 0.5"),
        (lambda: Rope(factor=2.0), "factor 2.0 has no effect with scaling 'none'"),
        (lambda: Rope().check_dimensions(15, 5), "even head dimension, got d_model 15 / num_heads 5 = 3"),
        (
            lambda: Rope(scaling="ntk", factor=2.0).check_dimensions(10, 5),
            "at least 4, got d_model 10 / num_heads 5 = 2",
        ),
    ],
)
def test_wrong_settings_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
