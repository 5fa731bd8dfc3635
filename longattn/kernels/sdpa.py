"""PyTorch's own dense attention; a pattern becomes an L x S mask, so the work is O(n²) whatever the pattern.

The fastest choice where nearly everything is visible, and the honest baseline for sparse kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longattn.kernels.base import Kernel, Request
from longattn.patterns import BoundPattern, Causal, Dense

_LAYOUT_BLOCK = 256  # tokens; only whether all blocks are full is asked
_CALL_COST = 1e5
_MASKED_PAIR_COST = 1.6  # a pair under a mask that holds every pair, against one without


class Sdpa(Kernel):
    """torch.nn.functional.scaled_dot_product_attention, and on CPU the operator below it, which also gives lse."""

    name = "sdpa"

    @classmethod
    def missing(cls) -> str | None:
        if not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
            return f"torch {torch.__version__} has no flash attention operator for CPU"
        return None

    @classmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        if request.dropout is not None:
            return "its dropout is not the one that longattn's kernels share; set the attention dropout to 0"
        if request.bias is not None:
            return "a score bias would need a tensor of heads x queries x keys"
        if request.needs_lse and request.device.type != "cpu":
            return f"it gives no differentiable log-sum-exp on {request.device.type}"
        return None

    @classmethod
    def cost(cls, request: Request) -> float:
        bound = request.bound
        pairs = bound.query_length * bound.key_length * request.batch * bound.num_heads
        form = _mask_form(bound)
        if form == "causal":
            return _CALL_COST + 0.5 * pairs
        return _CALL_COST + pairs * (_MASKED_PAIR_COST if form == "pairs" else 1.0)

    @classmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor | None]:
        bound, form = request.bound, _mask_form(request.bound)
        mask_BHLS = _mask(bound, form, request.device)
        empty_BHL = None if mask_BHLS is None else ~mask_BHLS.any(-1)
        if request.device.type == "cpu":
            additive = None if mask_BHLS is None else _additive(mask_BHLS, q_BHLD.dtype)
            out_BHLD, lse_BHL = _CpuSdpa.apply(  # type: ignore[no-untyped-call]
                q_BHLD, k_BHSD, v_BHSD, additive, empty_BHL, form == "causal", request.scale
            )
            return out_BHLD, lse_BHL
        if mask_BHLS is not None and empty_BHL is not None:
            mask_BHLS = mask_BHLS | empty_BHL.unsqueeze(-1)  # a row that sees nothing is NaN in some backends
        out_BHLD = torch.nn.functional.scaled_dot_product_attention(
            q_BHLD, k_BHSD, v_BHSD, attn_mask=mask_BHLS, is_causal=form == "causal", scale=request.scale
        )
        if empty_BHL is not None:
            out_BHLD = out_BHLD.masked_fill(empty_BHL.unsqueeze(-1), 0.0)
        return out_BHLD, None


def _mask_form(bound: BoundPattern) -> str:
    """Return the mask needed: "none", "causal" (told to the operator), "keys" (one row for all queries) or "pairs"."""
    local = bound.without_globals()
    only_padding = len(local.batch_tensors) == 1 and local.key_padding_BS is not None
    if (not local.batch_tensors or only_padding) and _sees_everything(bound):
        return "keys" if only_padding else "none"
    square = bound.query_length == bound.key_length and bound.query_start == bound.key_start
    return "causal" if isinstance(bound.pattern, Causal) and not bound.batch_tensors and square else "pairs"


def _sees_everything(bound: BoundPattern) -> bool:
    if isinstance(bound.pattern, Dense):
        return True
    layout = bound.pattern_layout(bound.pattern.natural_block_size or _LAYOUT_BLOCK)
    return bool(layout.full.all()) and layout.density == 1.0


def _mask(bound: BoundPattern, form: str, device: torch.device) -> Tensor | None:
    """Return a bool mask that broadcasts to (B, H, L, S), or None where the operator needs none."""
    if form == "keys":
        assert bound.key_padding_BS is not None
        return bound.key_padding_BS[:, None, None, :]
    return bound.mask(device) if form == "pairs" else None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


class _CpuSdpa(torch.autograd.Function):
    """The CPU operator with its log-sum-exp made differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHLD: Tensor,
        k_BHSD: Tensor,
        v_BHSD: Tensor,
        mask: Tensor | None,
        empty_BHL: Tensor | None,
        is_causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        out_BHLD, lse_BHL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_BHLD, k_BHSD, v_BHSD, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        ctx.save_for_backward(q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL, mask)
        ctx.is_causal, ctx.scale, ctx.empty_BHL = is_causal, scale, empty_BHL
        ctx.set_materialize_grads(False)
        if empty_BHL is not None:
            lse_BHL = lse_BHL.masked_fill(empty_BHL, -torch.inf)
        return out_BHLD, lse_BHL.contiguous()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out_BHLD: Tensor | None, grad_lse_BHL: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL, mask = ctx.saved_tensors
        if grad_out_BHLD is None:
            grad_out_BHLD = torch.zeros_like(out_BHLD)
        head_dim = q_BHLD.shape[-1]
        inputs = [grad_out_BHLD, q_BHLD, k_BHSD, v_BHSD, out_BHLD]
        if grad_lse_BHL is not None:
            if ctx.empty_BHL is not None:
                grad_lse_BHL = grad_lse_BHL.masked_fill(ctx.empty_BHL, 0.0)
            inputs = _with_lse_gradient(inputs, grad_lse_BHL)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *inputs, lse_BHL, 0.0, ctx.is_causal, attn_mask=mask, scale=ctx.scale
        )
        grad_q, grad_k, grad_v = (grad[..., :head_dim] for grad in grads)
        return grad_q, grad_k, grad_v, None, None, None, None


def _with_lse_gradient(inputs: list[Tensor], grad_lse_BHL: Tensor) -> list[Tensor]:
    """Widen the backward operator's inputs by columns that make it add the gradient of lse.

    The operator computes dS = P * (dO · Vᵀ - rowsum(dO * O)). A further column with dO = 1, V = 0 and O = -dlse leaves
    dO · Vᵀ alone and turns the row sum into rowsum(dO * O) - dlse, which is what a gradient of lse asks for. The other
    columns are zero and keep the width a multiple of 16.
    """
    widened = [torch.nn.functional.pad(x, (0, 16)) for x in inputs]
    column = inputs[1].shape[-1]
    widened[0][..., column] = 1.0
    widened[4][..., column] = -grad_lse_BHL.to(inputs[4].dtype)
    return widened
