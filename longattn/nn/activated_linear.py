"""A linear map of an activation, which keeps only what the activation is of.

Shapes: N tokens, P hidden units before the activation, F after it, M width of the output.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Activation = Literal["gelu", "geglu"]

_TILE_NUMBERS = 1 << 20  # of an activation held at a time on CPU: 4 MiB in fp32, which stays in cache


class ActivatedLinear(nn.Module):
    """activation(x) Wᵀ + b. "geglu" gates the first half of x by the second, so x is twice as wide as F.

    For the backward pass it keeps x alone, and works in tiles of tokens that fit a cache: the activation, as large
    as x, is never there as a whole. No nn.Linear, since what goes in is not what W is applied to.
    """

    def __init__(self, in_features: int, out_features: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        linear = nn.Linear(in_features, out_features)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., P) -> (..., M)."""
        if torch.compiler.is_compiling():  # which fuses, and chooses what to keep
            return functional.linear(_activate(x, self.activation), self.weight, self.bias)
        autocast = torch.is_autocast_enabled(x.device.type)
        weight, bias = (w.to(x.dtype) if autocast else w for w in (self.weight, self.bias))
        out_NM: Tensor = _ActivatedLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias, self.activation)  # type: ignore[no-untyped-call]
        return out_NM.view(*x.shape[:-1], out_NM.shape[-1])

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, activation={self.activation!r}"


def _activate(x_NP: Tensor, activation: Activation) -> Tensor:
    if activation == "gelu":
        return functional.gelu(x_NP)
    value_NF, gate_NF = x_NP.chunk(2, dim=-1)
    return functional.gelu(value_NF) * gate_NF


def _put_gradient(grad_NF: Tensor, x_NP: Tensor, activation: Activation, grad_x_NP: Tensor) -> None:
    """Write the gradient of `_activate` at `x_NP` into `grad_x_NP`."""
    gelu_backward = torch.ops.aten.gelu_backward.grad_input
    if activation == "gelu":
        gelu_backward(grad_NF, x_NP, grad_input=grad_x_NP)
        return
    value_NF, gate_NF = x_NP.chunk(2, dim=-1)
    grad_value_NF, grad_gate_NF = grad_x_NP.chunk(2, dim=-1)
    gelu_backward(grad_NF * gate_NF, value_NF, grad_input=grad_value_NF)
    torch.mul(grad_NF, functional.gelu(value_NF), out=grad_gate_NF)


def _tiles(x_NP: Tensor) -> list[slice]:
    """Return slices of tokens: on CPU such that a tile stays in cache, elsewhere all of them at once."""
    tokens = x_NP.shape[0]
    step = max(1, _TILE_NUMBERS // x_NP.shape[1]) if x_NP.device.type == "cpu" else max(1, tokens)
    return [slice(start, start + step) for start in range(0, tokens, step)]


class _ActivatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NP: Tensor, weight_MF: Tensor, bias_M: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(x_NP, weight_MF)
        ctx.activation = activation
        out_NM = x_NP.new_empty(x_NP.shape[0], weight_MF.shape[0])
        with torch.autocast(x_NP.device.type, enabled=False):
            for tile in _tiles(x_NP):
                torch.addmm(bias_M, _activate(x_NP[tile], activation), weight_MF.t(), out=out_NM[tile])
        return out_NM

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NM: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_NP, weight_MF = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x_NP = torch.empty_like(x_NP) if needs_x else None
        grad_weight_MF = torch.zeros_like(weight_MF) if needs_weight else None
        with torch.autocast(x_NP.device.type, enabled=False):  # users may call backward within autocast
            for tile in _tiles(x_NP):
                if grad_weight_MF is not None:
                    grad_weight_MF.addmm_(grad_NM[tile].t(), _activate(x_NP[tile], ctx.activation))
                if grad_x_NP is not None:
                    _put_gradient(grad_NM[tile] @ weight_MF, x_NP[tile], ctx.activation, grad_x_NP[tile])
        return grad_x_NP, grad_weight_MF, grad_NM.sum(0) if needs_bias else None, None
