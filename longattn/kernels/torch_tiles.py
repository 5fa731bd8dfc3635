"""Attention over chunks of visible blocks in plain torch, on any device: batched products of gathered blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from longattn.kernels.base import Request
from longattn.kernels.chunks import Chunk, chunks_of

CALL_COST = 5e5
"""Pairs of dense SDPA that one call's fixed work is worth."""

PAIR_COST = 2.0
"""Of a computed pair, against one of dense SDPA; measured 1.5 for long documents, more for short ones."""

_BLOCK_SIZES = (64, 128, 256)
_SMALLEST_NATURAL, _LARGEST_NATURAL = 16, 128  # tokens: the block sizes taken over from a pattern made of blocks
_OVERHEAD_TOKENS = 12  # a block of b tokens costs as much per pair as 1 + 12 / b; measured


def computed_pairs(request: Request) -> int:
    """Return the query-key pairs computed for each head of each entry, on average, without those of global tokens."""
    return request.bound.without_globals().layout(_block_size(request)).computed_pairs


def forward(q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """Return out_BHLD in the dtype of `q_BHLD` and lse_BHL in `request.softmax_dtype`."""
    work = _Work(q_BHLD, k_BHSD, v_BHSD, request)
    out_NLD = torch.zeros_like(work.q_NLD)
    lse_NL = out_NLD.new_full(out_NLD.shape[:2], -torch.inf)
    for chunk in work.chunks:
        _forward_chunk(work, chunk, out_NLD, lse_NL)
    length = q_BHLD.shape[2]
    out_BHLD = out_NLD[:, :length].to(q_BHLD.dtype).view(q_BHLD.shape)
    return out_BHLD, lse_NL[:, :length].contiguous().view(q_BHLD.shape[:3])


def backward(
    q_BHLD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    out_BHLD: Tensor,
    lse_BHL: Tensor,
    grad_out_BHLD: Tensor,
    grad_lse_BHL: Tensor | None,
    request: Request,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given what `forward` took and returned."""
    work = _Work(q_BHLD, k_BHSD, v_BHSD, request)
    # The softmax's Jacobian needs the row sums of dO · O; a gradient of lse is that sum's opposite.
    delta_BHL = (grad_out_BHLD.to(work.dtype) * out_BHLD.to(work.dtype)).sum(-1)
    if grad_lse_BHL is not None:
        delta_BHL = delta_BHL - torch.where(lse_BHL == -torch.inf, 0.0, grad_lse_BHL)
    # Rows that see nothing (and padding rows) get lse +inf, hence weights exp(-inf) = 0.
    lse_NL = work.pad(torch.where(lse_BHL == -torch.inf, torch.inf, lse_BHL), value=torch.inf)
    rows = _BackwardRows(work.pad(grad_out_BHLD), work.pad(delta_BHL), lse_NL)
    grads = [torch.zeros_like(x) for x in (work.q_NLD, work.k_NSD, work.v_NSD)]
    for chunk in work.chunks:
        _backward_chunk(work, chunk, rows, *grads)
    grads[0].mul_(request.scale)
    grad_q, grad_k, grad_v = (_unpad(g, x) for g, x in zip(grads, (q_BHLD, k_BHSD, v_BHSD), strict=True))
    return grad_q, grad_k, grad_v


def _block_size(request: Request) -> int:
    """Return the block size (tokens) with the least estimated work for the pattern and the lengths."""
    bound = request.bound.without_globals()
    natural = bound.pattern.natural_block_size or 1
    divisors = [size for size in range(_SMALLEST_NATURAL, _LARGEST_NATURAL + 1) if natural % size == 0]
    if divisors:
        return divisors[-1]  # its tiles are all full or empty
    longest = max(bound.query_length, bound.key_length)
    sizes = [size for size in _BLOCK_SIZES if size < 2 * longest] or [_BLOCK_SIZES[0]]

    def work(size: int) -> float:
        return bound.layout(size).computed_pairs * (1 + _OVERHEAD_TOKENS / size)

    return min(sizes, key=work)


class _Work:
    """The inputs of one call as (B·H, N, D) in the softmax's precision, padded to whole blocks; q holds the scale."""

    def __init__(self, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> None:
        self.request, self.dtype = request, request.softmax_dtype
        self.block_size = _block_size(request)
        self.q_NLD = self.pad(q_BHLD) * request.scale
        self.k_NSD, self.v_NSD = self.pad(k_BHSD), self.pad(v_BHSD)
        self.chunks = chunks_of(request.bound, request.batch, self.block_size, request.device)
        self.buffer = self.q_NLD.new_empty(0)

    def pad(self, x_BHN: Tensor, value: float = 0.0) -> Tensor:
        """(B, H, N, ...) -> (B·H, padded N, ...) in the softmax's precision."""
        x = x_BHN.to(self.dtype).flatten(0, 1)
        short = -x.shape[1] % self.block_size
        if short:
            x = torch.nn.functional.pad(x, (*(0, 0) * (x.dim() - 2), 0, short), value=value)
        return x.contiguous()

    def scores(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores_Rbm with -inf where a pair is hidden, q_RbD and k_RmD; the scores live in a shared buffer."""
        q_RbD, k_RmD = chunk.take_query(self.q_NLD), chunk.take_key(self.k_NSD)
        shape = (q_RbD.shape[0], q_RbD.shape[1], k_RmD.shape[1])
        needed = shape[0] * shape[1] * shape[2]
        if self.buffer.numel() < needed:
            self.buffer = self.q_NLD.new_empty(needed)
        scores_Rbm = torch.bmm(q_RbD, k_RmD.transpose(1, 2), out=self.buffer[:needed].view(shape))
        if self.request.bias is not None:
            _, head, query, key = chunk.indices()
            scores_Rbm.add_(self.request.bias_at(head, query, key))  # type: ignore[arg-type]
        chunk.hide(scores_Rbm)
        return scores_Rbm, q_RbD, k_RmD

    def kept(self, chunk: Chunk) -> Tensor | None:
        """Return the dropout factors of a chunk's weights, or None without dropout."""
        dropout = self.request.dropout
        return None if dropout is None else dropout.factors(*chunk.indices(), self.dtype)


def _forward_chunk(work: _Work, chunk: Chunk, out_NLD: Tensor, lse_NL: Tensor) -> None:
    weights_Rbm, _, _ = work.scores(chunk)
    highest_Rb1 = weights_Rbm.amax(-1, keepdim=True)
    highest_Rb1.masked_fill_(highest_Rb1 == -torch.inf, 0.0)
    total_Rb1 = weights_Rbm.sub_(highest_Rb1).exp_().sum(-1, keepdim=True)
    lse_Rb = (highest_Rb1 + total_Rb1.log()).squeeze(-1)
    kept = work.kept(chunk)
    if kept is not None:
        weights_Rbm.mul_(kept)
    out_RbD = torch.bmm(weights_Rbm, chunk.take_key(work.v_NSD)).div_(total_Rb1.clamp_(min=1.0))
    if not chunk.overwrites:
        old_out_RbD, old_lse_Rb = chunk.take_query(out_NLD), chunk.take_query(lse_NL)
        new_lse_Rb = torch.logaddexp(lse_Rb, old_lse_Rb)
        safe_Rb = torch.where(new_lse_Rb == -torch.inf, 0.0, new_lse_Rb)
        out_RbD.mul_((lse_Rb - safe_Rb).exp_().unsqueeze(-1))
        out_RbD.addcmul_(old_out_RbD, (old_lse_Rb - safe_Rb).exp_().unsqueeze(-1))
        lse_Rb = new_lse_Rb
    chunk.put_query(out_NLD, out_RbD)
    chunk.put_query(lse_NL, lse_Rb)


class _BackwardRows:
    """What the backward pass needs of each query row."""

    def __init__(self, grad_out_NLD: Tensor, delta_NL: Tensor, lse_NL: Tensor) -> None:
        self.grad_out_NLD, self.delta_NL, self.lse_NL = grad_out_NLD, delta_NL, lse_NL


def _backward_chunk(
    work: _Work, chunk: Chunk, rows: _BackwardRows, grad_q_NLD: Tensor, grad_k_NSD: Tensor, grad_v_NSD: Tensor
) -> None:
    weights_Rbm, q_RbD, k_RmD = work.scores(chunk)
    weights_Rbm.sub_(chunk.take_query(rows.lse_NL).unsqueeze(-1)).exp_()
    grad_out_RbD = chunk.take_query(rows.grad_out_NLD)
    grad_Rbm = torch.bmm(grad_out_RbD, chunk.take_key(work.v_NSD).transpose(1, 2))
    kept = work.kept(chunk)
    dropped_Rbm = weights_Rbm if kept is None else weights_Rbm * kept
    if kept is not None:
        grad_Rbm.mul_(kept)
    chunk.add_key(grad_v_NSD, torch.bmm(dropped_Rbm.transpose(1, 2), grad_out_RbD))
    grad_Rbm.sub_(chunk.take_query(rows.delta_NL).unsqueeze(-1)).mul_(weights_Rbm)
    grad_q_RbD = torch.bmm(grad_Rbm, k_RmD)
    if not chunk.overwrites:
        grad_q_RbD.add_(chunk.take_query(grad_q_NLD))
    chunk.put_query(grad_q_NLD, grad_q_RbD)
    chunk.add_key(grad_k_NSD, torch.bmm(grad_Rbm.transpose(1, 2), q_RbD))


def _unpad(grad_NLD: Tensor, x_BHLD: Tensor) -> Tensor:
    return grad_NLD[:, : x_BHLD.shape[2]].to(x_BHLD.dtype).view(x_BHLD.shape)
