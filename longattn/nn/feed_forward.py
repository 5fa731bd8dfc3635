"""The position-wise network of a layer (Vaswani et al. 2017, arXiv 1706.03762, sec. 3.3).

GELU: Hendrycks & Gimpel 2016, arXiv 1606.08415. GeGLU: Shazeer 2020, arXiv 2002.05202.
"""

from __future__ import annotations

from typing import get_args

from torch import Tensor, nn

from longattn.errors import ConfigError
from longattn.nn.activated_linear import ActivatedLinear, Activation


class FeedForward(nn.Module):
    """d_model -> d_ff -> d_model. "geglu" gates d_ff hidden units by as many others: half as many weights again."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation = "gelu") -> None:
        """Take both widths and the activation; ConfigError for an unknown one."""
        super().__init__()
        if activation not in get_args(Activation):
            raise ConfigError(f"activation must be one of {', '.join(get_args(Activation))}, got {activation!r}")
        self.w_in = nn.Linear(d_model, 2 * d_ff if activation == "geglu" else d_ff)
        self.w_out = ActivatedLinear(d_ff, d_model, activation)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., d_model)."""
        out: Tensor = self.w_out(self.w_in(x))
        return out
