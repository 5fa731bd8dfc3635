"""Chooses the kernel of a call: the one asked for by name, or for `auto` the cheapest that can do it."""

from __future__ import annotations

import functools
import logging
import math

import torch
from torch import Tensor

from longattn.discovery import classes_in, nearest
from longattn.errors import ConfigError, UnsupportedError
from longattn.kernels.base import Kernel, Request, ScoreBias
from longattn.kernels.dropout import Dropout
from longattn.patterns import BoundPattern, Pattern, bind

_log = logging.getLogger(__name__)


@functools.cache
def kernels() -> dict[str, type[Kernel]]:
    """Return every kernel of this folder by name."""
    return {kernel.name: kernel for kernel in classes_in("longattn.kernels", Kernel).values()}  # type: ignore[type-abstract]


def available() -> dict[str, str | None]:
    """Return, for each kernel by name, None if this machine can run it, else the reason why not."""
    return {name: kernel.missing() for name, kernel in kernels().items()}


def select(name: str, request: Request) -> type[Kernel]:
    """Return the kernel called `name`, or for "auto" the one with the least cost.

    UnsupportedError gives the reason when the kernel asked for cannot do the request; there is no silent fallback.
    """
    if name == "auto":
        able = [kernel for kernel in kernels().values() if _refusal(kernel, request) is None]
        chosen = min(able, key=lambda kernel: kernel.cost(request))
        _announce(type(request.bound.pattern).__name__, chosen.name, request.device.type)
        return chosen
    check_kernel_name(name)
    reason = _refusal(kernels()[name], request)
    if reason is not None:
        raise UnsupportedError(
            f"kernel {name!r} cannot run {request.bound.pattern!r} here: {reason}; kernel 'auto' can"
        )
    return kernels()[name]


def check_kernel_name(name: str) -> None:
    """Raise ConfigError unless `name` is a kernel or "auto"."""
    choices = ["auto", *kernels()]
    if name not in choices:
        raise ConfigError(f"kernel {name!r} is unknown{nearest(name, choices)}: choose one of {', '.join(choices)}")


def _refusal(kernel: type[Kernel], request: Request) -> str | None:
    return kernel.missing() or kernel.unsupported_reason(request)


@functools.cache
def _announce(pattern: str, kernel: str, device: str) -> None:
    _log.info("kernel auto: %s on %s is computed by %r", pattern, device, kernel)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | BoundPattern,
    *,
    key_padding: Tensor | None = None,
    document: Tensor | None = None,
    is_global: Tensor | None = None,
    mask: Tensor | None = None,
    bias: ScoreBias | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    kernel: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return softmax(q kᵀ · scale + bias) v over the pairs that `pattern` shows, (B, H, L, D).

    q (B, H, L, D); k and v (B, H, S, D); key_padding (B, S) bool, True = real token; document (B, L) int, -1 =
    padding, tokens of different documents do not see each other; is_global (B, L) bool; mask (B or 1, H or 1, L, S)
    bool, True = may be seen. A BoundPattern already holds these five. `scale` is 1 / sqrt(D) unless given. Dropout is
    a function of (dropout_seed, batch, head, query, key); without a seed one is drawn from torch's global generator.
    With `return_lse` also the log-sum-exp of each row's scores, (B, H, L), fp32 (fp64 for fp64). A row that sees
    nothing gives 0 and -inf. ConfigError for shapes that do not fit, UnsupportedError for a kernel that cannot do it.
    """
    _check_tensors(q, k, v)
    batch, heads, query_length, head_dim = q.shape
    if isinstance(pattern, BoundPattern):
        if any(tensor is not None for tensor in (key_padding, document, is_global, mask)):
            raise ConfigError(
                "a bound pattern already holds key_padding, document, is_global and mask: bind them there"
            )
        bound = pattern
    else:
        bound = bind(
            pattern,
            num_heads=heads,
            query_length=query_length,
            key_length=k.shape[2],
            key_padding=key_padding,
            query_document=document,
            query_is_global=is_global,
            key_is_global=is_global,
            mask=mask,
        )
    _check_bound(bound, batch, heads, query_length, k.shape[2])
    dropout = None
    if dropout_p:
        seed = int(torch.randint(2**31 - 1, ()).item()) if dropout_seed is None else dropout_seed
        dropout = Dropout(dropout_p, seed)
    request = Request(
        bound=bound,
        device=q.device,
        dtype=q.dtype,
        batch=batch,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim) if scale is None else scale,
        bias=bias,
        dropout=dropout,
        needs_grad=torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad),
        needs_lse=return_lse,
    )
    chosen = select(kernel, request)
    with torch.autocast(q.device.type, enabled=False):  # kernels choose their own precisions
        if q.numel() and k.numel():
            out, lse = chosen.run(q, _without_padding(k, bound), _without_padding(v, bound), request)
        else:  # torch's operators do not take it: one of them ends the process
            out, lse = _nothing_seen(q, k, v, request)
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def _without_padding(x_BHSD: Tensor, bound: BoundPattern) -> Tensor:
    """Return keys or values with 0 at padding: a weight of 0 would not hide NaN or infinity, which may stand there."""
    padding_BS = None if bound.key_padding_BS is None else ~bound.key_padding_BS
    if bound.key_document_BS is not None:
        outside_BS = bound.key_document_BS < 0
        padding_BS = outside_BS if padding_BS is None else padding_BS | outside_BS
    return x_BHSD if padding_BS is None else x_BHSD.masked_fill(padding_BS[:, None, :, None], 0.0)


def _nothing_seen(q: Tensor, k: Tensor, v: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """Return output 0 and lse -inf, of which q, k and v have gradient 0."""
    idle = k.flatten()[:0].sum() + v.flatten()[:0].sum()
    out_BHLD = q.masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0.0) + idle
    return out_BHLD, out_BHLD.sum(-1).to(request.softmax_dtype) - torch.inf


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ConfigError(f"q, k and v must have shape (batch, heads, length, head_dim), got {shapes}")
    if k.shape[2] != v.shape[2]:
        raise ConfigError(f"k and v must have the same length, got {k.shape[2]} keys and {v.shape[2]} values")
    if q.shape[:2] != k.shape[:2] or k.shape != v.shape or q.shape[3] != k.shape[3]:
        raise ConfigError(f"q, k and v must agree in batch, heads and head_dim, got {shapes}")
    if q.shape[1] == 0 or q.shape[3] == 0:
        raise ConfigError(f"q, k and v must have at least one head and one dimension, got {shapes}")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"q, k and v must have one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ConfigError(f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}")


def _check_bound(bound: BoundPattern, batch: int, heads: int, query_length: int, key_length: int) -> None:
    expected = (bound.num_heads, bound.query_length, bound.key_length)
    if expected != (heads, query_length, key_length):
        raise ConfigError(
            f"the pattern is bound to (heads, queries, keys) = {expected}, got {(heads, query_length, key_length)}"
        )
    if bound.lengths and len(bound.lengths) != batch:
        raise ConfigError(f"the pattern is bound to {len(bound.lengths)} document lengths, q has batch {batch}")
    for tensor in bound.batch_tensors:
        if tensor.shape[0] not in (batch, 1 if tensor.dim() == 4 else batch):
            raise ConfigError(f"a mask or padding tensor has batch {tensor.shape[0]}, q has batch {batch}")
