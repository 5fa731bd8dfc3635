"""FlashAttention as torch has it, for windows, packed documents and global keys (Dao 2023, arXiv 2307.08691).

Global keys are a second, explicit part of O(n · globals) over the pairs that the window does not show. The parts are
merged by their log-sum-exp; the backward pass gives the fused operator the merged output and log-sum-exp, from which it
takes its own share of the gradient (as between devices in Liu et al. 2023, arXiv 2310.01889).

Shapes besides those of `base`: T tokens of all documents one after the other, G most global keys of a batch entry,
b queries of a tile.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longattn.kernels.base import Kernel, Request
from longattn.patterns import BoundPattern, Causal, Dense, Longformer, Pattern, SlidingWindow
from longattn.patterns.bind import gather_flags

_CALL_COST = 1e5
_PAIR_COST = 0.9  # of a pair within the window, against a pair of dense SDPA
_SCORES_AT_ONCE = 1 << 24  # of global keys: 64 MiB in fp32


class Flash(Kernel):
    """The fused kernel for windows on a CUDA GPU, through `torch.nn.attention.varlen`."""

    name = "flash"

    @classmethod
    def missing(cls) -> str | None:
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
            return "it needs a CUDA GPU of compute capability 8.0 or newer"
        try:
            from torch.nn.attention import varlen
        except ImportError:
            return f"it needs torch.nn.attention.varlen, which torch {torch.__version__} has not"
        if "window_size" not in inspect.signature(varlen.varlen_attn).parameters:
            return f"the varlen attention of torch {torch.__version__} takes no window"
        return None

    @classmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        bound = request.bound
        if _window(bound.pattern) is None:
            return "it knows Dense, Causal, SlidingWindow and Longformer without dilation only"
        if bound.key_padding_BS is not None or bound.mask_BHLS is not None:
            return "padding and masks are not told to it, only packed documents"
        if bound.query_is_global_BL is not None:
            return "it takes global keys, but not the rows of global queries"
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
        if request.head_dim > 256 or request.head_dim % 8:
            return f"the head dimension must be a multiple of 8 up to 256, got {request.head_dim}"
        if _packing(bound, request.batch, request.device) is None:
            return "the tokens of a document must be one run"
        return None

    @classmethod
    def cost(cls, request: Request) -> float:
        bound = request.bound
        pairs = bound.without_globals().layout(128).computed_pairs
        if bound.key_is_global_BS is not None:
            pairs += 4 * int(bound.key_is_global_BS.sum(1).max()) * bound.query_length  # in plain torch
        return _CALL_COST + _PAIR_COST * pairs * request.batch * bound.num_heads

    @classmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        out_BHLD, lse_BHL = _FlashAttention.apply(q_BHLD, k_BHSD, v_BHSD, request)  # type: ignore[no-untyped-call]
        return out_BHLD, lse_BHL


def _window(pattern: Pattern) -> tuple[int, int] | None:
    """Return the window (keys to the left, keys to the right, -1 = no end) without global keys, or None."""
    if isinstance(pattern, Dense):
        return -1, -1
    if isinstance(pattern, Causal):
        return -1, 0
    if type(pattern) in (SlidingWindow, Longformer):
        assert isinstance(pattern, SlidingWindow)
        return (pattern.radius, pattern.radius) if pattern.dilation == 1 else None
    return None


@dataclass(frozen=True, eq=False)
class _Packing:
    """The documents of a batch as one row of tokens."""

    token_T: Tensor | None
    """Place of each token in the flattened (B, L); None where all of them are in place."""

    starts: Tensor
    """(documents + 1,) int32: where each document starts."""

    longest: int

    def pack(self, x_BHLD: Tensor) -> Tensor:
        """(B, H, L, D) -> (T, H, D)."""
        x_NHD = x_BHLD.transpose(1, 2).flatten(0, 1)
        return x_NHD if self.token_T is None else x_NHD[self.token_T]

    def unpack(self, x_THD: Tensor, like_BHLD: Tensor, fill: float = 0.0) -> Tensor:
        """(T, H, D) -> (B, H, L, D), `fill` where no document is."""
        batch, heads, length = like_BHLD.shape[:3]
        if self.token_T is not None:
            x_NHD = x_THD.new_full((batch * length, heads, x_THD.shape[2]), fill)
            x_NHD[self.token_T] = x_THD
            x_THD = x_NHD
        return x_THD.view(batch, length, heads, x_THD.shape[2]).transpose(1, 2)


def _packing(bound: BoundPattern, batch: int, device: torch.device) -> _Packing | None:
    """Return the packing of `bound`, worked out once per batch; None if a document is in several places of a row."""
    key = ("flash packing", batch)
    if key not in bound.plans:
        bound.plans[key] = _build_packing(bound, batch, device)
    packing: _Packing | None = bound.plans[key]
    return packing


def _build_packing(bound: BoundPattern, batch: int, device: torch.device) -> _Packing | None:
    length, document_BL = bound.query_length, bound.query_document_BL
    if document_BL is None:
        starts = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device)
        return _Packing(None, starts, length)
    begins_BL = torch.ones_like(document_BL, dtype=torch.bool)
    begins_BL[:, 1:] = document_BL[:, 1:] != document_BL[:, :-1]
    real_BL = document_BL >= 0
    firsts_BL = begins_BL & real_BL
    entry_N, _ = torch.nonzero(firsts_BL, as_tuple=True)
    runs = torch.stack([entry_N, document_BL[firsts_BL].to(torch.int64)], 1)
    if torch.unique(runs, dim=0).shape[0] < runs.shape[0]:
        return None
    token_T = torch.nonzero(real_BL.flatten()).flatten()
    place_T = torch.nonzero(firsts_BL.flatten()[token_T]).flatten()
    starts = torch.cat([place_T, place_T.new_tensor([token_T.numel()])])
    longest = int(starts.diff().max()) if place_T.numel() else 0
    return _Packing(token_T, starts.to(torch.int32), longest)


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
        packing = _packing(request.bound, request.batch, request.device)
        window = _window(request.bound.pattern)
        assert packing is not None
        assert window is not None
        q, k, v = (packing.pack(x).contiguous() for x in (q_BHLD, k_BHSD, v_BHSD))
        if packing.longest:
            out_THD, lse_HT = fused_forward(q, k, v, packing.starts, packing.longest, request.scale, window)
        else:
            out_THD, lse_HT = q, q.new_empty(q.shape[1], 0, dtype=torch.float32)
        out_BHLD = packing.unpack(out_THD, q_BHLD)
        lse_BHL = packing.unpack(lse_HT.t().unsqueeze(2), q_BHLD, -torch.inf).squeeze(3)
        if request.bound.key_is_global_BS is not None:
            out_BHLD, lse_BHL = _add_global_keys(q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL, request)
        lse_BHL = lse_BHL.contiguous()
        ctx.save_for_backward(q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL)
        ctx.request = request
        ctx.mark_non_differentiable(lse_BHL)
        return out_BHLD, lse_BHL

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_BHLD: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL = ctx.saved_tensors
        request: Request = ctx.request
        packing = _packing(request.bound, request.batch, request.device)
        window = _window(request.bound.pattern)
        assert packing is not None
        assert window is not None
        everything = (grad_out_BHLD, q_BHLD, k_BHSD, v_BHSD, out_BHLD)
        grad_out, q, k, v, out = (packing.pack(x).contiguous() for x in everything)
        lse_HT = packing.pack(lse_BHL.unsqueeze(3)).squeeze(2).t().contiguous()
        grads = (q, k, v)
        if packing.longest:
            place = (packing.starts, packing.longest, request.scale, window)
            grads = fused_backward(grad_out, q, k, v, out, lse_HT, *place)
        grad_q, grad_k, grad_v = (packing.unpack(grad, q_BHLD) for grad in grads)
        if request.bound.key_is_global_BS is not None:
            more = _global_key_gradients(q_BHLD, k_BHSD, v_BHSD, out_BHLD, lse_BHL, grad_out_BHLD, request)
            grad_q, grad_k, grad_v = (a + b for a, b in zip((grad_q, grad_k, grad_v), more, strict=True))
        return grad_q, grad_k, grad_v, None


def fused_forward(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, starts: Tensor, longest: int, scale: float, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return out_THD and lse_HT of each document's window; `starts` (documents + 1,) int32 on the same device."""
    out_THD, lse_HT, _ = torch.ops.torch_attn._varlen_attn(
        q_THD,
        k_THD,
        v_THD,
        starts,
        starts,
        longest,
        longest,
        window[1] == 0 and window[0] < 0,
        scale,
        list(window),
    )
    return out_THD, lse_HT


def fused_backward(
    grad_out_THD: Tensor,
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    out_THD: Tensor,
    lse_HT: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v through the window, given the output and lse over all keys."""
    rng_state = torch.zeros(2, dtype=torch.uint64, device=q_THD.device)
    tensors = (grad_out_THD, q_THD, k_THD, v_THD, out_THD, lse_HT)
    causal = window[1] == 0 and window[0] < 0
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.torch_attn._varlen_attn_backward(
        *tensors, starts, starts, longest, longest, causal, rng_state, scale, list(window)
    )
    return grads


@dataclass(frozen=True, eq=False)
class _GlobalTile:
    """Some queries against the gathered global keys."""

    queries: slice
    key_BG: Tensor
    hidden_B1bG: Tensor

    def gather(self, x_BHSD: Tensor) -> Tensor:
        """(B, H, S, D) -> (B, H, G, D)."""
        return x_BHSD.gather(2, _per_head(self.key_BG, x_BHSD))

    def scores(self, q_BHLD: Tensor, k_BHSD: Tensor, scale: float) -> Tensor:
        """Return scores_BHbG in fp32, -inf where a pair is hidden or in the window."""
        scores = q_BHLD[:, :, self.queries].float() @ self.gather(k_BHSD).float().transpose(2, 3)
        return scores.mul_(scale).masked_fill_(self.hidden_B1bG, -torch.inf)


def _per_head(index_BG: Tensor, x_BHSD: Tensor) -> Tensor:
    batch, heads, _, width = x_BHSD.shape
    return index_BG.view(batch, 1, -1, 1).expand(-1, heads, -1, width)


def _global_tiles(request: Request) -> Iterator[_GlobalTile]:
    bound = request.bound
    assert bound.key_is_global_BS is not None
    key_BG, valid_BG = gather_flags(bound.key_is_global_BS)
    if not key_BG.shape[1]:
        return
    local, batch = bound.without_globals(), torch.arange(request.batch, device=request.device)[:, None, None]
    head, step = torch.zeros_like(batch), max(1, _SCORES_AT_ONCE // (key_BG.numel() * bound.num_heads))
    for start in range(0, bound.query_length, step):
        stop = min(start + step, bound.query_length)
        query = torch.arange(start, stop, device=request.device)[None, :, None]
        pair = (batch, head, query, key_BG[:, None, :])
        seen_BbG = bound.sees(*pair) & ~local.sees(*pair) & valid_BG[:, None, :]
        yield _GlobalTile(slice(start, stop), key_BG, ~seen_BbG.unsqueeze(1))


def _add_global_keys(
    q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, out_BHLD: Tensor, lse_BHL: Tensor, request: Request
) -> tuple[Tensor, Tensor]:
    """Merge what the window gave with the global keys outside it."""
    out_BHLD, lse_BHL = out_BHLD.clone(), lse_BHL.clone()
    for tile in _global_tiles(request):
        scores = tile.scores(q_BHLD, k_BHSD, request.scale)
        old = lse_BHL[:, :, tile.queries]
        new = torch.logaddexp(old, scores.logsumexp(-1))
        safe = torch.where(new == -torch.inf, 0.0, new).unsqueeze(-1)
        weights = scores.sub_(safe).exp_()
        kept = out_BHLD[:, :, tile.queries].float() * (old.unsqueeze(-1) - safe).exp()
        out_BHLD[:, :, tile.queries] = (kept + weights @ tile.gather(v_BHSD).float()).to(out_BHLD.dtype)
        lse_BHL[:, :, tile.queries] = new
    return out_BHLD, lse_BHL


def _global_key_gradients(
    q_BHLD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    out_BHLD: Tensor,
    lse_BHL: Tensor,
    grad_out_BHLD: Tensor,
    request: Request,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients through the global keys outside the window."""
    grad_q, grad_k, grad_v = (torch.zeros_like(x, dtype=torch.float32) for x in (q_BHLD, k_BHSD, v_BHSD))
    for tile in _global_tiles(request):
        lse = lse_BHL[:, :, tile.queries].unsqueeze(-1)
        weights = (tile.scores(q_BHLD, k_BHSD, request.scale) - torch.where(lse == -torch.inf, 0.0, lse)).exp_()
        grad_out = grad_out_BHLD[:, :, tile.queries].float()
        delta = (grad_out * out_BHLD[:, :, tile.queries].float()).sum(-1, keepdim=True)
        grad_scores = weights * (grad_out @ tile.gather(v_BHSD).float().transpose(2, 3) - delta) * request.scale
        index = _per_head(tile.key_BG, grad_k)
        grad_q[:, :, tile.queries] += grad_scores @ tile.gather(k_BHSD).float()
        grad_k.scatter_add_(2, index, grad_scores.transpose(2, 3) @ q_BHLD[:, :, tile.queries].float())
        grad_v.scatter_add_(2, index, weights.transpose(2, 3) @ grad_out)
    return grad_q.to(q_BHLD.dtype), grad_k.to(q_BHLD.dtype), grad_v.to(q_BHLD.dtype)
