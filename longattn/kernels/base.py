"""What a kernel is: one way to compute softmax(Q Kᵀ · scale + bias) V over the pairs that a bound pattern shows.

Shapes in this folder: B batch, H heads, L queries, S keys, D head dimension. `q_BHLD` is a tensor of those axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from longattn.kernels.dropout import Dropout
from longattn.patterns import BoundPattern


class ScoreBias(Protocol, Hashable):
    """A term added to the scores as a function of positions alone, such as ALiBi's; hashable, without gradient.

    One that depends on query - key alone says so by an attribute `is_relative = True`; kernels may then tabulate it.
    """

    def __call__(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return the fp32 or fp64 bias for broadcastable int64 `head`, `query` position and `key` position."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """All that a kernel is asked for besides the tensors themselves."""

    bound: BoundPattern
    device: torch.device
    dtype: torch.dtype
    batch: int
    head_dim: int
    scale: float
    """Factor on Q Kᵀ, 1 / sqrt(head_dim) unless the caller says otherwise."""

    bias: ScoreBias | None = None
    dropout: Dropout | None = None
    """Dropout of attention weights; None in evaluation."""

    needs_grad: bool = False
    needs_lse: bool = False

    @property
    def softmax_dtype(self) -> torch.dtype:
        """Precision of scores, softmax and lse: fp64 for fp64, fp32 for everything lower."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def bias_at(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        """Return the bias for indices into the queries and keys at hand, in `softmax_dtype`."""
        if self.bias is None:
            return None
        bias = self.bias(head, query + self.bound.query_start, key + self.bound.key_start)
        return bias.to(self.softmax_dtype)


class Kernel(ABC):
    """One way to compute attention. A subclass in a file of this folder is found by its `name`."""

    name: ClassVar[str]

    @classmethod
    def missing(cls) -> str | None:
        """Return why this machine cannot run the kernel at all, in words, or None."""
        return None

    @classmethod
    @abstractmethod
    def unsupported_reason(cls, request: Request) -> str | None:
        """Return why the kernel cannot do `request`, in words, or None; `missing` is asked separately."""

    @classmethod
    @abstractmethod
    def cost(cls, request: Request) -> float:
        """Estimate the work of `request`, in units of one query-key pair of dense SDPA; `auto` takes the least."""

    @classmethod
    @abstractmethod
    def run(cls, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, request: Request) -> tuple[Tensor, Tensor | None]:
        """Return out_BHLD in the dtype of `q_BHLD` and lse_BHL in `request.softmax_dtype`, both differentiable.

        lse may be None where `request.needs_lse` is False. A row that sees no key gets output 0, lse -inf, gradient 0.
        """
