"""What models return: named tuples, so that DDP, FSDP and DeepSpeed find the tensors in them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class EncoderOutput(NamedTuple):
    """What `Encoder` returns. Shapes: B batch, L tokens."""

    last_hidden_state: Tensor
    """(B, L, d_model)."""

    hidden_states: tuple[Tensor, ...] | None = None
    """On request: the embeddings and the output of each layer, num_layers + 1 of (B, L, d_model); the last one before
    the final norm of a pre-norm encoder."""


class MaskedLanguageModelOutput(NamedTuple):
    """What `MaskedLanguageModel` returns. Shapes: B batch, L tokens, N labelled positions, V vocabulary."""

    last_hidden_state: Tensor
    """(B, L, d_model)."""

    logits: Tensor | None = None
    """(B, L, V). None with labels, when they are never all held at once."""

    loss: Tensor | None = None
    """Mean loss of the labelled positions in nats, fp32 scalar; 0 when there is none. None without labels."""

    loss_sum: Tensor | None = None
    """Sum of the losses, for weighing by tokens over batches and ranks."""

    label_count: Tensor | None = None
    """Labelled positions N, int64 scalar."""

    label_positions: Tensor | None = None
    """(N, 2) int64: batch entry and token of each labelled position, in ascending order."""

    losses: Tensor | None = None
    """(N,): loss of each labelled position in nats, fp32, without gradient."""

    predictions: Tensor | None = None
    """(N,) int64: the likeliest token at each labelled position."""

    hidden_states: tuple[Tensor, ...] | None = None
    """As in `EncoderOutput`."""
