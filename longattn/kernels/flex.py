"""FlexAttention over a block mask built from the layout, never from an n x n mask (Dong et al. 2024, 2412.05496)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from longattn.kernels.base import Kernel, Request
from longattn.patterns import BlockLayout

BLOCK_SIZE = 128
_MOST_COMPILATIONS = 256
_CALL_COST = 1e5
_PAIR_COST = 1.1  # of a visited pair, against a pair of dense SDPA


class Flex(Kernel):
    """The compiled kernel for every pattern on a CUDA GPU."""

    name = "flex"

    @classmethod
    def missing(cls) -> str | None:
        if not torch.cuda.is_available():
            return "it needs a CUDA GPU, since FlexAttention has no backward pass on CPU"
        return None

    @classmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        if request.device.type != "cuda":
            return f"the tensors are on {request.device.type}, and FlexAttention trains on CUDA only"
        if request.dropout is not None:
            return "it has no dropout of attention weights; set the attention dropout to 0"
        if request.dtype == torch.float64:
            return "it computes in fp32 at most, the tensors are fp64"
        if request.head_dim < 16:
            return f"the head dimension must be at least 16, got {request.head_dim}"
        return None

    @classmethod
    def cost(cls, request: Request) -> float:
        layout = request.bound.layout(BLOCK_SIZE, with_globals=True)
        return _CALL_COST + _PAIR_COST * layout.computed_pairs * request.batch * request.bound.num_heads

    @classmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        return call_flex(_compiled(), q_BHLD, k_BHSD, v_BHSD, request)


def call_flex(
    function: Callable[..., Any], q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request
) -> tuple[Tensor, Tensor]:
    """Call `function`, which is flex_attention or its compiled form, for `request`."""
    bound, bias = request.bound, request.bias

    def score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        return score + bias(head, query + bound.query_start, key + bound.key_start)

    out_BHLD, aux = function(
        q_BHLD,
        k_BHSD,
        v_BHSD,
        score_mod=None if bias is None else score,
        block_mask=block_mask(request),
        scale=request.scale,
        return_aux=AuxRequest(lse=True),
    )
    return out_BHLD, aux.lse


def block_mask(request: Request) -> BlockMask:
    """Return the block mask of a request: full and partial key blocks from the layout, and `sees` for the partial ones.

    Memory is O((n / 128)²) integers, worked out once per batch.
    """
    bound, device = request.bound, request.device
    key = ("block_mask", device)
    if key not in bound.plans:
        layout = bound.layout(BLOCK_SIZE, with_globals=True)
        with torch.device("cpu"):
            partial, full = (_block_lists(layout, which, device) for which in (~layout.full, layout.full))
        bound.plans[key] = BlockMask.from_kv_blocks(
            *partial,
            *full,
            BLOCK_SIZE=BLOCK_SIZE,
            mask_mod=bound.mask_function(device),
            seq_lengths=(bound.query_length, bound.key_length),
        )
    mask: BlockMask = bound.plans[key]
    return mask


def _block_lists(layout: BlockLayout, which: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (counts, key blocks) of the tiles chosen, (B, H, Q) and (B, H, Q, K) int32, chosen ones first in a row."""
    shape = (layout.batch, layout.heads, layout.query_blocks)
    rows_T, columns_T = layout.rows[which].to(device), layout.columns[which].to(device, torch.int32)
    counts_R = torch.bincount(rows_T, minlength=layout.row_starts.numel() - 1)
    place_T = torch.arange(rows_T.numel(), device=device) - (counts_R.cumsum(0) - counts_R)[rows_T]
    blocks_RK = torch.zeros(counts_R.numel(), layout.key_blocks, dtype=torch.int32, device=device)
    blocks_RK[rows_T, place_T] = columns_T
    return counts_R.to(torch.int32).view(shape), blocks_RK.view(*shape, layout.key_blocks)


@functools.cache
def _compiled() -> Callable[..., Any]:
    compiled = torch.compile(flex_attention)

    def call(*arguments: Any, **options: Any) -> Any:
        # Each pattern is one compilation for the first length and one for all others. Beyond the limit, of 8 unless
        # set, torch would without a word compute all pairs.
        with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILATIONS, fail_on_recompile_limit_hit=True):
            return compiled(*arguments, **options)

    return call
