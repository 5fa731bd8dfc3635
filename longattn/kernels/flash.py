"""FlashAttention 2, if installed, for dense, causal and windowed patterns (Dao 2023, arXiv 2307.08691)."""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor

from longattn.kernels.base import Kernel, Request
from longattn.patterns import Causal, Dense, Longformer, Pattern, SlidingWindow

_CALL_COST = 1e5
_PAIR_COST = 0.9  # of a pair within the window, against a pair of dense SDPA


class Flash(Kernel):
    """The `flash_attn` package; imported only when it is asked for."""

    name = "flash"

    @classmethod
    def missing(cls) -> str | None:
        if importlib.util.find_spec("flash_attn") is None:
            return "the package flash-attn is not installed (pip install 'longattn[gpu]')"
        if not torch.cuda.is_available():
            return "it needs a CUDA GPU"
        return None

    @classmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        pattern, bound = request.bound.pattern, request.bound
        if _window(pattern) is None:
            return "it knows Dense, Causal and SlidingWindow without dilation only, and no global tokens"
        if bound.batch_tensors:
            return "padding, packed documents and masks are not told to it"
        if (bound.query_start, bound.query_length) != (bound.key_start, bound.key_length):
            return "queries and keys must cover the same positions"
        if request.device.type != "cuda" or request.dtype not in (torch.float16, torch.bfloat16):
            return f"it takes fp16 and bf16 on CUDA, the tensors are {request.dtype} on {request.device.type}"
        if request.dropout is not None:
            return "its dropout is not the one that longattn's kernels share; set the attention dropout to 0"
        if request.bias is not None:
            return "score biases are not told to it"
        if request.needs_lse and request.needs_grad:
            return "its log-sum-exp is not differentiable"
        if request.head_dim > 256:
            return f"the head dimension must be at most 256, got {request.head_dim}"
        return None

    @classmethod
    def cost(cls, request: Request) -> float:
        layout = request.bound.layout(128)
        return _CALL_COST + _PAIR_COST * layout.computed_pairs * request.batch * request.bound.num_heads

    @classmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        flash_attn = importlib.import_module("flash_attn")
        window = _window(request.bound.pattern)
        assert window is not None
        out_BLHD, lse_BHL, _ = flash_attn.flash_attn_func(
            *(x.transpose(1, 2) for x in (q_BHLD, k_BHSD, v_BHSD)),
            softmax_scale=request.scale,
            causal=isinstance(request.bound.pattern, Causal),
            window_size=window,
            return_attn_probs=True,
        )
        return out_BLHD.transpose(1, 2), lse_BHL


def _window(pattern: Pattern) -> tuple[int, int] | None:
    """Return flash-attn's window (keys to the left, keys to the right, -1 = no end), or None if it has none for it."""
    if isinstance(pattern, Dense | Causal):
        return -1, -1
    if isinstance(pattern, SlidingWindow) and not isinstance(pattern, Longformer) and pattern.dilation == 1:
        return pattern.radius, pattern.radius
    return None
