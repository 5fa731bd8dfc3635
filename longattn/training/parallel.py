"""How a run is spread over memory and devices, as far as it does not change what is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ActivationCheckpointing = Literal["none", "layer"]


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """What to trade for memory."""

    activation_checkpointing: ActivationCheckpointing = "none"
    """layer: keep each layer's input only, and compute the rest again in the backward pass."""
