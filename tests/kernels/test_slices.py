"""A slice of queries against a slice of keys, of documents of different lengths: any pattern, any kernel, any place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import longattn
from longattn.errors import ConfigError
from longattn.kernels import chunked, kernels, torch_tiles
from longattn.patterns import BigBird, Scope, bind
from longattn.testing import PATTERN_CASES, naive_attention

HEADS, HEAD_DIM = 3, 8
# flash has no fp64, in which all of this is compared
ABLE = [name for name, kernel in kernels().items() if kernel.missing() is None and name != "flash"]


def _visible(pattern, queries, keys, lengths):
    """From the specification, one document at a time."""
    head = torch.arange(HEADS)[:, None, None]
    shape = (HEADS, queries.numel(), keys.numel())
    return torch.stack([pattern.sees(head, queries[:, None], keys, Scope(length=n)).expand(shape) for n in lengths])


def _check(kernel, pattern, query_start, query_length, key_start, key_length, lengths):
    queries, keys = query_start + torch.arange(query_length), key_start + torch.arange(key_length)
    bound = bind(
        pattern,
        num_heads=HEADS,
        query_length=query_length,
        key_length=key_length,
        query_start=query_start,
        key_start=key_start,
        length=lengths,
    )
    generator = torch.Generator().manual_seed(query_start + 7 * key_start)
    sizes = [query_length, key_length, key_length, query_length]
    q, k, v, grad_out = (
        torch.randn(len(lengths), HEADS, n, HEAD_DIM, dtype=torch.float64, generator=generator) for n in sizes
    )
    needs_grad = kernel != "flex"  # which has no backward pass on the CPU
    for x in (q, k, v):
        x.requires_grad_(needs_grad)
    out, lse = longattn.attention(q, k, v, bound, kernel=kernel, return_lse=True)
    visible = _visible(pattern, queries, keys, lengths)
    truth = naive_attention((q.detach(), k.detach(), v.detach()), visible, grad_out, torch.zeros_like(grad_out[..., 0]))
    torch.testing.assert_close(out.detach(), truth.out_BHLD, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(lse.detach(), truth.lse_BHL, rtol=1e-9, atol=1e-10)
    if needs_grad:
        wanted = (truth.grad_q_BHLD, truth.grad_k_BHSD, truth.grad_v_BHSD)
        for actual, expected in zip(torch.autograd.grad(out, (q, k, v), grad_out), wanted, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernel", ["chunked", "chunked in torch", "reference", "sdpa"])
@given(
    name=st.sampled_from(sorted(PATTERN_CASES)),
    query_start=st.integers(0, 130),
    key_start=st.integers(0, 130),
    query_length=st.integers(1, 150),
    key_length=st.integers(1, 150),
    beyond=st.lists(st.integers(0, 90), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_a_slice_computes_what_the_specification_says(
    kernel, name, query_start, key_start, query_length, key_length, beyond
):
    reach = max(query_start + query_length, key_start + key_length)
    lengths = [reach + tokens for tokens in beyond]
    with pytest.MonkeyPatch.context() as patch:
        if kernel == "chunked in torch":
            patch.setattr(chunked, "engine_for", lambda request: torch_tiles)
        _check(kernel.split()[0], PATTERN_CASES[name], query_start, query_length, key_start, key_length, lengths)


@pytest.mark.parametrize("kernel", ABLE)
def test_each_document_has_its_own_random_blocks(kernel):
    """Lengths given one by one, with neither padding nor packing to tell them; the last in a place of its own."""
    pattern = BigBird(block_size=3, window_blocks=1, global_blocks=0, random_blocks=1, seed=4, layer=2)
    for lengths in ([133, 174, 163], [174, 174, 174], [163, 133, 174]):
        _check(kernel, pattern, 0, 16, 100, 16, lengths)


def test_as_many_lengths_as_documents():
    bound = bind(BigBird(4), num_heads=1, query_length=9, length=[9, 12, 30])
    q = torch.randn(2, 1, 9, 8)
    with pytest.raises(ConfigError, match="bound to 3 document lengths, q has batch 2"):
        longattn.attention(q, q, q, bound)
