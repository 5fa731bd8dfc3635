"""What surrounds the fused kernel, on CPU: a stand-in of the same contract takes its place, the rest is the real code.

The fused kernel itself runs in the contract test on a GPU.
"""

import inspect

import pytest
import torch
from torch.nn.attention import varlen

import longattn
from longattn.kernels import flash
from longattn.kernels.base import Request
from longattn.kernels.flash import Flash
from longattn.patterns import Causal, Dense, Longformer, SlidingWindow, bind

HEADS, LENGTH, HEAD_DIM = 3, 70, 8
DOCUMENTS = torch.tensor([[0] * 30 + [1] * 1 + [2] * 29 + [-1] * 10, [-1] * 3 + [5] * 67])
GLOBALS = torch.zeros(2, LENGTH, dtype=torch.bool)
GLOBALS[0, [0, 29, 45, 65]] = True
GLOBALS[1, 40] = True


def visible(starts, total, window):
    """Return who sees whom, (T, T), by the meaning of the operator's arguments."""
    document = torch.bucketize(torch.arange(total), starts[1:], right=True)
    distance = torch.arange(total)[None] - torch.arange(total)[:, None]
    left, right = (total if side < 0 else side for side in window)
    return (document[:, None] == document) & (distance <= right) & (distance >= -left)


def weights_and_scores(q, k, lse, starts, scale, window):
    scores = torch.einsum("thd,shd->hts", q, k) * scale
    scores = scores.masked_fill(~visible(starts, q.shape[0], window), -torch.inf)
    lse = scores.logsumexp(-1) if lse is None else lse
    return (scores - lse.unsqueeze(-1)).exp(), lse


def forward(q, k, v, starts, longest, scale, window):
    assert longest == int(starts.diff().max())
    assert starts.dtype == torch.int32
    assert all(x.is_contiguous() for x in (q, k, v))
    weights, lse = weights_and_scores(q, k, None, starts, scale, window)
    return torch.einsum("hts,shd->thd", weights, v), lse


def backward(grad_out, q, k, v, out, lse, starts, longest, scale, window):
    """As the fused kernel: weights from the lse that is given, row sums from the output that is given."""
    weights, _ = weights_and_scores(q, k, lse, starts, scale, window)
    delta = (grad_out * out).sum(-1).t()
    grad_scores = weights * (torch.einsum("thd,shd->hts", grad_out, v) - delta.unsqueeze(-1)) * scale
    grad_v = torch.einsum("hts,thd->shd", weights, grad_out)
    return torch.einsum("hts,shd->thd", grad_scores, k), torch.einsum("hts,thd->shd", grad_scores, q), grad_v


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(flash, "fused_forward", forward)
    monkeypatch.setattr(flash, "fused_backward", backward)


def request_for(pattern, document=None, is_global=None, **changes):
    bound = bind(
        pattern,
        num_heads=HEADS,
        query_length=LENGTH,
        query_document=document,
        key_is_global=is_global,
    )
    fields = {"device": torch.device("cpu"), "dtype": torch.float32, "batch": 2, "head_dim": HEAD_DIM, "scale": 0.3}
    return Request(bound=bound, **(fields | changes))


@pytest.mark.parametrize("scores_at_once", [1, 300, 1 << 24])
@pytest.mark.parametrize("document", [None, DOCUMENTS, torch.full_like(DOCUMENTS, -1)], ids=["one", "packed", "empty"])
@pytest.mark.parametrize(
    ("pattern", "is_global"),
    [
        (Dense(), None),
        (Causal(), None),
        (SlidingWindow(7), None),
        (Longformer(5), None),
        (Longformer(5), GLOBALS),
        (Longformer(5), torch.zeros_like(GLOBALS)),
    ],
    ids=["dense", "causal", "window", "longformer", "global", "no global token"],
)
def test_windows_documents_and_global_keys(pattern, document, is_global, scores_at_once, stand_in, monkeypatch):
    monkeypatch.setattr(flash, "_SCORES_AT_ONCE", scores_at_once)
    request = request_for(pattern, document, is_global)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, HEADS, LENGTH, HEAD_DIM, generator=generator).requires_grad_() for _ in range(3))
    out, lse = Flash.run(q, k, v, request)
    truth, true_lse = longattn.attention(q, k, v, request.bound, scale=0.3, kernel="reference", return_lse=True)
    torch.testing.assert_close(out, truth, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, true_lse, rtol=1e-4, atol=1e-5)
    expected = torch.autograd.grad(truth.sin().sum(), (q, k, v))
    for actual, wanted in zip(torch.autograd.grad(out.sin().sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pattern": SlidingWindow(3, dilation=2)}, "without dilation"),
        ({"pattern": SlidingWindow(3) | Causal()}, "without dilation"),
        ({"document": torch.tensor([[0] * 30 + [1] * 10 + [0] * 30] * 2)}, "one run"),
        ({"head_dim": 12}, "multiple of 8"),
        ({"dtype": torch.float32}, "fp16 and bf16"),
        ({"needs_lse": True, "needs_grad": True}, "not differentiable"),
    ],
)
def test_what_it_cannot_do_is_said_in_words(changes, reason, monkeypatch):
    fields = {"pattern": SlidingWindow(3), "device": torch.device("cuda"), "dtype": torch.bfloat16} | changes
    monkeypatch.setattr(flash, "_packing", lambda bound, batch, device: flash._build_packing(bound, batch, "cpu"))
    assert reason in Flash.unsupported_reason(request_for(**fields))


def test_torch_has_the_operators_with_these_arguments():
    """Names and order are checked where there is no GPU to call them."""
    names = list(inspect.signature(varlen._varlen_attn._init_fn).parameters)
    assert names[:10] == [
        *("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "is_causal", "scale", "window_size")
    ]
    names = list(inspect.signature(varlen._varlen_attn_backward._init_fn).parameters)
    assert names == [
        *("grad_out", "query", "key", "value", "out", "lse", "cu_seq_q", "cu_seq_k", "max_q", "max_k"),
        *("is_causal", "rng_state", "scale", "window_size"),
    ]
    assert "window_size" in inspect.signature(varlen.varlen_attn).parameters
