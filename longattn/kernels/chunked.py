"""Attention that visits only the visible blocks, forward and backward, and keeps no scores.

The recomputation of FlashAttention (Dao et al. 2022, arXiv 2205.14135, sec. 3) over the tiles of a block layout: the
backward pass needs q, k, v, the output and the log-sum-exp of each row, so memory is O(n), and the work is O(n · keys
seen). Scores, softmax and sums are in fp32 (fp64 for fp64). Two engines: C++ (`native`) on CPUs with a compiler, and
plain torch (`torch_tiles`) for everything else.

What was tried on CPU, for a window of 256 over 10,240 tokens, forward and backward, in units of the C++ engine (on 2
cores with AVX2): overlapping chunks of 768 keys through SDPA 2.0, a third of their pairs hidden; batched products of
gathered blocks in torch 1.6, much of it memory traffic between operators; in C++, products of 64 x 64 x 64 by MKL take
1.15 times as long as our own, which keep their sums in registers. FlexAttention compiles forward only. Blocks of 32,
48, 64, 96 and 128 tokens: 1.05, 1, 1.05, 1.06, 1.15.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longattn.kernels import native, torch_tiles
from longattn.kernels.base import Kernel, Request

_log = logging.getLogger(__name__)


class Chunked(Kernel):
    """Exact for every pattern, on every device; the kernel for training sparse attention on CPU."""

    name = "chunked"

    @classmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        return None

    @classmethod
    def cost(cls, request: Request) -> float:
        bound = request.bound
        able = native.unsupported_reason(request) is None and native.known_missing() is None
        engine = native if able else torch_tiles
        pairs: int = engine.computed_pairs(request)
        if bound.has_globals:
            pairs += _global_count(bound.query_is_global_BL) * bound.key_length
            pairs += _global_count(bound.key_is_global_BS) * bound.query_length
        cost: float = engine.CALL_COST + engine.PAIR_COST * pairs * request.batch * bound.num_heads
        return cost

    @classmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        out_BHLD, lse_BHL = _ChunkedAttention.apply(q_BHLD, k_BHSD, v_BHSD, request)  # type: ignore[no-untyped-call]
        return out_BHLD, lse_BHL


def engine_for(request: Request) -> ModuleType:
    """Return the module that computes `request`: the C++ operators where they can."""
    if native.unsupported_reason(request) is not None:
        return torch_tiles
    reason = native.missing()
    if reason is not None:
        _announce(reason)
        return torch_tiles
    return native


@functools.cache
def _announce(reason: str) -> None:
    _log.info("attention runs in plain torch, which takes about twice as long as C++: %s", reason)


def _global_count(flags: Tensor | None) -> int:
    return 0 if flags is None or not flags.numel() else int(flags.sum(1).max())


class _ChunkedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        ctx.request, ctx.engine = request, engine_for(request)
        out_BHLD, lse_BHL = ctx.engine.forward(q_BHLD, k_BHSD, v_BHSD, request)
        ctx.save_for_backward(q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL)
        ctx.set_materialize_grads(False)
        return out_BHLD, lse_BHL

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out_BHLD: Tensor | None, grad_lse_BHL: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if grad_out_BHLD is None and grad_lse_BHL is None:
            return None, None, None, None
        if grad_out_BHLD is None:
            grad_out_BHLD = torch.zeros_like(ctx.saved_tensors[3])
        with torch.autocast(ctx.request.device.type, enabled=False):  # users may call backward within autocast
            grads = ctx.engine.backward(*ctx.saved_tensors, grad_out_BHLD, grad_lse_BHL, ctx.request)
        return *grads, None
