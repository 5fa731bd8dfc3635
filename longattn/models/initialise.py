"""Initial weights of a model."""

from __future__ import annotations

import math

import torch
from torch import nn

from longattn.models.config import EncoderConfig
from longattn.nn.activated_linear import ActivatedLinear
from longattn.nn.attention import MultiHeadAttention
from longattn.nn.feed_forward import FeedForward


@torch.no_grad()
def initialise(model: nn.Module, config: EncoderConfig) -> None:
    """Draw the weights of `model` from torch's global generator, in the order of its modules.

    Weights of linear layers and embeddings are normal(0, initializer_range), biases 0, norms the identity, as in BERT.
    In a pre-norm encoder the last projection of each residual branch is divided by sqrt(2 * num_layers), so that the
    sum of the branches does not grow with depth (Radford et al. 2019, GPT-2, sec. 2.3). Projections of global tokens
    start as copies of the ordinary ones (Beltagy et al. 2020, sec. 3.3).
    """
    std = config.initializer_range
    for module in model.modules():
        if isinstance(module, nn.Linear | ActivatedLinear):
            module.weight.normal_(0.0, std)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, std)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
    branch_scale = 1.0 / math.sqrt(2 * config.num_layers) if config.norm_placement == "pre" else 1.0
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.copy_projections_to_global()
            module.w_o.weight.mul_(branch_scale)
        elif isinstance(module, FeedForward):
            module.w_out.weight.mul_(branch_scale)
