"""Projection onto the vocabulary, and the loss over it without ever holding all logits.

Shapes: N tokens, M d_model, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

_TILE_LOGITS = 1 << 22
"""Logits held at a time: 16 MiB in fp32."""


class TokenLosses(NamedTuple):
    """What a projection says of the tokens that are wanted."""

    loss_sum: Tensor
    """Sum of the cross-entropies in nats, a scalar of at least fp32, differentiable."""

    losses: Tensor
    """(N,): the cross-entropies, of at least fp32, without gradient."""

    predictions: Tensor
    """(N,) int64: the likeliest token."""


class VocabularyProjection(nn.Linear):
    """d_model -> vocabulary; with the tokens wanted it returns their losses instead of logits."""

    def forward(self, hidden: Tensor, wanted: Tensor | None = None) -> Any:
        """(..., M) -> logits (..., V); or with `wanted` (N,) int64: (N, M) -> TokenLosses.

        Logits are made, used and dropped in tiles of tokens, and their gradient is taken in the same pass (as Hsu et
        al. 2024, arXiv 2410.10989, sec. 3.2): memory is O(N + V), nothing is computed twice, and the arithmetic of the
        loss is in fp32 (fp64 for fp64).
        """
        if wanted is None:
            return super().forward(hidden)
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            hidden = hidden.to(torch.get_autocast_dtype(device))
        return TokenLosses(*_TiledCrossEntropy.apply(hidden, self.weight, self.bias, wanted))  # type: ignore[no-untyped-call]


class _TiledCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NM: Tensor, weight_VM: Tensor, bias_V: Tensor, wanted_N: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        precise = torch.promote_types(hidden_NM.dtype, torch.float32)
        grads = [
            torch.zeros_like(x, dtype=precise) if needed else None
            for x, needed in zip((hidden_NM, weight_VM, bias_V), ctx.needs_input_grad, strict=False)
        ]
        losses_N = hidden_NM.new_empty(hidden_NM.shape[0], dtype=precise)
        predictions_N = torch.empty_like(wanted_N)
        weight, bias = weight_VM.to(hidden_NM.dtype), bias_V.to(hidden_NM.dtype)
        step = max(1, _TILE_LOGITS // weight_VM.shape[0])
        with torch.autocast(hidden_NM.device.type, enabled=False):
            for start in range(0, hidden_NM.shape[0], step):
                tile = slice(start, start + step)
                logits_TV = functional.linear(hidden_NM[tile], weight, bias).to(precise)
                lse_T = logits_TV.logsumexp(-1)
                losses_N[tile] = lse_T - logits_TV.gather(1, wanted_N[tile, None]).squeeze(1)
                predictions_N[tile] = logits_TV.argmax(-1)
                if any(ctx.needs_input_grad):
                    grad_TV = logits_TV.sub_(lse_T[:, None]).exp_()
                    grad_TV.scatter_add_(1, wanted_N[tile, None], torch.full_like(lse_T, -1.0)[:, None])
                    _add_gradients(grad_TV, hidden_NM[tile], weight, tile, *grads)
        ctx.save_for_backward(*grads)
        ctx.dtypes = [x.dtype for x in (hidden_NM, weight_VM, bias_V)]
        ctx.mark_non_differentiable(losses_N, predictions_N)
        return losses_N.sum(), losses_N, predictions_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *(None if x is None else (x * grad).to(dtype) for x, dtype in saved), None


def _add_gradients(
    grad_TV: Tensor,
    hidden_TM: Tensor,
    weight_VM: Tensor,
    tile: slice,
    grad_hidden_NM: Tensor | None,
    grad_weight_VM: Tensor | None,
    grad_bias_V: Tensor | None,
) -> None:
    """Add what a tile's gradient of logits gives; products are in the dtype of the weight, sums in at least fp32."""
    if grad_bias_V is not None:
        grad_bias_V += grad_TV.sum(0)
    grad_TV = grad_TV.to(weight_VM.dtype)
    if grad_hidden_NM is not None:
        grad_hidden_NM[tile] = grad_TV @ weight_VM
    if grad_weight_VM is not None and grad_weight_VM.dtype == grad_TV.dtype:
        grad_weight_VM.addmm_(grad_TV.t(), hidden_TM)
    elif grad_weight_VM is not None:
        grad_weight_VM += grad_TV.t() @ hidden_TM
