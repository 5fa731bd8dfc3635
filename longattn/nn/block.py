"""One layer of the encoder: attention and feed-forward, each with a residual connection, a norm and dropout.

Post-norm as in Vaswani et al. 2017 (arXiv 1706.03762, sec. 3.1), pre-norm as in Xiong et al. 2020 (arXiv 2002.04745).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longattn.errors import ConfigError
from longattn.nn.attention import MultiHeadAttention
from longattn.nn.bound_attention import BoundAttention
from longattn.nn.feed_forward import FeedForward
from longattn.nn.norm import Norm, make_norm
from longattn.nn.recompute import ActivationCheckpointing, computed_again, input_dtype

NormPlacement = Literal["pre", "post"]


class EncoderLayer(nn.Module):
    """Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)). `f` is first the attention, then the feed-forward."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        norm: Norm = "layer_norm",
        norm_placement: NormPlacement = "pre",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        """Take the two parts, how to normalise and where, and the dropout (a probability) of each part's output."""
        super().__init__()
        if norm_placement not in get_args(NormPlacement):
            raise ConfigError(
                f"norm_placement must be one of {', '.join(get_args(NormPlacement))}, got {norm_placement!r}"
            )
        self.attention, self.feed_forward = attention, feed_forward
        self.norm_placement = norm_placement
        self.attention_norm = make_norm(norm, attention.d_model, norm_eps)
        self.feed_forward_norm = make_norm(norm, attention.d_model, norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, bound: BoundAttention, checkpointing: ActivationCheckpointing = "none") -> Tensor:
        """(B, L, d_model) -> (B, L, d_model); `bound` is the layer's pattern, bound to the batch.

        `checkpointing` says what is not kept for the backward pass; what "layer" means is up to the caller.
        """
        again = checkpointing == "selective"
        if checkpointing == "attention" and torch.is_grad_enabled():
            # The random state is put back for the second run, so dropout is the same in both.
            hidden = hidden + checkpoint(self._attend, hidden, bound, again, use_reentrant=False)
        else:
            hidden = hidden + self._attend(hidden, bound, again)
        if self.norm_placement == "pre":
            return hidden + self._after_norm(self.feed_forward_norm, hidden, self.feed_forward, again)
        normed: Tensor = self.attention_norm(hidden)
        normed = normed + self._after(normed, lambda: self.attention_norm(hidden), self.feed_forward, again)
        out: Tensor = self.feed_forward_norm(normed)
        return out

    def _attend(self, hidden: Tensor, bound: BoundAttention, again: bool) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            attended: Tensor = self.attention(x, x, x, bound=bound)
            return attended

        if self.norm_placement == "pre":
            return self._after_norm(self.attention_norm, hidden, attend, again)
        return self._part(hidden, attend)

    def _after_norm(self, norm: nn.Module, hidden: Tensor, part: Callable[[Tensor], Tensor], again: bool) -> Tensor:
        return self._after(norm(hidden), lambda: norm(hidden), part, again)

    def _after(
        self, normed: Tensor, normalise: Callable[[], Tensor], part: Callable[[Tensor], Tensor], again: bool
    ) -> Tensor:
        """Return what `part` makes of `normed`, which is not kept if it may be computed `again`."""
        if not again or torch.compiler.is_compiling():  # which chooses by itself what to keep
            return self._part(normed, part)
        dtype = input_dtype(normed)
        lowered = normed.to(dtype)
        with computed_again(lowered, lambda: normalise().to(dtype)):
            out: Tensor = self.dropout(part(lowered))
            return out

    def _part(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        # Lowered once, where autocast would do so for each projection and keep every copy.
        out: Tensor = self.dropout(part(x.to(input_dtype(x))))
        return out
