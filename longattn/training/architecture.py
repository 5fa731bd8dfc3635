"""The architecture options that a user seldom touches, apart from the flat `--model.…` flags."""

from __future__ import annotations

from dataclasses import dataclass

from longattn.models import EncoderConfig
from longattn.nn.activated_linear import Activation
from longattn.nn.block import NormPlacement
from longattn.nn.norm import Norm


@dataclass(frozen=True, kw_only=True)
class ArchitectureConfig:
    """How the layers are built; the fields and defaults of EncoderConfig, which checks them."""

    norm: Norm = EncoderConfig.norm
    """Kind of normalisation."""

    norm_placement: NormPlacement = EncoderConfig.norm_placement
    """pre: before each part, and once at the end; post: after each residual sum."""

    norm_eps: float = EncoderConfig.norm_eps
    """Added to the variance in norms."""

    activation: Activation = EncoderConfig.activation
    """Activation of the feed-forward; geglu has a gate."""

    dropout: float = EncoderConfig.dropout
    """Probability, 0 to 1, to drop an element of the embeddings and of each part's output, in training."""

    attention_dropout: float = EncoderConfig.attention_dropout
    """Probability, 0 to 1, to drop an attention weight, in training."""

    tie_decoder: bool = EncoderConfig.tie_decoder
    """Whether the vocabulary projection shares its weight with the token embedding."""

    initializer_range: float = EncoderConfig.initializer_range
    """Standard deviation of initial weights."""
