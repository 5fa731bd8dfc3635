"""The loss in tiles is the loss of all logits, forward and backward, and never holds them."""

import pytest
import torch
from torch.nn import functional

from longattn.nn import vocabulary
from longattn.nn.vocabulary import VocabularyProjection


def inputs(count, dtype=torch.float64):
    torch.manual_seed(0)
    projection = VocabularyProjection(6, 50).to(dtype)
    return projection, torch.randn(count, 6, dtype=dtype, requires_grad=True), torch.randint(0, 50, (count,))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 30])
@pytest.mark.parametrize("tile_logits", [1, 50 * 8, 1 << 22])
def test_loss_and_gradients_are_those_of_all_logits(count, tile_logits, monkeypatch):
    monkeypatch.setattr(vocabulary, "_TILE_LOGITS", tile_logits)
    projection, hidden, wanted = inputs(count)
    logits = projection(hidden)
    got = projection(hidden, wanted)
    losses = functional.cross_entropy(logits, wanted, reduction="none")
    torch.testing.assert_close(got.losses, losses)
    assert torch.equal(got.predictions, logits.argmax(-1))
    leaves = (hidden, projection.weight, projection.bias)
    expected = torch.autograd.grad(3.0 * losses.sum(), leaves)
    for actual, grad in zip(torch.autograd.grad(3.0 * got.loss_sum, leaves), expected, strict=True):
        torch.testing.assert_close(actual, grad)


def test_what_needs_no_gradient_gets_none():
    projection, hidden, wanted = inputs(9)
    projection.requires_grad_(False)
    projection(hidden, wanted).loss_sum.backward()
    assert projection.weight.grad is None
    assert hidden.grad.abs().sum() > 0
    with torch.no_grad():
        assert not projection(hidden, wanted).loss_sum.requires_grad


@pytest.mark.parametrize("autocast", [False, True])
def test_low_precision_sums_in_fp32(autocast):
    projection, hidden, wanted = inputs(400, torch.float32)
    exact = projection(hidden, wanted)
    grads = torch.autograd.grad(exact.loss_sum, (hidden, projection.weight))
    if not autocast:
        projection, hidden = projection.bfloat16(), hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        low = projection(hidden, wanted)
    assert low.losses.dtype == low.loss_sum.dtype == torch.float32
    torch.testing.assert_close(low.loss_sum, exact.loss_sum, rtol=0.01, atol=0)
    for actual, wanted_grad in zip(torch.autograd.grad(low.loss_sum, (hidden, projection.weight)), grads, strict=True):
        torch.testing.assert_close(actual.float(), wanted_grad, rtol=0.05, atol=0.05)


def test_logits_are_never_all_there(monkeypatch):
    """The largest tensor that the loss makes is a tile, forward and backward."""
    monkeypatch.setattr(vocabulary, "_TILE_LOGITS", 50 * 16)
    projection, hidden, wanted = inputs(1000, torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            nonlocal largest
            out = function(*arguments, **(keywords or {}))
            for tensor in out if isinstance(out, tuple) else (out,):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return out

    with Watch():
        projection(hidden, wanted).loss_sum.backward()
    assert largest == max(hidden.numel(), 50 * 16)
