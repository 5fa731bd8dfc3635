"""A linear map of an activation: the same numbers as one after the other, without keeping the activation."""

import pytest
import torch
from torch.nn import functional

from longattn.nn import activated_linear
from longattn.nn.activated_linear import ActivatedLinear


def apart(layer, x):
    if layer.activation == "geglu":
        value, gate = x.chunk(2, dim=-1)
        return functional.linear(functional.gelu(value) * gate, layer.weight, layer.bias)
    return functional.linear(functional.gelu(x), layer.weight, layer.bias)


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
@pytest.mark.parametrize("tokens", [0, 1, 5, 33])
@pytest.mark.parametrize("tile", [1, 100, 1 << 20])
def test_output_and_gradients_are_those_of_two_steps(activation, tokens, tile, monkeypatch):
    monkeypatch.setattr(activated_linear, "_TILE_NUMBERS", tile)
    torch.manual_seed(0)
    layer = ActivatedLinear(8, 5, activation).double()
    x = torch.randn(2, tokens, 8 if activation == "gelu" else 16, dtype=torch.float64, requires_grad=True)
    leaves = (x, layer.weight, layer.bias)
    results = []
    for out in (layer(x), apart(layer, x)):
        assert out.shape == (2, tokens, 5)
        results.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_it_keeps_what_comes_in_and_nothing_else():
    layer, x = ActivatedLinear(64, 8, "gelu"), torch.randn(100, 64, requires_grad=True)
    hidden = x * 1.0
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(hidden)
    assert kept.keys() == {hidden.untyped_storage().data_ptr(), layer.weight.untyped_storage().data_ptr()}


def test_frozen_weights_and_frozen_inputs():
    layer, x = ActivatedLinear(8, 5, "gelu"), torch.randn(3, 8)
    layer(x).sum().backward()
    assert x.grad is None
    layer.requires_grad_(False)
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_autocast_computes_in_low_precision_and_returns_full_gradients():
    layer, x = ActivatedLinear(8, 5, "gelu"), torch.randn(3, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x.bfloat16())
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(out.float(), apart(layer, x), rtol=0.05, atol=0.05)
