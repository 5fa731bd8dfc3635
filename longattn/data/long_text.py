"""Encodes a text of any length in pieces, with the very tokens that it has in one piece.

A tokenizer's choice at one place depends on little of the text around it, so two overlapping pieces agree in the middle
of what they share, and are joined there. Where they do not, nothing is assumed of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray

Integers = NDArray[np.int64]

PIECE, OVERLAP = 500_000, 4_000
"""Characters of each piece, and those of the next one that it holds as well."""

_AGREEMENT = 32
"""Tokens in a row, with their places, that both pieces must have in common."""

_PIECES_AT_ONCE = 8  # encoded in parallel; each takes about 100 MB


@dataclass(frozen=True)
class _Piece:
    ids: Integers
    spans: Integers
    """(tokens, 2): where each token begins and ends in the text, in characters."""

    @property
    def tokens(self) -> Integers:
        """(tokens, 3): id, begin and end."""
        return np.column_stack([self.ids, self.spans])


def encode_long(
    tokenizer: tokenizers.Tokenizer, text: str, *, piece: int = PIECE, overlap: int = OVERLAP
) -> Integers | None:
    """Return the token ids of `text`, or None where two pieces of it do not agree on a place to join them."""
    found: list[Integers] = []
    before: _Piece | None = None
    first = 0
    for start, encoded in _pieces(tokenizer, text, piece, overlap):
        if before is not None:
            joint = _joint(before, encoded, start, overlap)
            if joint is None:
                return None
            found.append(before.ids[first : joint[0]])
            first = joint[1]
        before = encoded
    if before is not None:
        found.append(before.ids[first:])
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])


def _pieces(tokenizer: tokenizers.Tokenizer, text: str, piece: int, overlap: int) -> Iterator[tuple[int, _Piece]]:
    starts = range(0, max(1, len(text) - overlap), piece)
    for group in range(0, len(starts), _PIECES_AT_ONCE):
        chosen = starts[group : group + _PIECES_AT_ONCE]
        parts = [text[start : start + piece + overlap] for start in chosen]
        for start, encoding in zip(chosen, tokenizer.encode_batch(parts, add_special_tokens=False), strict=True):
            spans = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2) + start
            yield start, _Piece(np.asarray(encoding.ids, dtype=np.int64), spans)


def _joint(before: _Piece, after: _Piece, start: int, overlap: int) -> tuple[int, int] | None:
    """Return how many tokens to take of `before`, and which token of `after` comes next."""
    middle = start + overlap // 2
    mine = int(np.searchsorted(before.spans[:, 0], middle))
    theirs = int(np.searchsorted(after.spans[:, 0], middle))
    half = _AGREEMENT // 2
    if min(mine, theirs) < half:
        return None
    one = before.tokens[mine - half : mine + half]
    other = after.tokens[theirs - half : theirs + half]
    return (mine, theirs) if len(one) == len(other) == _AGREEMENT and np.array_equal(one, other) else None
