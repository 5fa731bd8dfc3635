"""Longformer layers against the paper's equations, one row at a time (Beltagy et al. 2020, sec. 3.1)."""

from __future__ import annotations

import pytest
import torch

from longattn.nn import Alibi, MultiHeadAttention, Rope, bind_attention
from longattn.patterns import BigBird, Causal, Longformer

M, H, RADIUS = 8, 2, 2


def _layer(pattern=None, distinct=True, **options):
    torch.manual_seed(1)
    options.setdefault("kernel", "reference")
    layer = MultiHeadAttention(M, H, pattern or Longformer(radius=RADIUS), **options).double()
    if distinct:  # as after training: global projections that differ from the ordinary ones
        for projection in (layer.w_q_global, layer.w_k_global, layer.w_v_global):
            torch.nn.init.normal_(projection.weight)
    return layer


def _x(batch, length):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(batch, length, M, dtype=torch.float64, generator=generator, requires_grad=True)


def _flags(batch, length, tokens):
    flags = torch.zeros(batch, length, dtype=torch.bool)
    for entry, places in enumerate(tokens):
        flags[entry, list(places)] = True
    return flags


def _paper(layer, x, is_global, real=None, document=None, narrow=None, turn=None, slopes=None):
    """Ordinary rows: Qs Ks Vs over window and global keys. Global rows: Qg Kg Vg over every key."""
    sets = {
        False: (layer.w_q(x), layer.w_k(x), layer.w_v(x)),
        True: (layer.w_q_global(x), layer.w_k_global(x), layer.w_v_global(x)),
    }
    batch, length, _ = x.shape
    size = M // H
    entries = []
    for b in range(batch):
        rows = []
        for i in range(length):
            own = bool(is_global[b, i])
            q, k, v = sets[own]
            keys = [j for j in range(length) if own or abs(i - j) <= RADIUS or is_global[b, j]]
            keys = [j for j in keys if real is None or real[b, j]]
            keys = [j for j in keys if document is None or document[b, i] == document[b, j] >= 0]
            keys = [j for j in keys if narrow is None or narrow[i, j]]
            heads = []
            for h in range(H):
                part = slice(h * size, (h + 1) * size)
                qi = q[b, i, part] if turn is None else turn(q[b, i, part], i)
                kj = [k[b, j, part] if turn is None else turn(k[b, j, part], j) for j in keys]
                if not keys:
                    heads.append(torch.zeros(size, dtype=x.dtype))
                    continue
                scores = torch.stack([qi @ kk / size**0.5 for kk in kj])
                if slopes is not None:
                    scores = scores - slopes[h] * torch.tensor([float(abs(i - j)) for j in keys], dtype=x.dtype)
                weights = torch.softmax(scores, 0)
                heads.append(sum(w * v[b, j, part] for w, j in zip(weights, keys, strict=True)))
            rows.append(torch.cat(heads))
        entries.append(torch.stack(rows))
    return layer.w_o(torch.stack(entries))


def _assert_same(layer, ours, theirs, x, tolerance=1e-10):
    tensors = [x, *layer.parameters()]
    probe = torch.cos(torch.arange(ours.numel(), dtype=ours.dtype)).view_as(ours)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    wanted = torch.autograd.grad((theirs * probe).sum(), tensors, materialize_grads=True)
    for got, gradient in zip(torch.autograd.grad((ours * probe).sum(), tensors), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize(
    "tokens",
    [[{0}, {0}], [{0}, {3, 9, 12}], [{12}, set()], [set(range(13)), {1}], [set(), set()]],
    ids=["first", "uneven", "one entry", "all", "none"],
)
def test_equals_the_paper(tokens, kernel):
    layer, x, flags = _layer(kernel=kernel), _x(2, 13), _flags(2, 13, tokens)
    _assert_same(layer, layer(x, x, x, is_global=flags), _paper(layer, x, flags), x)


def test_padding_and_integer_flags():
    layer, x, flags = _layer(), _x(2, 13), _flags(2, 13, [{0, 11}, {5}])
    real = torch.ones(2, 13, dtype=torch.bool)
    real[0, 10:] = False
    ours = layer(x, x, x, real.long(), is_global=flags.long())
    flags[0, 11] = False  # a padding token is not global
    _assert_same(layer, ours, _paper(layer, x, flags, real=real), x)


def test_packed_documents_keep_their_global_tokens_apart():
    layer, x, flags = _layer(), _x(2, 13), _flags(2, 13, [{0, 6}, {2}])
    document = torch.tensor([[0] * 6 + [1] * 7, [4] * 5 + [7] * 6 + [-1] * 2])
    bound = bind_attention(layer.pattern, num_heads=H, query_length=13, document=document, is_global=flags)
    _assert_same(layer, layer(x, x, x, bound=bound), _paper(layer, x, flags, document=document), x)


@pytest.mark.parametrize("shape", [(2, 13, 13), (1, 13, 13), (2, 1, 13, 13), (2, H, 13, 13)])
def test_explicit_mask_also_narrows_global_rows(shape):
    layer, x, flags = _layer(), _x(2, 13), _flags(2, 13, [{0}, {5, 8}])
    narrow = torch.rand(13, 13, generator=torch.Generator().manual_seed(0)) < 0.7
    ours = layer(x, x, x, narrow.expand(shape), is_global=flags)
    _assert_same(layer, ours, _paper(layer, x, flags, narrow=narrow), x)


def test_composition_narrows_global_rows():
    layer, x = _layer(Longformer(radius=RADIUS) & Causal()), _x(2, 13)
    flags = _flags(2, 13, [{4}, {0, 9}])
    narrow = torch.ones(13, 13, dtype=torch.bool).tril()
    _assert_same(layer, layer(x, x, x, is_global=flags), _paper(layer, x, flags, narrow=narrow), x)


def test_rotation_turns_global_rows_by_their_own_positions():
    layer, x, flags = _layer(), _x(2, 13), _flags(2, 13, [{0, 7}, {12}])
    size = M // H
    bound = bind_attention(
        layer.pattern,
        num_heads=H,
        query_length=13,
        is_global=flags,
        rotation=Rope(base=100.0).rotation(torch.arange(13)[None], size, torch.float64),
    )

    def turn(vector, position):
        half = size // 2
        angle = torch.tensor([position * 100.0 ** (-2 * i / size) for i in range(half)], dtype=torch.float64)
        turned = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((turned.real, turned.imag))

    _assert_same(layer, layer(x, x, x, bound=bound), _paper(layer, x, flags, turn=turn), x)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_alibi_counts_the_distance_from_global_tokens(kernel):
    layer, x, flags = _layer(kernel=kernel), _x(2, 13), _flags(2, 13, [{0, 7}, {12}])
    bound = bind_attention(layer.pattern, num_heads=H, query_length=13, is_global=flags, bias=Alibi().bias(H))
    _assert_same(layer, layer(x, x, x, bound=bound), _paper(layer, x, flags, slopes=[2**-4, 2**-8]), x)


def test_uneven_global_tokens_equal_each_entry_alone():
    """Case B07."""
    layer, x, flags = _layer(), _x(3, 32), _flags(3, 32, [{0}, {0, 5, 31}, set()])
    out, weights = layer(x, x, x, is_global=flags, return_weights=True)
    for entry in range(3):
        one = slice(entry, entry + 1)
        alone, own = layer(x[one], x[one], x[one], is_global=flags[one], return_weights=True)
        torch.testing.assert_close(out[one], alone, rtol=0, atol=1e-10)
        torch.testing.assert_close(weights[one], own, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, H, 32, dtype=torch.float64), rtol=0, atol=1e-10)
    distance = (torch.arange(32)[:, None] - torch.arange(32)).abs()
    seen = (distance <= RADIUS) | flags[:, None, :] | flags[:, :, None]
    assert torch.equal(weights > 0, seen[:, None].expand(3, H, 32, 32))


def test_global_rows_end_where_their_document_ends():
    """A composition with BigBird, whose blocks depend on the length of the document."""
    layer, x = _layer(Longformer(radius=2) & BigBird(block_size=4, random_blocks=1)), _x(2, 80)
    flags, real = _flags(2, 80, [{0, 20}, {3}]), torch.arange(80) < torch.tensor([[37], [80]])
    out = layer(x, x, x, real, is_global=flags)
    short = x[:1, :37]
    torch.testing.assert_close(out[:1, :37], layer(short, short, short, is_global=flags[:1, :37]))


def test_weights_reflect_the_global_rows():
    layer, x, flags = _layer(), _x(1, 13), _flags(1, 13, [{6}])
    _, weights = layer(x, x, x, is_global=flags, return_weights=True)
    q, k = layer.w_q_global(x)[0, 6].view(H, -1), layer.w_k_global(x)[0].view(13, H, -1)
    wanted = torch.softmax(torch.einsum("hd,shd->hs", q, k) / (M // H) ** 0.5, -1)
    torch.testing.assert_close(weights[0, :, 6], wanted, rtol=0, atol=1e-12)


def test_global_projections_start_as_copies_in_storage_of_their_own():
    layer = _layer(distinct=False)
    pairs = [(layer.w_q, layer.w_q_global), (layer.w_k, layer.w_k_global), (layer.w_v, layer.w_v_global)]
    for ordinary, own in pairs:
        assert torch.equal(ordinary.weight, own.weight)
        assert torch.equal(ordinary.bias, own.bias)
        assert ordinary.weight.data_ptr() != own.weight.data_ptr()
    x, flags = _x(1, 13), _flags(1, 13, [{0}])
    layer(x, x, x, is_global=flags).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert all(not torch.equal(ordinary.weight, own.weight) for ordinary, own in pairs)


def test_pattern_without_globals_has_no_global_projections():
    assert not any("global" in name for name, _ in MultiHeadAttention(M, H).named_parameters())


@pytest.mark.parametrize("tokens", [None, [set(), set()], [{0}, set()]], ids=["no flags", "none set", "one entry"])
def test_every_parameter_gets_a_gradient(tokens):
    """Case B42: a rank without global tokens owes the others a gradient too."""
    layer, x = _layer(), _x(2, 13)
    flags = None if tokens is None else _flags(2, 13, tokens)
    layer(x, x, x, is_global=flags).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        if "global" in name and not (tokens and tokens[0]):
            assert (parameter.grad == 0).all(), name


def test_global_rows_cost_no_square_of_the_length(monkeypatch):
    """The rows of a few global tokens are computed apart: no call sees all queries as global."""
    import longattn.nn.attention as module

    shapes, original = [], module.attention

    def spy(q, k, v, bound, **options):
        shapes.append((q.shape[2], k.shape[2], type(bound.pattern).__name__, bound.query_is_global_BL, bound.mask_BHLS))
        return original(q, k, v, bound, **options)

    monkeypatch.setattr(module, "attention", spy)
    layer, x = _layer(), _x(2, 40)
    layer(x, x, x, is_global=_flags(2, 40, [{0}, {0, 9, 10}]))
    assert shapes == [(40, 40, "Longformer", None, None), (3, 40, "Dense", None, None)]
