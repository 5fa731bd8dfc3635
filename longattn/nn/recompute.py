"""What is computed again in the backward pass instead of being kept (Chen et al. 2016, arXiv 1604.06174)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

ActivationCheckpointing = Literal["none", "selective", "attention", "layer"]
"""What a layer computes again: "none"; "selective", all but products of matrices and attention, which costs next to
nothing; "attention", the attention and its projections; "layer", everything but the layer's input."""


def input_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that a linear layer computes `x` in: that of autocast, where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def computed_again(result: Tensor, compute: Callable[[], Tensor]) -> AbstractContextManager[object]:
    """Return a context in which autograd does not keep `result`, but calls `compute` when it needs it.

    `compute` must return the same numbers: no dropout. It runs without gradient and with the autocast of now.
    """
    device = result.device.type
    autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    place = (result.data_ptr(), result.numel(), result.dtype)  # not the tensor: the hooks would keep it

    def pack(tensor: Tensor) -> Tensor | torch.Size:
        same = (tensor.data_ptr(), tensor.numel(), tensor.dtype) == place and tensor.is_contiguous()
        return tensor.shape if same else tensor

    def unpack(packed: Tensor | torch.Size) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with torch.no_grad(), torch.autocast(device, autocast[1], enabled=autocast[0]):
            return compute().view(packed)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
