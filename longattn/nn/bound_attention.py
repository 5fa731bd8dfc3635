"""A pattern bound to a batch as attention layers use it: ordinary rows, the rows of global tokens, positions.

Shapes: B batch, H heads, L queries, S keys, G most global tokens of a batch entry, N global tokens of the whole batch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from longattn.kernels import ScoreBias
from longattn.nn.rotation import Rotation
from longattn.patterns import BoundPattern, Dense, Longformer, Pattern, bind


@dataclass(frozen=True, eq=False, kw_only=True)
class GlobalRows:
    """The global tokens of a batch, gathered into rows of their own; entries with fewer than G have idle slots.

    An idle slot holds a token that is not global; what is computed for it is not used.
    """

    index_BG: Tensor
    """Token of each slot."""

    entry_N: Tensor
    """Batch entry of each global token."""

    slot_N: Tensor
    """Slot of each global token: it is token `index_BG[entry_N, slot_N]`."""

    token_N: Tensor
    """Place of each global token in the sequence."""

    bound: BoundPattern
    """What the G gathered queries see of the S keys: every real token of their document, unless the pattern or a mask
    forbids it."""

    def replace(self, all_BLX: Tensor, own_BGX: Tensor) -> Tensor:
        """Return `all_BLX` with the rows of the global tokens taken from `own_BGX`."""
        rows_NX = own_BGX[self.entry_N, self.slot_N].to(all_BLX.dtype)
        return all_BLX.index_put((self.entry_N, self.token_N), rows_NX)


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundAttention:
    """All that a batch tells the attention layers of one pattern; made once by `bind_attention`, shared by layers."""

    rows: BoundPattern
    """What every token sees as an ordinary one; global tokens are among the keys of all."""

    global_rows: GlobalRows | None = None
    """None where the batch has no global token."""

    rotation: Rotation | None = None
    """Turns queries and keys by their positions (self-attention only)."""

    bias: ScoreBias | None = None
    """Added to the scores."""


def bind_attention(
    pattern: Pattern,
    *,
    num_heads: int,
    query_length: int,
    key_length: int | None = None,
    key_padding: Tensor | None = None,
    document: Tensor | None = None,
    is_global: Tensor | None = None,
    mask: Tensor | None = None,
    rotation: Rotation | None = None,
    bias: ScoreBias | None = None,
) -> BoundAttention:
    """Bind `pattern` to a batch.

    key_padding (B, S) bool, True = real token; document (B, L) int, -1 = padding; is_global (B, L) bool, ignored at
    padding; mask (B or 1, H or 1, L, S) bool, True = may be seen. ConfigError says what does not fit.
    """
    if is_global is not None:
        is_global = _without_padding(is_global, key_padding, document)

    def bind_rows(key_is_global: Tensor | None) -> BoundPattern:
        return bind(
            pattern,
            num_heads=num_heads,
            query_length=query_length,
            key_length=key_length,
            key_padding=key_padding,
            query_document=document,
            key_is_global=key_is_global,
            mask=mask,
        )

    rows = bind_rows(is_global)
    global_rows = None if is_global is None else _gather_global_rows(rows, is_global)
    if is_global is not None and global_rows is None:
        rows = bind_rows(None)  # so that kernels need not look for global tokens that are not there
    return BoundAttention(rows=rows, global_rows=global_rows, rotation=rotation, bias=bias)


def _without_padding(is_global: Tensor, key_padding: Tensor | None, document: Tensor | None) -> Tensor:
    if key_padding is not None and key_padding.shape == is_global.shape:
        is_global = is_global & key_padding
    if document is not None and document.shape == is_global.shape:
        is_global = is_global & (document >= 0)
    return is_global


def _gather_global_rows(rows: BoundPattern, is_global_BL: Tensor) -> GlobalRows | None:
    entry_N, token_N = torch.nonzero(is_global_BL, as_tuple=True)
    if entry_N.numel() == 0:
        return None
    count_B = is_global_BL.sum(1)
    slots = int(count_B.max())
    index_BG = is_global_BL.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :slots]
    filled_BG = torch.arange(slots, device=count_B.device) < count_B[:, None]
    slot_N = torch.nonzero(filled_BG, as_tuple=True)[1]
    query_document = key_document = None
    if rows.query_document_BL is not None and rows.key_document_BS is not None:
        query_document = rows.query_document_BL.gather(1, index_BG)
        key_document = rows.key_document_BS
    bound = bind(
        Dense(),
        num_heads=rows.num_heads,
        query_length=slots,
        key_length=rows.key_length,
        length=rows.length,
        key_padding=rows.key_padding_BS,
        query_document=query_document,
        key_document=key_document,
        mask=_global_rows_mask(rows, index_BG),
    )
    return GlobalRows(index_BG=index_BG, entry_N=entry_N, slot_N=slot_N, token_N=token_N, bound=bound)


def _global_rows_mask(rows: BoundPattern, index_BG: Tensor) -> Tensor | None:
    """Return what the gathered tokens see as global ones, (B, 1 or H, G, S); None for everything real."""
    if type(rows.pattern) is Longformer and rows.mask_BHLS is None:
        return None  # compositions may narrow what its global tokens see
    assert rows.key_is_global_BS is not None
    bound = dataclasses.replace(rows, query_is_global_BL=torch.ones_like(rows.key_is_global_BS), plans={})
    entry = torch.arange(index_BG.shape[0], device=index_BG.device)[:, None, None, None]
    head = torch.arange(rows.mask_heads, device=index_BG.device)[:, None, None]
    key = torch.arange(rows.key_length, device=index_BG.device)
    seen = bound.sees(entry, head, index_BG[:, None, :, None], key)
    return seen.expand(index_BG.shape[0], rows.mask_heads, index_BG.shape[1], rows.key_length)
