"""EncoderConfig: checked when made, and the same after a trip through JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from longattn.errors import ConfigError
from longattn.models import EncoderConfig
from longattn.nn import Learned, Rope
from longattn.patterns import BigBird, BlockSparse, Causal, Dense, Longformer, SlidingWindow

SMALL = {"vocab_size": 32, "d_model": 16, "num_heads": 2, "num_layers": 4, "d_ff": 32}


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig(vocab_size=32),
        EncoderConfig(**SMALL, pattern=Longformer(radius=3, dilation=2) & Causal(), position=Learned(max_length=9)),
        EncoderConfig(
            **SMALL, pattern=BlockSparse([[1, 0], [1, 1]], block_size=8), position="alibi", kernel="reference"
        ),
        EncoderConfig(
            **SMALL,
            layer_patterns=[Dense(), SlidingWindow(radius=2), BigBird(block_size=4, seed=9)],
            position=Rope(base=1e6),
            norm="rms_norm",
            norm_placement="post",
            activation="geglu",
            pad_token_id=1,
            tie_decoder=False,
        ),
    ],
)
def test_round_trip_through_json(config):
    again = EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)


def test_every_field_has_a_docstring():
    source = __import__("inspect").getsource(EncoderConfig)
    for field in dataclasses.fields(EncoderConfig):
        after = source.split(f"\n    {field.name}: ", 1)[1].split("\n", 2)[1]
        assert after.startswith('    """'), field.name


def test_takes_its_first_fields_by_position():
    config = EncoderConfig(100, 32, 4, 2, 64, SlidingWindow(3))
    assert config == EncoderConfig(
        vocab_size=100, d_model=32, num_heads=4, num_layers=2, d_ff=64, pattern=SlidingWindow(3)
    )


def test_cycle_of_patterns_repeats_over_the_layers():
    window = SlidingWindow(radius=2)
    config = EncoderConfig(**(SMALL | {"num_layers": 5}), layer_patterns=(Dense(), window, window))
    assert [config.pattern_of(layer) for layer in range(5)] == [Dense(), window, window, Dense(), window]


def test_random_blocks_differ_by_layer():
    config = EncoderConfig(**SMALL, pattern=BigBird(block_size=4))
    assert [config.pattern_of(layer).layer for layer in range(4)] == [0, 1, 2, 3]


def test_patterns_are_accepted_as_their_configs():
    config = EncoderConfig(**SMALL, pattern={"class": "SlidingWindow", "radius": 7})
    assert config.pattern == SlidingWindow(radius=7)
    assert config.pattern_of(3) == SlidingWindow(radius=7)


def test_knows_whether_any_layer_uses_global_tokens():
    assert EncoderConfig(**SMALL, layer_patterns=(Dense(), Longformer(radius=2))).uses_globals
    assert not EncoderConfig(**SMALL, pattern=BigBird(block_size=4)).uses_globals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, "num_heads 3 and d_model 16; 2 or 4 heads would do"),
        ({"vocab_size": 0}, "vocab_size must be an integer >= 1, got 0"),
        ({"num_layers": 1.5}, "num_layers must be an integer >= 1, got 1.5"),
        ({"d_ff": -1}, "d_ff must be an integer >= 1, got -1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\), got -0.1"),
        ({"norm": "layernorm"}, "norm must be one of layer_norm, rms_norm, got 'layernorm' .did you mean 'layer_norm'"),
        ({"norm_placement": "mid"}, "norm_placement must be one of pre, post, got 'mid'"),
        ({"activation": "relu"}, "activation must be one of gelu, geglu, got 'relu'"),
        ({"norm_eps": 0.0}, "norm_eps must be > 0, got 0.0"),
        ({"initializer_range": -1.0}, "initializer_range must be > 0, got -1.0"),
        ({"pad_token_id": 32}, "got 32 and vocab_size 32"),
        ({"kernel": "chunk"}, "kernel 'chunk' is unknown"),
        ({"position": "rotary"}, "position 'rotary' is unknown"),
        ({"num_heads": 16}, "even head dimension, got d_model 16 / num_heads 16 = 1"),
        ({"pattern": "Dense"}, "pattern must be a Pattern .* got 'Dense'"),
        ({"pattern": {"class": "Dens"}}, "pattern class 'Dens' is unknown .did you mean 'Dense'"),
        ({"pattern": {"class": "SlidingWindow", "radius": -1}}, "radius must be an integer >= 0, got -1"),
        ({"layer_patterns": (Dense(),) * 5}, "1 to num_layers = 4 patterns, got 5"),
        ({"layer_patterns": ()}, "1 to num_layers = 4 patterns, got 0"),
        ({"layer_patterns": Dense()}, "layer_patterns must be a sequence of patterns, got Dense"),
        ({"layer_patterns": (Dense(), 3)}, r"layer_patterns\[1\] must be a Pattern .* got 3"),
        ({"pattern": Dense(), "layer_patterns": (Dense(),)}, "contradict each other"),
    ],
)
def test_wrong_values_are_quoted(change, message):
    with pytest.raises(ConfigError, match=message) as raised:
        EncoderConfig(**(SMALL | change))
    assert "\n" not in str(raised.value)


def test_from_dict_names_unknown_and_missing_fields():
    with pytest.raises(ConfigError, match=r"no field 'num_head' .did you mean 'num_heads'"):
        EncoderConfig.from_dict({"vocab_size": 3, "num_head": 2})
    with pytest.raises(ConfigError, match="needs vocab_size"):
        EncoderConfig.from_dict({"d_model": 8})
