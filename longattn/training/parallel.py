"""How a run is spread over memory and devices, as far as it does not change what is computed."""

from __future__ import annotations

from dataclasses import dataclass

from longattn.nn.recompute import ActivationCheckpointing


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """What to trade for memory."""

    activation_checkpointing: ActivationCheckpointing = "none"
    """What each layer computes again in the backward pass instead of keeping it: none; selective (norms, next to no
    time); attention (it and its projections); layer (all but the layer's input: least memory, a third more time)."""
