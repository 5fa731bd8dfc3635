"""Parameter groups and optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from longattn.errors import ConfigError
from longattn.models import EncoderConfig, MaskedLanguageModel
from longattn.patterns import Longformer
from longattn.training.optimizer import OptimizerConfig, build_optimizer, parameter_groups


@pytest.fixture
def model() -> MaskedLanguageModel:
    config = EncoderConfig(
        vocab_size=20, d_model=8, num_heads=2, num_layers=2, d_ff=16, pattern=Longformer(radius=2), position="learned"
    )
    return MaskedLanguageModel(config)


def names_of(model: nn.Module, group: dict) -> set[str]:
    chosen = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}


def test_norms_and_biases_do_not_decay_and_matrices_do(model):
    decaying, fixed = parameter_groups(model, 0.1, decay_embeddings=True)
    assert decaying["weight_decay"] == 0.1
    assert fixed["weight_decay"] == 0.0
    kept = names_of(model, fixed)
    assert all("norm" in name or name.endswith("bias") or name == "transform.2.weight" for name in kept)
    assert any("norm" in name for name in kept)
    assert any(name.endswith("bias") for name in kept)
    assert all(name.endswith("weight") and "norm" not in name for name in names_of(model, decaying))


def test_every_parameter_is_in_one_group_once_though_the_decoder_is_tied(model):
    groups = parameter_groups(model, 0.1, decay_embeddings=True)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in model.parameters())


def test_embeddings_can_be_left_out_of_the_decay(model):
    decaying, _ = parameter_groups(model, 0.1, decay_embeddings=False)
    assert not any("embeddings" in name for name in names_of(model, decaying))
    assert any("embeddings" in name for name in names_of(model, parameter_groups(model, 0.1, decay_embeddings=True)[0]))


def test_frozen_parameters_are_left_out(model):
    model.encoder.requires_grad_(False)
    ids = {id(p) for group in parameter_groups(model, 0.1, decay_embeddings=True) for p in group["params"]}
    assert ids == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}


def test_the_settings_reach_the_optimizer(model):
    adamw = build_optimizer(model, "adamw", 3e-4, OptimizerConfig(beta1=0.8, beta2=0.9, epsilon=1e-7))
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.defaults["betas"] == (0.8, 0.9)
    assert adamw.defaults["eps"] == 1e-7
    assert adamw.param_groups[0]["lr"] == 3e-4
    sgd = build_optimizer(model, "sgd", 1.0, OptimizerConfig(momentum=0.5))
    assert isinstance(sgd, torch.optim.SGD)
    assert sgd.param_groups[0]["momentum"] == 0.5
    assert build_optimizer(model, "none", 1.0, OptimizerConfig()) is None


@pytest.mark.parametrize(("name", "rate"), [("adam", 1.0), ("adamw", 0.0), ("adamw", -1.0), ("adamw", float("nan"))])
def test_wrong_names_and_rates_are_refused(model, name, rate):
    with pytest.raises(ConfigError):
        build_optimizer(model, name, rate, OptimizerConfig())


@pytest.mark.parametrize(("field", "value"), [("beta1", 1.0), ("beta2", -0.1), ("momentum", 2.0), ("weight_decay", -1)])
def test_wrong_settings_are_quoted(field, value):
    with pytest.raises(ConfigError, match=f"{field}.*{value}"):
        OptimizerConfig(**{field: value})
