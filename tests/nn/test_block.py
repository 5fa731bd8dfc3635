"""The encoder layer against its two formulas, and the parts it is made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from longattn.errors import ConfigError
from longattn.nn import Embeddings, EncoderLayer, FeedForward, Learned, MultiHeadAttention, NoPosition, bind_attention
from longattn.nn.norm import make_norm
from longattn.patterns import SlidingWindow

M = 8


def _layer(norm_placement, norm="layer_norm", dropout=0.0):
    torch.manual_seed(0)
    attention = MultiHeadAttention(M, 2, SlidingWindow(radius=1), kernel="reference")
    layer = EncoderLayer(attention, FeedForward(M, 16), norm=norm, norm_placement=norm_placement, dropout=dropout)
    for part in (layer.attention_norm, layer.feed_forward_norm):
        nn.init.normal_(part.weight)
    return layer.double()


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_equals_its_formula(norm_placement, norm):
    layer, x = _layer(norm_placement, norm), torch.randn(2, 5, M, dtype=torch.float64)
    bound = bind_attention(SlidingWindow(radius=1), num_heads=2, query_length=5)
    attention, feed_forward = lambda x: layer.attention(x, x, x, bound=bound), layer.feed_forward
    first, second = layer.attention_norm, layer.feed_forward_norm
    if norm_placement == "pre":
        middle = x + attention(first(x))
        wanted = middle + feed_forward(second(middle))
    else:
        middle = first(x + attention(x))
        wanted = second(middle + feed_forward(middle))
    torch.testing.assert_close(layer(x, bound), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_dropout_acts_in_training_only(norm_placement):
    layer, x = _layer(norm_placement, dropout=0.5), torch.randn(2, 5, M, dtype=torch.float64)
    bound = bind_attention(SlidingWindow(radius=1), num_heads=2, query_length=5)
    assert not torch.equal(layer(x, bound), layer(x, bound))
    layer.eval()
    assert torch.equal(layer(x, bound), _layer(norm_placement)(x, bound))


def test_norms_are_torchs_own():
    x = torch.randn(3, M)
    torch.testing.assert_close(make_norm("layer_norm", M, 1e-3)(x), functional.layer_norm(x, (M,), eps=1e-3))
    torch.testing.assert_close(make_norm("rms_norm", M, 1e-3)(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt())


def test_feed_forwards_equal_their_formulas():
    x = torch.randn(3, M)
    plain, gated = FeedForward(M, 6), FeedForward(M, 6, "geglu")
    wanted = functional.linear(functional.gelu(plain.w_in(x)), plain.w_out.weight, plain.w_out.bias)
    torch.testing.assert_close(plain(x), wanted)
    value, gate = x @ gated.w_in.weight[:6].T, x @ gated.w_in.weight[6:].T
    wanted = functional.gelu(value + gated.w_in.bias[:6]) * (gate + gated.w_in.bias[6:])
    torch.testing.assert_close(gated(x), functional.linear(wanted, gated.w_out.weight, gated.w_out.bias))


def test_embeddings_add_positions_and_normalise():
    embeddings = Embeddings(10, M, position=Learned(max_length=6), pad_token_id=3)
    ids, position_ids = torch.tensor([[1, 3, 2]]), torch.tensor([[0, 4, 1]])
    total = embeddings.token.weight[ids] + embeddings.position.weight[position_ids]
    torch.testing.assert_close(embeddings(ids, position_ids), functional.layer_norm(total, (M,)))
    assert (embeddings.token.weight[3] == 0).all()
    plain = Embeddings(10, M, position=NoPosition())
    torch.testing.assert_close(plain(ids, position_ids), functional.layer_norm(plain.token.weight[ids], (M,)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _layer("before"), "norm_placement must be one of pre, post, got 'before'"),
        (lambda: _layer("pre", norm="batch_norm"), "norm must be one of layer_norm, rms_norm, got 'batch_norm'"),
        (lambda: FeedForward(M, 16, "swiglu"), "activation must be one of gelu, geglu, got 'swiglu'"),
    ],
)
def test_wrong_settings_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
