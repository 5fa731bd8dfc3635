"""Position schemes are found by name and go through plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from longattn.errors import ConfigError
from longattn.nn import Alibi, Learned, NoPosition, Position, Rope, Sinusoidal, position_from_config, positions


def test_every_scheme_is_found_by_name():
    found = positions()
    expected = {"learned": Learned, "sinusoidal": Sinusoidal, "rope": Rope, "alibi": Alibi, "none": NoPosition}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "rope", "alibi", "none"])
def test_name_builds_the_default(name):
    assert position_from_config(name) == positions()[name]()


@pytest.mark.parametrize(
    "position",
    [
        Learned(max_length=7),
        Sinusoidal(base=5.0),
        Rope(base=160_000.0, scaling="ntk", factor=4.0),
        Alibi(),
        NoPosition(),
    ],
)
def test_round_trip_through_json(position):
    assert position_from_config(json.loads(json.dumps(position.to_config()))) == position
    assert position_from_config(position) is position
    assert hash(position) == hash(position_from_config(position.to_config()))


def test_user_defined_scheme_is_found():
    @dataclass(frozen=True, kw_only=True)
    class Elsewhere(Position):
        name = "elsewhere"
        step: int = 2

    assert position_from_config("elsewhere") == Elsewhere(step=2)
    assert position_from_config({"class": "Elsewhere", "step": 3}) == Elsewhere(step=3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("rop", "position 'rop' is unknown .did you mean 'rope'"),
        ({"class": "Rop"}, "position class 'Rop' is unknown .did you mean 'Rope'"),
        ({"base": 1.5}, "position class None is unknown"),
        ({"class": "Rope", "bas": 2.0}, "Rope has no field 'bas' .did you mean 'base'"),
        (3, "got 3"),
    ],
)
def test_wrong_configs_are_named(config, message):
    with pytest.raises(ConfigError, match=message):
        position_from_config(config)
