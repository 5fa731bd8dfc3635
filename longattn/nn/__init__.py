"""Layers: multi-head attention over any pattern, positions, embeddings, feed-forward, encoder layer."""

from __future__ import annotations

from longattn.nn.attention import MultiHeadAttention
from longattn.nn.block import EncoderLayer
from longattn.nn.bound_attention import BoundAttention, bind_attention
from longattn.nn.embeddings import Embeddings
from longattn.nn.feed_forward import FeedForward
from longattn.nn.position import (
    Alibi,
    Learned,
    NoPosition,
    Position,
    Rope,
    Sinusoidal,
    position_from_config,
    positions,
)

__all__ = [
    "Alibi",
    "BoundAttention",
    "Embeddings",
    "EncoderLayer",
    "FeedForward",
    "Learned",
    "MultiHeadAttention",
    "NoPosition",
    "Position",
    "Rope",
    "Sinusoidal",
    "bind_attention",
    "position_from_config",
    "positions",
]
