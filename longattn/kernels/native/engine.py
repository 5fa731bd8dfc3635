"""Runs the C++ operators: one call for each term of the pattern, one for global keys, one for global queries.

Calls over disjoint keys are merged by the log-sum-exp of each row as they go. Shapes: B batch, H heads, L queries,
S keys, D head dimension, G most global tokens of a batch entry.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longattn.kernels.base import Request
from longattn.kernels.native.plan import Place, Plan, plan_of
from longattn.patterns import BoundPattern, Dense
from longattn.patterns.bind import gather_flags

CALL_COST = 1e5
"""Pairs of dense SDPA that one call's fixed work is worth."""

PAIR_COST = 1.05
"""Of a computed pair, against one of dense SDPA; measured 0.9 to 1.1 for any length."""

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MOST_DOCUMENTS = 1 << 24  # which fp32 holds exactly


def unsupported_reason(request: Request) -> str | None:
    """Return why the C++ operators cannot do `request`, in words, or None."""
    bound = request.bound
    if request.device.type != "cpu":
        return "it runs on CPU"
    if request.dtype not in _DTYPES:
        return f"it takes no {request.dtype}"
    if bound.mask_BHLS is not None:
        return "it takes no explicit mask"
    if bound.has_globals and not bound.pattern.shows_all_global_pairs:
        return "it lets global tokens see and be seen by all"
    if request.bias is not None and not getattr(request.bias, "is_relative", False):
        return "it takes a bias only as a function of the distance"
    return None


def computed_pairs(request: Request) -> int:
    """Return the query-key pairs computed for each head of each entry, on average, without those of global tokens."""
    bound = request.bound.without_globals()
    if "native pairs" not in bound.plans:
        bound.plans["native pairs"] = _count_pairs(bound)
    pairs: int = bound.plans["native pairs"]
    return pairs


def _count_pairs(bound: BoundPattern) -> int:
    pairs = 0
    for call in _calls_of(bound).all_rows:
        if call.modulus > 1 or not bound.batch_tensors:
            pairs += call.plan.computed_pairs * call.modulus
        else:
            own = dataclasses.replace(bound, pattern=call.plan.pattern, plans={})
            pairs += own.layout(call.plan.block_size).computed_pairs
    return pairs


def forward(q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """Return out_BHLD in the dtype of `q_BHLD`, in memory as (B, L, H, D), and lse_BHL in `request.softmax_dtype`."""
    calls = _calls_of(request.bound)
    q_BHLD, k_BHSD, v_BHSD = (_with_rows(x) for x in (q_BHLD, k_BHSD, v_BHSD))
    merges = len(calls.all_rows) > 1
    out_BHLD = _empty(q_BHLD, request.softmax_dtype if merges else q_BHLD.dtype)
    lse_BHL = q_BHLD.new_empty(q_BHLD.shape[:3], dtype=request.softmax_dtype)
    for index, call in enumerate(calls.all_rows):
        k, v = call.take_keys(k_BHSD), call.take_keys(v_BHSD)
        _forward(q_BHLD, k, v, out_BHLD, lse_BHL, index > 0, *call.arguments(request))
    rows = calls.global_rows
    if rows is not None:
        q_BHGD = rows.take(q_BHLD)
        own_BHGD, own_lse_BHG = _empty(q_BHGD, out_BHLD.dtype), torch.empty_like(rows.take(lse_BHL))
        _forward(q_BHGD, k_BHSD, v_BHSD, own_BHGD, own_lse_BHG, False, *rows.call.arguments(request))
        rows.replace(out_BHLD, own_BHGD)
        rows.replace(lse_BHL, own_lse_BHG)
    return out_BHLD.to(q_BHLD.dtype), lse_BHL


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
    """Return the gradients of q, k and v, in memory as (B, N, H, D), given what `forward` took and returned."""
    calls, dtype = _calls_of(request.bound), request.softmax_dtype
    rows = calls.global_rows
    q, k, v, out, grad_out = (_with_rows(x) for x in (q_BHLD, k_BHSD, v_BHSD, out_BHLD, grad_out_BHLD))
    grad_lse = None if grad_lse_BHL is None else grad_lse_BHL.to(dtype).contiguous()
    grads = tuple(_empty(x, dtype).zero_() for x in (q, k, v))
    lse = lse_BHL
    if rows is not None:
        lse = lse_BHL.clone()
        rows.replace(lse, torch.full_like(rows.take(lse), -torch.inf))  # they have no part in the other calls
    for call in calls.all_rows:
        own = (grads[1], grads[2]) if call.key_index_BG is None else tuple(call.take_keys(g) for g in grads[1:])
        taken = (call.take_keys(k), call.take_keys(v))
        _backward(q, *taken, out, lse, grad_out, grad_lse, grads[0], *own, *call.arguments(request))
        if call.key_index_BG is not None:
            for grad, part in zip(grads[1:], own, strict=True):
                grad.scatter_(2, _per_head(call.key_index_BG, grad), part)
    if rows is not None:
        own_lse = torch.where(rows.valid_BG[:, None], rows.take(lse_BHL), -torch.inf)
        own_grad_q = rows.take(grads[0])
        parts = (own_lse, rows.take(grad_out), None if grad_lse is None else rows.take(grad_lse))
        _backward(rows.take(q), k, v, rows.take(out), *parts, own_grad_q, *grads[1:], *rows.call.arguments(request))
        rows.replace(grads[0], own_grad_q)
    grad_q, grad_k, grad_v = (grad.to(q_BHLD.dtype) for grad in grads)
    return grad_q, grad_k, grad_v


@dataclass(frozen=True, eq=False, kw_only=True)
class _Call:
    """One call of an operator: the pairs of `plan` among every `modulus`-th token, of the tokens that the rest lets."""

    plan: Plan
    modulus: int = 1
    key_hidden_BS: Tensor | None = None
    query_document_BL: Tensor | None = None
    key_document_BS: Tensor | None = None
    query_index_BG: Tensor | None = None
    """Places of gathered queries; None where the queries are those of the request."""

    key_index_BG: Tensor | None = None
    """Places of gathered keys; None where the keys are those of the request."""

    def take_keys(self, x_BHSD: Tensor) -> Tensor:
        if self.key_index_BG is None:
            return x_BHSD
        return x_BHSD.gather(2, _per_head(self.key_index_BG, x_BHSD))

    def arguments(self, request: Request) -> tuple[Any, ...]:
        """Return the trailing arguments of both operators."""
        bias_HN = _bias_by_distance(request)
        batch = [
            self.key_hidden_BS,
            self.query_document_BL,
            self.key_document_BS,
            self.query_index_BG,
            self.key_index_BG,
            bias_HN,
        ]
        dropout, plan = request.dropout, self.plan
        integers = [plan.batch, plan.heads, plan.block_size, self.modulus, request.bound.key_length - 1]
        integers += [0, 0] if dropout is None else [dropout.seed, dropout.threshold]
        return plan.tensors, batch, integers, [request.scale, 0.0 if dropout is None else dropout.factor]


@dataclass(frozen=True, eq=False, kw_only=True)
class _GlobalRows:
    """The call for global queries; entries with fewer than G have idle slots, which repeat other tokens."""

    index_BG: Tensor
    valid_BG: Tensor
    call: _Call

    def take(self, x_BHL: Tensor) -> Tensor:
        """(B, H, L, ...) -> (B, H, G, ...)."""
        return x_BHL.gather(2, _per_head(self.index_BG, x_BHL))

    def replace(self, x_BHL: Tensor, own_BHG: Tensor) -> None:
        """Write the rows of the global queries, in place."""
        entry_N, slot_N = torch.nonzero(self.valid_BG, as_tuple=True)
        x_BHL[entry_N, :, self.index_BG[entry_N, slot_N]] = own_BHG.transpose(1, 2)[entry_N, slot_N].to(x_BHL.dtype)


@dataclass(frozen=True, eq=False)
class _Calls:
    all_rows: list[_Call]
    """Over disjoint keys."""

    global_rows: _GlobalRows | None


def _calls_of(bound: BoundPattern) -> _Calls:
    """Return the calls for `bound`, worked out once per batch."""
    if "native" not in bound.plans:
        bound.plans["native"] = _build_calls(bound)
    calls: _Calls = bound.plans["native"]
    return calls


def _build_calls(bound: BoundPattern) -> _Calls:
    heads, lengths = bound.num_heads, bound.lengths or (bound.length,)
    places = tuple(
        Place(
            query_length=bound.query_length,
            key_length=bound.key_length,
            query_start=bound.query_start,
            key_start=bound.key_start,
            length=length,
        )
        for length in lengths
    )
    documents: tuple[Tensor | None, Tensor | None] = (None, None)
    if bound.query_document_BL is not None and bound.key_document_BS is not None:
        documents = _numbered(bound.query_document_BL, bound.key_document_BS)
    padding_BS = None if bound.key_padding_BS is None else ~bound.key_padding_BS
    hidden_BS = padding_BS
    if bound.key_is_global_BS is not None:
        hidden_BS = bound.key_is_global_BS if padding_BS is None else padding_BS | bound.key_is_global_BS
    common = {"query_document_BL": documents[0], "key_document_BS": documents[1]}
    terms = bound.pattern.terms() if bound.query_start == bound.key_start == 0 else ((1, bound.pattern),)
    calls = []
    for modulus, pattern in terms:
        own_places = tuple(place.strided(modulus) for place in places) if modulus > 1 else places
        plan = plan_of(pattern, heads, own_places)
        calls.append(_Call(plan=plan, modulus=modulus, key_hidden_BS=_contiguous(hidden_BS), **common))
    if bound.key_is_global_BS is not None and bool(bound.key_is_global_BS.any()):
        index_BG, valid_BG = gather_flags(bound.key_is_global_BS)
        if padding_BS is not None:
            valid_BG = valid_BG & ~padding_BS.gather(1, index_BG)
        calls.append(
            _Call(
                plan=_everything(bound.query_length, index_BG.shape[1], heads),
                key_hidden_BS=_contiguous(~valid_BG),
                query_document_BL=documents[0],
                key_document_BS=None if documents[1] is None else documents[1].gather(1, index_BG),
                query_index_BG=None,
                key_index_BG=index_BG,
            )
        )
    return _Calls(calls, _build_global_rows(bound, _contiguous(padding_BS), documents))


def _build_global_rows(
    bound: BoundPattern, padding_BS: Tensor | None, documents: tuple[Tensor | None, Tensor | None]
) -> _GlobalRows | None:
    if bound.query_is_global_BL is None or not bool(bound.query_is_global_BL.any()):
        return None
    index_BG, valid_BG = gather_flags(bound.query_is_global_BL)
    call = _Call(
        plan=_everything(index_BG.shape[1], bound.key_length, bound.num_heads),
        key_hidden_BS=padding_BS,
        query_document_BL=None if documents[0] is None else documents[0].gather(1, index_BG),
        key_document_BS=documents[1],
        query_index_BG=index_BG,
    )
    return _GlobalRows(index_BG=index_BG, valid_BG=valid_BG, call=call)


def _everything(query_length: int, key_length: int, num_heads: int) -> Plan:
    length = max(query_length, key_length)
    return plan_of(Dense(), num_heads, (Place(query_length=query_length, key_length=key_length, length=length),))


def _numbered(query_document_BL: Tensor, key_document_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as int64, numbered anew where a number would be too large for the operators."""
    query, key = query_document_BL.to(torch.int64), key_document_BS.to(torch.int64)
    if max(int(query.max()), int(key.max())) >= _MOST_DOCUMENTS:
        values, numbers = torch.unique(torch.cat([query.flatten(), key.flatten()]), return_inverse=True)
        numbers = numbers - int((values < 0).sum())
        query, key = numbers[: query.numel()].view(query.shape), numbers[query.numel() :].view(key.shape)
    return query.contiguous(), key.contiguous()


def _bias_by_distance(request: Request) -> Tensor | None:
    """Return the bias as (H, L + S - 1) in `softmax_dtype`, at query - key + S - 1, worked out once per batch."""
    bound = request.bound
    if request.bias is None:
        return None
    key = ("native bias", request.bias, request.softmax_dtype)
    if key not in bound.plans:
        head = torch.arange(bound.num_heads, device="cpu")[:, None]
        distance = torch.arange(1 - bound.key_length, bound.query_length, device="cpu")
        bias_HN = request.bias_at(head, distance, torch.zeros_like(distance))
        assert bias_HN is not None
        bound.plans[key] = bias_HN.contiguous()
    bias: Tensor = bound.plans[key]
    return bias


def _empty(like_BHND: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor of the same shape, in memory as (B, N, H, D), so that joining heads costs nothing."""
    batch, heads, length, width = like_BHND.shape
    return like_BHND.new_empty((batch, length, heads, width), dtype=dtype).transpose(1, 2)


def _with_rows(x_BHND: Tensor) -> Tensor:
    """Return the tensor with the D numbers of a row side by side in memory."""
    return x_BHND if x_BHND.stride(-1) == 1 else x_BHND.contiguous()


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _per_head(index_BG: Tensor, x_BHN: Tensor) -> Tensor:
    """(B, G) -> (B, H, G, ...): indices for gather and scatter along dimension 2."""
    batch, heads, rest = x_BHN.shape[0], x_BHN.shape[1], x_BHN.shape[3:]
    return index_BG.view(batch, 1, -1, *(1 for _ in rest)).expand(-1, heads, -1, *rest)


def _forward(*arguments: Any) -> None:
    torch.ops.longattn.attention_forward(*arguments)


def _backward(*arguments: Any) -> None:
    torch.ops.longattn.attention_backward(*arguments)
