"""One layer of the encoder: attention and feed-forward, each with a residual connection, a norm and dropout.

Post-norm as in Vaswani et al. 2017 (arXiv 1706.03762, sec. 3.1), pre-norm as in Xiong et al. 2020 (arXiv 2002.04745).
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from longattn.errors import ConfigError
from longattn.nn.attention import MultiHeadAttention
from longattn.nn.bound_attention import BoundAttention
from longattn.nn.feed_forward import FeedForward
from longattn.nn.norm import Norm, make_norm

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

    def forward(self, hidden: Tensor, bound: BoundAttention) -> Tensor:
        """(B, L, d_model) -> (B, L, d_model); `bound` is the layer's pattern, bound to the batch."""
        if self.norm_placement == "pre":
            normed = self.attention_norm(hidden)
            hidden = hidden + self.dropout(self.attention(normed, normed, normed, bound=bound))
            hidden = hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
            return hidden
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, hidden, hidden, bound=bound)))
        hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return hidden
