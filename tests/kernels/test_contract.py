"""Every kernel x every pattern x precision x length x batch condition against the fp64 truth, forward and backward."""

import functools
import math

import pytest
import torch

import longattn
from longattn.kernels import chunked, kernels, torch_tiles
from longattn.kernels.base import Request
from longattn.patterns import bind
from longattn.testing import (
    PATTERN_CASES,
    AttentionResult,
    assert_within_budget,
    conditions_for,
    naive_attention,
)

HEADS, HEAD_DIM = 3, 16
LENGTHS = [1, 2, 63, 100, 257, 1000]


@functools.lru_cache(maxsize=8)
def _inputs(length):
    """q, k, v, and gradients of out and lse, in values that bf16 holds exactly: one truth for all precisions."""
    generator = torch.Generator().manual_seed(length)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).bfloat16().double()

    rows = (2, HEADS, length)
    return *(draw(*rows, HEAD_DIM) for _ in range(4)), draw(*rows)


@functools.lru_cache(maxsize=18)  # all conditions and precisions of one pattern and length
def _textbook(name, length, condition_index, dtype):
    """The textbook formula in `dtype`; in fp64 it is the truth."""
    pattern = PATTERN_CASES[name]
    visible = conditions_for(pattern, length)[condition_index].visible(pattern, HEADS, length)
    q, k, v, grad_out, grad_lse = (x.to(dtype) for x in _inputs(length))
    return naive_attention((q, k, v), visible, grad_out, grad_lse)


def _computed(kernel, name, length, condition, dtype, device):
    q, k, v, grad_out, grad_lse = (x.to(device, dtype) for x in _inputs(length))
    for x in (q, k, v):
        x.requires_grad_()
    arguments = {key: None if x is None else x.to(device) for key, x in condition.arguments().items()}
    out, lse = longattn.attention(q, k, v, PATTERN_CASES[name], **arguments, kernel=kernel, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    grads = torch.autograd.grad((out, lse), (q, k, v), (grad_out, grad_lse.to(lse.dtype)))
    return AttentionResult(*(x.detach().cpu() for x in (out, lse, *grads)))


def _refusal(kernel, name, length, dtype, device):
    """The reason why `kernel` cannot do the case on this machine, in its own words, or None."""
    missing = kernels()[kernel].missing()
    if missing is not None:
        return missing
    bound = bind(PATTERN_CASES[name], num_heads=HEADS, query_length=length)
    request = Request(
        bound=bound,
        device=torch.device(device),
        dtype=dtype,
        batch=2,
        head_dim=HEAD_DIM,
        scale=1 / math.sqrt(HEAD_DIM),
        needs_grad=True,
        needs_lse=True,
    )
    return kernels()[kernel].unsupported_reason(request)


def _check(kernel, name, length, dtypes, device):
    refusals = {dtype: _refusal(kernel, name, length, dtype, device) for dtype in dtypes}
    if all(refusals.values()):
        pytest.skip(f"{kernel}: {refusals[dtypes[0]]}")
    for index, condition in enumerate(conditions_for(PATTERN_CASES[name], length)):
        for dtype in (dtype for dtype, refusal in refusals.items() if refusal is None):
            computed = _computed(kernel, name, length, condition, dtype, device).named()
            truth = _textbook(name, length, index, torch.float64).named()
            textbook = _textbook(name, length, index, dtype).named()
            for quantity in truth:
                label = f"{condition.name} {dtype} {quantity}"
                assert_within_budget(label, computed[quantity], truth[quantity], textbook[quantity], dtype)


@pytest.mark.parametrize("kernel", kernels())  # varies fastest, so that the kernels share the truth
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PATTERN_CASES)
def test_kernel_agrees_with_the_truth(kernel, name, length):
    _check(kernel, name, length, [torch.float64, torch.float32, torch.bfloat16], "cpu")


@pytest.mark.parametrize("length", [1, 63, 257])
@pytest.mark.parametrize("name", PATTERN_CASES)
def test_plain_torch_agrees_with_the_truth(name, length, monkeypatch):
    """The same for what `chunked` does without a C++ compiler, and on other devices."""
    monkeypatch.setattr(chunked, "engine_for", lambda request: torch_tiles)
    _check("chunked", name, length, [torch.float64, torch.float32, torch.bfloat16], "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("kernel", kernels())  # varies fastest, so that the kernels share the truth
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PATTERN_CASES)
def test_kernel_agrees_with_the_truth_on_gpu(kernel, name, length):
    _check(kernel, name, length, [torch.float32, torch.bfloat16], "cuda")


@pytest.mark.parametrize("length", [127, 128, 129, 1025])
@pytest.mark.parametrize("kernel", ["chunked", "sdpa", "flex"])
def test_lengths_around_the_block_size(kernel, length):
    """Case B11 of the field: a tail shorter than a block gives no NaN and no wrong gradient."""
    _check(kernel, "window", length, [torch.float32, torch.bfloat16], "cpu")


@pytest.mark.parametrize("name", ["dense", "window"])
def test_textbook_gradients_are_those_of_autograd(name):
    """The judge itself is judged: its written-out backward pass against autograd of the formula."""
    pattern, length = PATTERN_CASES[name], 40
    visible = conditions_for(pattern, length)[0].visible(pattern, HEADS, length)
    q, k, v, grad_out, grad_lse = _inputs(length)
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    scores = (q @ k.transpose(-2, -1) / math.sqrt(HEAD_DIM)).masked_fill(~visible, -math.inf)
    out, lse = torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)
    expected = torch.autograd.grad((out, lse), (q, k, v), (grad_out, grad_lse))
    written = naive_attention((q.detach(), k.detach(), v.detach()), visible, grad_out, grad_lse)
    torch.testing.assert_close(written.out_BHLD, out)
    torch.testing.assert_close(written.lse_BHL, lse)
    for actual, wanted in zip((written.grad_q_BHLD, written.grad_k_BHSD, written.grad_v_BHSD), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)
