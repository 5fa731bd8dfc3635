"""A score bias is computed by the kernels that declare it and refused by the others."""

from dataclasses import dataclass

import pytest
import torch

import longattn
from longattn import UnsupportedError
from longattn.patterns import BigBird, Dense, Longformer, SlidingWindow, bind
from longattn.testing import naive_attention


@dataclass(frozen=True)
class Slope:
    """Lowers the score with distance, more for later heads."""

    def __call__(self, head, query, key):
        return -0.1 * (head + 1) * (query - key).abs().double()


@pytest.mark.parametrize("pattern", [Dense(), SlidingWindow(9), Longformer(5), BigBird(8)])
@pytest.mark.parametrize("kernel", ["reference", "chunked"])
def test_bias_is_added_to_the_scores(kernel, pattern):
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(2, 3, 100, 8, generator=generator, dtype=torch.float64) for _ in range(4))
    is_global = torch.zeros(2, 100, dtype=torch.bool)
    is_global[0, [0, 50]] = True
    flags = {"query_is_global": is_global, "key_is_global": is_global} if pattern.uses_globals else {}
    bound = bind(pattern, num_heads=3, query_length=100, **flags)
    position = torch.arange(100)
    bias = Slope()(torch.arange(3)[:, None, None], position[:, None], position)
    visible = bound.mask().expand(2, 3, 100, 100)
    truth = naive_attention((q, k, v), visible, grad, torch.zeros(2, 3, 100).double(), bias)
    for x in (q, k, v):
        x.requires_grad_()
    out = longattn.attention(q, k, v, bound, bias=Slope(), kernel=kernel)
    torch.testing.assert_close(out, truth.out_BHLD, rtol=0, atol=1e-12)
    grads = torch.autograd.grad(out, (q, k, v), grad)
    for actual, expected in zip(grads, (truth.grad_q_BHLD, truth.grad_k_BHSD, truth.grad_v_BHSD), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_sdpa_refuses_a_bias():
    q = torch.zeros(1, 1, 4, 16)
    with pytest.raises(UnsupportedError, match="a score bias would need a tensor"):
        longattn.attention(q, q, q, Dense(), bias=Slope(), kernel="sdpa")


def test_positions_of_a_slice_are_those_of_the_document():
    q = torch.randn(1, 2, 10, 8, generator=torch.Generator().manual_seed(0)).double()
    whole = longattn.attention(q, q, q, SlidingWindow(3), bias=Slope(), kernel="chunked")
    part = bind(SlidingWindow(3), num_heads=2, query_length=4, key_length=8, query_start=5, key_start=2, length=10)
    out = longattn.attention(q[:, :, 5:9], q[:, :, 2:], q[:, :, 2:], part, bias=Slope(), kernel="chunked")
    torch.testing.assert_close(out, whole[:, :, 5:9])
