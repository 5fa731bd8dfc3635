"""Optimizers and their parameter groups (AdamW: Loshchilov and Hutter 2019, arXiv 1711.05101)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from longattn.discovery import nearest
from longattn.errors import ConfigError

OPTIMIZERS = ("adamw", "sgd", "none")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer besides its name and its learning rate."""

    weight_decay: float = 0.01
    """Decoupled decay per step as a fraction of the learning rate; norms and biases never decay."""

    decay_embeddings: bool = True
    """Whether token and position tables decay, as in BERT, RoBERTa and ModernBERT."""

    beta1: float = 0.9
    """AdamW: decay of the mean of gradients, 0 to 1."""

    beta2: float = 0.98
    """AdamW: decay of the mean of squared gradients, 0 to 1."""

    epsilon: float = 1e-6
    """AdamW: added to the root of the mean squared gradient."""

    momentum: float = 0.0
    """SGD: 0 to 1; 0 is plain SGD."""

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2", "momentum"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"optimization.{name} must be at least 0 and below 1, got {getattr(self, name)}")
        for name in ("weight_decay", "epsilon"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"optimization.{name} must not be negative, got {getattr(self, name)}")


def parameter_groups(model: nn.Module, weight_decay: float, *, decay_embeddings: bool) -> list[dict[str, Any]]:
    """Return the trainable parameters in two groups, those that decay and those that do not; an empty one is left out.

    Norms and every parameter of one axis (biases, scales) do not decay; matrices do. A tied parameter appears once.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    decaying: list[nn.Parameter] = []
    fixed: list[nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        kept = parameter.ndim < 2 or (not decay_embeddings and id(parameter) in embeddings)
        (fixed if kept else decaying).append(parameter)
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": fixed, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, name: str, learning_rate: float, config: OptimizerConfig) -> Optimizer | None:
    """Return the optimizer called `name` over the trainable parameters of `model`; None for "none"."""
    check_optimizer(name, learning_rate)
    if name == "none":
        return None
    groups = parameter_groups(model, config.weight_decay, decay_embeddings=config.decay_embeddings)
    if not groups:
        raise ConfigError("the model has no trainable parameter: unfreeze some, or choose --model.optimizer none")
    if name == "sgd":
        return SGD(groups, lr=learning_rate, momentum=config.momentum)
    fused = all(parameter.device.type == "cuda" for group in groups for parameter in group["params"])
    return AdamW(groups, lr=learning_rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=fused)


def check_optimizer(name: str, learning_rate: float) -> None:
    """Raise ConfigError unless `name` is a known optimizer and `learning_rate` (the peak) is positive and finite."""
    if name not in OPTIMIZERS:
        raise ConfigError(f"optimizer {name!r} is unknown{nearest(name, OPTIMIZERS)}: choose one of {OPTIMIZERS}")
    if not (learning_rate > 0.0 and torch.isfinite(torch.tensor(learning_rate))):
        raise ConfigError(f"learning_rate must be positive and finite, got {learning_rate}")
