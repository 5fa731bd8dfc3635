"""Token and position embeddings, normalised and dropped out as in BERT (Devlin et al. 2019, arXiv 1810.04805)."""

from __future__ import annotations

from torch import Tensor, nn

from longattn.nn.norm import Norm, make_norm
from longattn.nn.position import Position


class Embeddings(nn.Module):
    """Looks tokens up, adds what the position scheme adds (if it works here), normalises, drops out."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        position: Position,
        pad_token_id: int | None = None,
        norm: Norm = "layer_norm",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model, padding_idx=pad_token_id)
        self.position = position.embedding(d_model)
        self.norm = make_norm(norm, d_model, norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """input_ids (B, L) and position_ids (B or 1, L), integers -> (B, L, d_model)."""
        hidden: Tensor = self.token(input_ids)
        if self.position is not None:
            hidden = (hidden + self.position(position_ids)).to(hidden.dtype)
        hidden = self.dropout(self.norm(hidden))
        return hidden
