"""Multi-head attention over any pattern (Vaswani et al. 2017, arXiv 1706.03762, sec. 3.2.2), with the separate
projections of global tokens (Beltagy et al. 2020, arXiv 2004.05150, sec. 3.1 and 3.3).

Shapes: B batch, L queries, S keys, M model width, H heads, D = M / H head dimension, G gathered global tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor, nn

from longattn.errors import ConfigError
from longattn.kernels import Request, ScoreBias, attention, check_kernel_name
from longattn.kernels.reference import attention_weights
from longattn.nn.bound_attention import BoundAttention, GlobalRows, bind_attention
from longattn.nn.masks import read_flags
from longattn.patterns import BoundPattern, Dense, Pattern

MAX_RETURNED_WEIGHTS = 2**26
"""Most attention weights (B * H * L * S) that `return_weights` builds: 256 MiB in fp32."""

_DENSE = Dense()


class MultiHeadAttention(nn.Module):
    """Attention of `num_heads` heads with learned projections, over the pairs that `pattern` shows.

    Where the pattern has global tokens, there is a second set of query, key and value projections: ordinary rows use
    the first set over the window and the global keys, the rows of global tokens use the second set over all keys.
    """

    def __init__(
        self, d_model: int, num_heads: int, pattern: Pattern = _DENSE, dropout: float = 0.0, kernel: str = "auto"
    ) -> None:
        """Take the width, the number of heads, who sees whom, the dropout of attention weights, and the kernel's name.

        ConfigError for heads that do not divide the width, a dropout outside [0, 1), or an unknown kernel.
        """
        super().__init__()
        check_heads(d_model, num_heads)
        check_dropout("dropout", dropout)
        check_kernel_name(kernel)
        if not isinstance(pattern, Pattern):
            raise ConfigError(f"pattern must be a Pattern such as SlidingWindow(radius=256), got {pattern!r}")
        pattern.check_num_heads(num_heads)
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, d_model // num_heads
        self.pattern, self.dropout, self.kernel = pattern, dropout, kernel
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        if pattern.uses_globals:
            self.w_q_global = nn.Linear(d_model, d_model)
            self.w_k_global = nn.Linear(d_model, d_model)
            self.w_v_global = nn.Linear(d_model, d_model)
            self.copy_projections_to_global()

    @torch.no_grad()
    def copy_projections_to_global(self) -> None:
        """Start the projections of global tokens from the values of the ordinary ones, in storage of their own."""
        if self.pattern.uses_globals:
            self.w_q_global.load_state_dict(self.w_q.state_dict())
            self.w_k_global.load_state_dict(self.w_k.state_dict())
            self.w_v_global.load_state_dict(self.w_v.state_dict())

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        is_global: Tensor | None = None,
        bound: BoundAttention | None = None,
        return_weights: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        is_global: Tensor | None = None,
        bound: BoundAttention | None = None,
        return_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        is_global: Tensor | None = None,
        bound: BoundAttention | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the attended values, (B, L, d_model), and with `return_weights` the weights, (B, H, L, S).

        query (B, L, d_model); key and value (B, S, d_model). `mask`, boolean or 0 and 1, True or 1 = may be seen:
        (B, S), (B or 1, L, S), or (B or 1, H or 1, L, S). `is_global` (B, L): global tokens of a pattern that has them.
        A model that has bound the batch already passes `bound` instead of both. A row that sees no key attends to
        nothing: its weights are 0. Weights are those before dropout, in fp32 (fp64 for fp64), and are refused where
        they would be more than `MAX_RETURNED_WEIGHTS`. ConfigError quotes the shape or dtype that does not fit.
        """
        self._check_inputs(query, key, value)
        if bound is None:
            bound = self._bind(query, key, mask, is_global)
        elif mask is not None or is_global is not None:
            raise ConfigError("`bound` already holds mask and is_global: pass those to bind_attention")
        if return_weights:
            self._check_weights_fit(query, key)
        heads = self._project(query, key, value, bound)
        global_rows = bound.global_rows
        out_BLM = self._join(self._attend(heads, bound.rows, bound.bias))
        global_heads = None
        if global_rows is not None:
            global_heads = self._project_global(query, key, value, bound, global_rows)
            own_BGM = self._join(self._attend(global_heads, global_rows.bound, _bias_at(bound.bias, global_rows)))
            out_BLM = global_rows.replace(out_BLM, own_BGM)
        elif self.pattern.uses_globals and torch.is_grad_enabled():
            out_BLM = out_BLM + self._idle_global_projections(query, key, value)
        out: Tensor = self.w_o(out_BLM)
        if not return_weights:
            return out
        weights_BHLS = self._weights(heads, bound.rows, bound.bias)
        if global_rows is not None and global_heads is not None:
            own_BHGS = self._weights(global_heads, global_rows.bound, _bias_at(bound.bias, global_rows))
            weights_BHLS = global_rows.replace(weights_BHLS.transpose(1, 2), own_BHGS.transpose(1, 2)).transpose(1, 2)
        return out, weights_BHLS

    def _bind(self, query: Tensor, key: Tensor, mask: Tensor | None, is_global: Tensor | None) -> BoundAttention:
        batch, query_length, key_length, heads = query.shape[0], query.shape[1], key.shape[1], self.num_heads
        key_padding = None
        if mask is not None:
            shapes = (
                (batch, key_length),
                ((batch, 1), query_length, key_length),
                ((batch, 1), (heads, 1), query_length, key_length),
            )
            accepted = (
                f"(batch, keys) = {(batch, key_length)}, (batch, queries, keys) = {(batch, query_length, key_length)} "
                f"or (batch, 1 or heads, queries, keys) = {(batch, f'1 or {heads}', query_length, key_length)}"
            ).replace("'", "")
            mask = read_flags("mask", mask, shapes, accepted)
            if mask.dim() == 2:
                key_padding, mask = mask, None
            elif mask.dim() == 3:
                mask = mask.unsqueeze(1)
        if is_global is not None:
            is_global = read_flags(
                "is_global", is_global, ((batch, query_length),), f"(batch, queries) = {(batch, query_length)}"
            )
        return bind_attention(
            self.pattern,
            num_heads=heads,
            query_length=query_length,
            key_length=key_length,
            key_padding=key_padding,
            is_global=is_global,
            mask=mask,
        )

    def _project(self, query: Tensor, key: Tensor, value: Tensor, bound: BoundAttention) -> _Heads:
        q_BHLD, k_BHSD = self._split(self.w_q(query)), self._split(self.w_k(key))
        if bound.rotation is not None:
            q_BHLD, k_BHSD = bound.rotation(q_BHLD), bound.rotation(k_BHSD)
        return _Heads(q_BHLD, k_BHSD, self._split(self.w_v(value)))

    def _project_global(
        self, query: Tensor, key: Tensor, value: Tensor, bound: BoundAttention, rows: GlobalRows
    ) -> _Heads:
        chosen_BGM = query.gather(1, rows.index_BG.unsqueeze(-1).expand(-1, -1, self.d_model))
        q_BHGD, k_BHSD = self._split(self.w_q_global(chosen_BGM)), self._split(self.w_k_global(key))
        if bound.rotation is not None:
            q_BHGD, k_BHSD = bound.rotation.at(rows.index_BG)(q_BHGD), bound.rotation(k_BHSD)
        return _Heads(q_BHGD, k_BHSD, self._split(self.w_v_global(value)))

    def _idle_global_projections(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return a zero that depends on the global projections.

        A rank whose batch has no global token still owes the others a gradient, be it 0. One token is enough, and the
        modules are called so that sharded parameters are gathered.
        """
        parts = (self.w_q_global(query[:1, :1]), self.w_k_global(key[:1, :1]), self.w_v_global(value[:1, :1]))
        return torch.stack([part.sum() for part in parts]).sum() * 0.0

    # Kernels are chosen by value, and compile themselves where it pays.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend(self, heads: _Heads, bound: BoundPattern, bias: ScoreBias | None) -> Tensor:
        # Only the textbook kernel takes a bias that differs between batch entries; these rows are few.
        kernel = "reference" if isinstance(bias, _GatheredBias) else self.kernel
        dropout_p = self.dropout if self.training else 0.0
        out = attention(heads.q, heads.k, heads.v, bound, bias=bias, dropout_p=dropout_p, kernel=kernel)
        assert isinstance(out, Tensor)
        return out

    def _weights(self, heads: _Heads, bound: BoundPattern, bias: ScoreBias | None) -> Tensor:
        request = Request(
            bound=bound,
            device=heads.q.device,
            dtype=heads.q.dtype,
            batch=heads.q.shape[0],
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            bias=bias,
        )
        return attention_weights(heads.q, heads.k, request)[0]

    def _split(self, x_BLM: Tensor) -> Tensor:
        """(B, L, M) -> (B, H, L, D)."""
        return x_BLM.reshape(*x_BLM.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _join(self, x_BHLD: Tensor) -> Tensor:
        """(B, H, L, D) -> (B, L, M)."""
        return x_BHLD.transpose(1, 2).flatten(2)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        if not query.dim() == key.dim() == value.dim() == 3:
            raise ConfigError(f"query, key and value must have shape (batch, length, d_model), got {shapes}")
        if not query.shape[2] == key.shape[2] == value.shape[2] == self.d_model:
            raise ConfigError(f"query, key and value must end in d_model = {self.d_model}, got {shapes}")
        if not query.shape[0] == key.shape[0] == value.shape[0]:
            raise ConfigError(f"query, key and value must have the same batch, got {shapes}")
        if key.shape[1] != value.shape[1]:
            raise ConfigError(
                f"key and value must have the same length, got {key.shape[1]} keys and {value.shape[1]} values"
            )

    def _check_weights_fit(self, query: Tensor, key: Tensor) -> None:
        batch, query_length, key_length = query.shape[0], query.shape[1], key.shape[1]
        count = batch * self.num_heads * query_length * key_length
        if count > MAX_RETURNED_WEIGHTS:
            raise ConfigError(
                f"return_weights would build {batch} x {self.num_heads} heads x {query_length} queries x {key_length} "
                f"keys = {count} weights, more than {MAX_RETURNED_WEIGHTS}: pass fewer documents or a shorter one"
            )

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, pattern={self.pattern!r}, dropout={self.dropout}, "
            f"kernel={self.kernel!r}"
        )


@dataclass(frozen=True, eq=False)
class _Heads:
    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True, eq=False)
class _GatheredBias:
    """A bias whose queries are gathered tokens, other ones in each batch entry; hashed by identity."""

    bias: ScoreBias
    index_BG: Tensor

    def __call__(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return (B, H, G, S) for `query` = slots of shape (G, 1)."""
        return self.bias(head, self.index_BG[:, query].unsqueeze(1), key)


def _bias_at(bias: ScoreBias | None, rows: GlobalRows) -> ScoreBias | None:
    return None if bias is None else _GatheredBias(bias, rows.index_BG)


def check_heads(d_model: int, num_heads: int) -> None:
    """Raise ConfigError unless both are positive integers and `num_heads` divides `d_model`."""
    for name, value in (("d_model", d_model), ("num_heads", num_heads)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")
    if d_model % num_heads:
        divisors = [heads for heads in range(1, d_model + 1) if d_model % heads == 0]
        near = sorted(sorted(divisors, key=lambda heads: abs(heads - num_heads))[:2])
        raise ConfigError(
            f"num_heads must divide d_model, got num_heads {num_heads} and d_model {d_model}; "
            f"{' or '.join(map(str, near))} heads would do"
        )


def check_dropout(name: str, p: float) -> None:
    """Raise ConfigError unless `p` is a probability below 1."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0.0 <= p < 1.0:
        raise ConfigError(f"{name} must be in [0, 1), got {p!r}")
