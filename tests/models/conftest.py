"""A small model, for tests of what models do."""

from __future__ import annotations

import pytest
import torch

from longattn.models import EncoderConfig, MaskedLanguageModel


@pytest.fixture
def small_model():
    """Return a builder: options of EncoderConfig -> model in evaluation mode, with the same weights each time."""

    def build(dtype=torch.float32, model=MaskedLanguageModel, **options):
        defaults = {"vocab_size": 40, "d_model": 16, "num_heads": 2, "num_layers": 2, "d_ff": 24, "dropout": 0.0}
        torch.manual_seed(0)
        # Weights larger than usual, so that attention is far from uniform.
        return model(EncoderConfig(**(defaults | {"initializer_range": 0.2} | options))).to(dtype).eval()

    return build


@pytest.fixture
def tokens():
    """Return a builder: (batch, length) -> input ids from 1 to 39."""

    def build(batch, length, seed=0):
        return torch.randint(1, 40, (batch, length), generator=torch.Generator().manual_seed(seed))

    return build
