"""MultiHeadAttention against torch's own and against a loop over heads and rows."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn import functional

import longattn.nn.attention
from longattn.errors import ConfigError
from longattn.nn import MultiHeadAttention, Rope, bind_attention
from longattn.patterns import BigBird, BlockSparse, Causal, Dense, Fixed, SlidingWindow, Strided

B, L, S, M, H = 2, 7, 11, 12, 3


def _inputs(length=L, keys=S, batch=B, width=M, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(batch, length, width, dtype=dtype, generator=generator, requires_grad=True)
    key = torch.randn(batch, keys, width, dtype=dtype, generator=generator, requires_grad=True)
    value = torch.randn(batch, keys, width, dtype=dtype, generator=generator, requires_grad=True)
    return query, key, value


def _layer(pattern=None, dtype=torch.float64, **options):
    torch.manual_seed(1)
    options.setdefault("kernel", "reference")
    return MultiHeadAttention(M, H, pattern or Dense(), **options).to(dtype)


def _loop_oracle(layer, query, key, value, seen):
    """The textbook formula, one batch entry, head and row at a time; `seen` (B, H, L, S) bool."""
    q, k, v = layer.w_q(query), layer.w_k(key), layer.w_v(value)
    size = layer.head_dim
    entries = []
    for b in range(query.shape[0]):
        rows = []
        for i in range(query.shape[1]):
            heads = []
            for h in range(layer.num_heads):
                part = slice(h * size, (h + 1) * size)
                keys = [j for j in range(key.shape[1]) if seen[b, h, i, j]]
                if not keys:
                    heads.append(torch.zeros(size, dtype=q.dtype))
                    continue
                scores = torch.stack([q[b, i, part] @ k[b, j, part] / size**0.5 for j in keys])
                weights = torch.softmax(scores, 0)
                heads.append(sum(weight * v[b, j, part] for weight, j in zip(weights, keys, strict=True)))
            rows.append(torch.cat(heads))
        entries.append(torch.stack(rows))
    return layer.w_o(torch.stack(entries))


def _gradients(out, tensors):
    probe = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return torch.autograd.grad((out * probe).sum(), tensors)


def _assert_same(layer, ours, theirs, inputs, tolerance=1e-12):
    tensors = [*inputs, *layer.parameters()]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    for got, wanted in zip(_gradients(ours, tensors), _gradients(theirs, tensors), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize("keys", [L, S])
def test_equals_torch(kernel, keys):
    layer, (query, key, value) = _layer(kernel=kernel), _inputs(keys=keys)
    real = torch.ones(B, keys, dtype=torch.bool)
    real[1, 4:] = False
    theirs, their_weights = functional.multi_head_attention_forward(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        M,
        H,
        torch.cat((layer.w_q.weight, layer.w_k.weight, layer.w_v.weight)),
        torch.cat((layer.w_q.bias, layer.w_k.bias, layer.w_v.bias)),
        None,
        None,
        False,
        0.0,
        layer.w_o.weight,
        layer.w_o.bias,
        key_padding_mask=~real,
        average_attn_weights=False,
    )
    ours, weights = layer(query, key, value, real, return_weights=True)
    _assert_same(layer, ours, theirs.transpose(0, 1), (query, key, value))
    torch.testing.assert_close(weights, their_weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "shape",
    [(B, S), (B, L, S), (1, L, S), (B, 1, L, S), (B, H, L, S), (1, H, L, S), (1, 1, L, S)],
    ids=lambda shape: "x".join(map(str, shape)),
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_masks_of_every_shape_equal_the_loop(shape, dtype):
    layer, (query, key, value) = _layer(), _inputs()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5
    seen = {2: lambda: mask[:, None, None, :], 3: lambda: mask[:, None], 4: lambda: mask}[mask.dim()]()
    ours = layer(query, key, value, mask.to(dtype))
    _assert_same(layer, ours, _loop_oracle(layer, query, key, value, seen.expand(B, H, L, S)), (query, key, value))


@pytest.mark.parametrize(
    "pattern",
    [
        Causal(),
        SlidingWindow(radius=2),
        SlidingWindow(radius=1, dilation=3),
        Strided(stride=3),
        Fixed(stride=4, summary=1),
        BigBird(block_size=2, random_blocks=1),
        SlidingWindow(radius=1) | Causal(),
    ],
    ids=repr,
)
def test_patterns_equal_the_loop(pattern):
    layer, (query, _, _) = _layer(pattern), _inputs(length=L)
    index = torch.arange(L)
    seen = pattern.sees(torch.arange(H)[:, None, None], index[:, None], index).expand(B, H, L, L)
    ours = layer(query, query, query)
    _assert_same(layer, ours, _loop_oracle(layer, query, query, query, seen), (query,))


@pytest.mark.parametrize("radius", [0, 1, 2, L - 1, L, L + 5])
def test_window_of_radius_w_sees_w_keys_on_each_side(radius):
    query, _, _ = _inputs()
    _, weights = _layer(SlidingWindow(radius=radius))(query, query, query, return_weights=True)
    distance = (torch.arange(L)[:, None] - torch.arange(L)).abs()
    assert torch.equal(weights > 0, (distance <= radius).expand(B, H, L, L))


def test_causal_rows_do_not_depend_on_later_tokens():
    layer, (query, _, _) = _layer(Causal()), _inputs()
    changed = query.detach().clone()
    changed[:, 4:] += 1e3
    before, after = layer(query, query, query), layer(changed, changed, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_row_that_sees_nothing_attends_to_nothing():
    layer, (query, key, value) = _layer(), _inputs()
    mask = torch.ones(B, L, S, dtype=torch.bool)
    mask[0, 3] = False
    out, weights = layer(query, key, value, mask, return_weights=True)
    torch.testing.assert_close(out[0, 3], layer.w_o.bias, rtol=0, atol=0)
    assert (weights[0, :, 3] == 0).all()
    gradients = _gradients(out, [query, key, value, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][0, 3] == 0).all()


@pytest.mark.parametrize(("queries", "keys"), [(0, S), (L, 0), (0, 0)])
def test_no_queries_or_no_keys(queries, keys):
    query, key, value = _inputs(length=queries, keys=keys)
    out, weights = _layer()(query, key, value, return_weights=True)
    assert out.shape == (B, queries, M)
    assert weights.shape == (B, 3, queries, keys)
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_sum_to_one_and_leave_the_output_alone(dtype):
    layer = _layer(SlidingWindow(radius=2), dtype=dtype, dropout=0.5)
    query, _, _ = _inputs(dtype=dtype)
    torch.manual_seed(0)
    alone = layer(query, query, query)
    torch.manual_seed(0)
    out, weights = layer(query, query, query, return_weights=True)
    assert torch.equal(alone, out)
    assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, L, dtype=weights.dtype), rtol=0, atol=1e-6)


def test_too_many_weights_are_refused_with_the_numbers():
    long = torch.zeros(1, 1, M).expand(1, 6000, M)
    layer = _layer(SlidingWindow(radius=1), dtype=torch.float32)
    with pytest.raises(
        ConfigError, match=r"1 x 3 heads x 6000 queries x 6000 keys = 108000000 weights, more than 67108864"
    ):
        layer(long, long, long, return_weights=True)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_dropout_acts_in_training_only(kernel):
    """Case B09."""
    query, _, _ = _inputs(dtype=torch.float32)
    dropping, plain = (_layer(dtype=torch.float32, dropout=p, kernel=kernel) for p in (0.9, 0.0))
    dropping.eval()
    assert torch.equal(dropping(query, query, query), dropping(query, query, query))
    torch.testing.assert_close(dropping(query, query, query), plain(query, query, query), rtol=0, atol=1e-6)
    dropping.train()
    torch.manual_seed(5)
    first, second = dropping(query, query, query), dropping(query, query, query)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(first, dropping(query, query, query))


def test_gradcheck():
    torch.manual_seed(0)
    layer = MultiHeadAttention(4, 2, SlidingWindow(radius=1), kernel="reference").double()
    rotation = Rope().rotation(torch.arange(4)[None], 2, torch.float64)
    bound = bind_attention(layer.pattern, num_heads=2, query_length=4, rotation=rotation)
    x = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, x, x, bound=bound), x)


def test_kernel_reaches_the_attention_function(monkeypatch):
    asked = []
    original = longattn.nn.attention.attention

    def spy(*args, kernel, **options):
        asked.append(kernel)
        return original(*args, kernel=kernel, **options)

    monkeypatch.setattr(longattn.nn.attention, "attention", spy)
    query, key, value = _inputs()
    for kernel in ("reference", "auto"):
        _layer(kernel=kernel)(query, key, value)
    assert asked == ["reference", "auto"]


def test_many_heads_are_no_reason_to_warn(caplog):
    with caplog.at_level(logging.WARNING):
        MultiHeadAttention(64, 32)
    assert not caplog.records


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MultiHeadAttention(512, 7), "num_heads 7 and d_model 512; 4 or 8 heads would do"),
        (lambda: MultiHeadAttention(512, 0), "num_heads must be an integer >= 1, got 0"),
        (lambda: MultiHeadAttention(-8, 2), "d_model must be an integer >= 1, got -8"),
        (lambda: MultiHeadAttention(8, 2, dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
        (lambda: MultiHeadAttention(8, 2, kernel="refrence"), "did you mean 'reference'"),
        (lambda: MultiHeadAttention(8, 2, "SlidingWindow"), "pattern must be a Pattern .* got 'SlidingWindow'"),
        (lambda: MultiHeadAttention(8, 2, BlockSparse(torch.ones(4, 2, 2))), "layout has 4 heads, the attention has 2"),
    ],
)
def test_wrong_settings_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": torch.zeros(B, S - 1, M)}, "got 11 keys and 10 values"),
        ({"key": torch.zeros(B + 1, S, M)}, r"same batch, got query \(2, 7, 12\), key \(3, 11, 12\)"),
        ({"query": torch.zeros(B, L, M + 1)}, r"d_model = 12, got query \(2, 7, 13\)"),
        ({"query": torch.zeros(L, M)}, r"\(batch, length, d_model\), got query \(7, 12\)"),
        ({"mask": torch.ones(B, S)}, "boolean or hold the integers 0 and 1 .* got torch.float32"),
        ({"mask": torch.full((B, S), 2)}, "mask must hold 0 and 1 only, got 2"),
        ({"mask": torch.ones(B, S + 1, dtype=torch.bool)}, r"\(batch, keys\) = \(2, 11\).* got \(2, 12\)"),
        ({"mask": torch.ones(L, S, dtype=torch.bool)}, r"\(batch, queries, keys\) = \(2, 7, 11\).* got \(7, 11\)"),
        ({"mask": torch.ones(B, 2, L, S, dtype=torch.bool)}, r"\(2, 1 or 3, 7, 11\), got \(2, 2, 7, 11\)"),
    ],
)
def test_wrong_inputs_are_named(change, message):
    arguments = {"query": torch.zeros(B, L, M), "key": torch.zeros(B, S, M), "value": torch.zeros(B, S, M)} | change
    with pytest.raises(ConfigError, match=message):
        _layer(dtype=torch.float32)(**arguments)


def test_pattern_without_meaning_in_cross_attention_says_so():
    query, key, value = _inputs()
    with pytest.raises(ConfigError, match=r"SlidingWindow has no meaning in cross-attention .7 queries, 11 keys"):
        _layer(SlidingWindow(radius=2))(query, key, value)


def test_global_tokens_need_a_pattern_that_has_them():
    query, _, _ = _inputs()
    with pytest.raises(ConfigError, match="no global tokens: use Longformer"):
        _layer(SlidingWindow(radius=2))(query, query, query, is_global=torch.ones(B, L, dtype=torch.bool))


def test_bound_and_mask_together_are_refused():
    layer, (query, _, _) = _layer(), _inputs()
    bound = bind_attention(Dense(), num_heads=H, query_length=L)
    with pytest.raises(ConfigError, match="already holds mask"):
        layer(query, query, query, torch.ones(B, L, dtype=torch.bool), bound=bound)
