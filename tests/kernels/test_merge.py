"""Merging over disjoint keys is exact, also where some or all parts see nothing."""

import pytest
import torch

import longattn
from longattn.kernels import available, merge
from longattn.patterns import Dense

RUNNABLE = [name for name, reason in available().items() if reason is None]


@pytest.mark.parametrize("kernel", RUNNABLE)
def test_split_keys_merge_to_the_whole_with_gradients(kernel):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3))
    padding = torch.rand(2, 50, generator=generator) < 0.5
    padding[1, :20] = False  # the first part of the second entry sees nothing
    whole = longattn.attention(q, k, v, Dense(), key_padding=padding, kernel=kernel, return_lse=True)
    parts = [
        longattn.attention(
            q, k[:, :, a:b], v[:, :, a:b], Dense(), key_padding=padding[:, a:b], kernel=kernel, return_lse=True
        )
        for a, b in ((0, 20), (20, 21), (21, 50))
    ]
    merged = merge(parts)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in whole]
    for actual, expected in zip(merged, whole, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    gradients = [
        torch.autograd.grad([(a * w).sum() for a, w in zip(result, weights, strict=True)], (q, k, v))
        for result in (merged, whole)
    ]
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_rows_without_any_key_stay_empty():
    out = torch.zeros(1, 1, 3, 4, requires_grad=True)
    lse = torch.full((1, 1, 3), -torch.inf)
    other = torch.ones(1, 1, 3, 4, requires_grad=True)
    other_lse = torch.tensor([[[-torch.inf, 0.0, 700.0]]], requires_grad=True)
    merged, merged_lse = merge([(out, lse), (other, other_lse)])
    assert torch.equal(merged[0, 0], torch.tensor([0.0, 1.0, 1.0])[:, None].expand(3, 4))
    assert torch.equal(merged_lse, other_lse)
    (merged.sum() + merged_lse[..., 1:].sum()).backward()
    for x in (out, other, other_lse):
        assert torch.isfinite(x.grad).all()
