"""A pattern together with what depends on a batch: padding, packed documents, global tokens, an explicit mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longattn.errors import ConfigError
from longattn.patterns.base import Pattern
from longattn.patterns.layout import BlockLayout, cached_layout
from longattn.patterns.scope import Scope


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundPattern:
    """Who sees whom in one batch; made by `bind`, which checks it.

    Indices count within the queries and keys at hand; `query_start` and `key_start` turn them into positions of a
    document of `length` tokens, of which they may be a slice. Shapes: B batch, H heads, L queries, S keys; every
    tensor is None where it would change nothing.
    """

    pattern: Pattern
    num_heads: int
    query_length: int
    key_length: int
    query_start: int = 0
    key_start: int = 0
    length: int
    lengths: tuple[int, ...] = ()
    """Tokens in the document of each batch entry, where the pattern depends on that and they differ; else empty."""

    key_padding_BS: Tensor | None = None
    query_document_BL: Tensor | None = None
    key_document_BS: Tensor | None = None
    query_is_global_BL: Tensor | None = None
    key_is_global_BS: Tensor | None = None
    mask_BHLS: Tensor | None = None
    plans: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What kernels work out once for this batch and share over layers, under keys of their own."""

    @property
    def batch_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that depend on the batch, those that are there."""
        candidates = (
            self.key_padding_BS,
            self.query_document_BL,
            self.query_is_global_BL,
            self.key_is_global_BS,
            self.mask_BHLS,
        )
        return tuple(tensor for tensor in candidates if tensor is not None)

    @property
    def batch(self) -> int:
        """Entries of the batch that may differ: 1 where none do."""
        return max(1, len(self.lengths), *(tensor.shape[0] for tensor in self.batch_tensors))

    @property
    def mask_heads(self) -> int:
        """Heads that may differ: 1 where none do."""
        own = self.num_heads if self.pattern.depends_on_head else 1
        return max(own, 1 if self.mask_BHLS is None else self.mask_BHLS.shape[1])

    @property
    def has_globals(self) -> bool:
        """Whether the batch may have global tokens."""
        return self.query_is_global_BL is not None or self.key_is_global_BS is not None

    @property
    def identity(self) -> Hashable | None:
        """A key that is equal for equal bound patterns, or None if this one depends on a batch."""
        if self.batch_tensors:
            return None
        place = (self.query_length, self.key_length, self.query_start, self.key_start, self.length)
        return (self.pattern, self.num_heads, *place, self.lengths)

    def without_globals(self) -> BoundPattern:
        """Return the same binding with no global token: what `layout` describes."""
        if not self.has_globals:
            return self
        if "without_globals" not in self.plans:
            self.plans["without_globals"] = dataclasses.replace(
                self, query_is_global_BL=None, key_is_global_BS=None, plans={}
            )
        bound: BoundPattern = self.plans["without_globals"]
        return bound

    def sees(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return a bool tensor: in entry `batch`, does query index `query` of `head` see key index `key`?

        Four int64 tensors that broadcast against each other; the result broadcasts to their common shape.
        """
        return self._restrict([(n, self.pattern.sees) for n in self._distinct_lengths], batch, head, query, key)

    @property
    def _distinct_lengths(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.lengths))) if self.lengths else (self.length,)

    def _restrict(
        self,
        by_length: list[tuple[int, Callable[..., Tensor]]],
        batch: Tensor,
        head: Tensor,
        query: Tensor,
        key: Tensor,
    ) -> Tensor:
        """Return what the pattern, as a function for each document length, and the batch both let be seen."""
        seen: Tensor | None = None
        for length, pattern in by_length:
            scope = Scope(
                length=length,
                query_is_global=_take(self.query_is_global_BL, batch, query),
                key_is_global=_take(self.key_is_global_BS, batch, key),
            )
            part = pattern(head, query + self.query_start, key + self.key_start, scope)
            if self.lengths:
                part = part & (self._lengths_on(batch.device)[batch] == length)
            seen = part if seen is None else seen | part
        assert seen is not None
        if self.key_padding_BS is not None:
            seen = seen & self.key_padding_BS[batch, key]
        if self.query_document_BL is not None and self.key_document_BS is not None:
            document = self.query_document_BL[batch, query]
            seen = seen & (document >= 0) & (document == self.key_document_BS[batch, key])
        if self.mask_BHLS is not None:
            one_batch, one_head = self.mask_BHLS.shape[0] == 1, self.mask_BHLS.shape[1] == 1
            at = (torch.zeros_like(batch) if one_batch else batch, torch.zeros_like(head) if one_head else head)
            seen = seen & self.mask_BHLS[*at, query, key]
        return seen

    def mask_function(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return `sees` in a form that compilers can trace: no value of a tensor decides what is computed."""
        by_length = [(n, self.pattern.mask_function(self.num_heads, n, device)) for n in self._distinct_lengths]
        self._lengths_on(device)

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return self._restrict(by_length, batch, head, query, key)

        return visible

    def _lengths_on(self, device: torch.device) -> Tensor:
        if ("lengths", device) not in self.plans:
            self.plans["lengths", device] = torch.tensor(self.lengths, device=device)
        lengths: Tensor = self.plans["lengths", device]
        return lengths

    def mask(self, device: torch.device | None = None) -> Tensor:
        """Return the whole visibility, (B or 1, H or 1, L, S) bool: O(n²), for small cases and dense kernels."""
        batch = torch.arange(self.batch, device=device)[:, None, None, None]
        head = torch.arange(self.mask_heads, device=device)[:, None, None]
        query = torch.arange(self.query_length, device=device)[:, None]
        key = torch.arange(self.key_length, device=device)
        shape = (self.batch, self.mask_heads, self.query_length, self.key_length)
        return self.sees(batch, head, query, key).expand(shape)

    def layout(self, block_size: int, *, with_globals: bool = False) -> BlockLayout:
        """Return the blocks of keys that each block of queries of the batch sees, on the CPU.

        A tile marked full is visible throughout; a partial tile may turn out empty, since documents and padding are
        judged by block. Pairs with a global token are left out unless `with_globals`.
        """
        key = ("layout", block_size, with_globals)
        if key not in self.plans:
            with torch.device("cpu"):  # whatever the user's default device
                self.plans[key] = self._build_layout(block_size, with_globals)
        layout: BlockLayout = self.plans[key]
        return layout

    def pattern_layout(self, block_size: int) -> BlockLayout:
        """Return the layout of the pattern alone, whatever the batch; exact, without global tokens, cached by value."""
        place = (self.query_length, self.key_length, block_size, self.query_start, self.key_start)
        layouts = [cached_layout(self.pattern, self.num_heads, *place, length) for length in self._distinct_lengths]
        if not self.lengths:
            return layouts[0]
        by_length = dict(zip(self._distinct_lengths, layouts, strict=True))
        return BlockLayout.stack([by_length[length] for length in self.lengths])

    def _build_layout(self, block_size: int, with_globals: bool) -> BlockLayout:
        static = self.pattern_layout(block_size)
        global_tensors = sum(flags is not None for flags in (self.query_is_global_BL, self.key_is_global_BS))
        if len(self.batch_tensors) == (0 if with_globals else global_tensors):
            return static
        shape = (self.batch, self.mask_heads, static.query_blocks, static.key_blocks)
        kinds = static.kinds().expand(shape)
        possible, certain = kinds > 0, kinds == 2
        if with_globals:
            query_any = _block_reduce(self.query_is_global_BL, block_size, "any")
            key_any = _block_reduce(self.key_is_global_BS, block_size, "any")
            for flags, view in ((query_any, (1, -1, 1)), (key_any, (1, 1, -1))):
                if flags is not None:
                    possible = possible | flags.view(flags.shape[0], *view)
        for some, every in self._batch_conditions(block_size):
            possible, certain = possible & some, certain & every
        flat = possible.flatten(0, 2)
        rows, columns = torch.nonzero(flat, as_tuple=True)
        return BlockLayout.from_tiles(
            block_size=block_size,
            query_length=self.query_length,
            key_length=self.key_length,
            batch=shape[0],
            heads=shape[1],
            rows=rows,
            columns=columns,
            full=certain.reshape(flat.shape)[rows, columns],
        )

    def _batch_conditions(self, block_size: int) -> list[tuple[Tensor, Tensor]]:
        """Return (some pair may be visible, every pair is) by block, each broadcastable to (B, H, blocks, blocks)."""
        conditions: list[tuple[Tensor, Tensor]] = []
        some, every = (_block_reduce(self.key_padding_BS, block_size, how) for how in ("any", "all"))
        if some is not None and every is not None:
            conditions.append((some[:, None, None, :], every[:, None, None, :]))
        if self.query_document_BL is not None and self.key_document_BS is not None:
            query_low, query_high = _block_range(self.query_document_BL, block_size)
            key_low, key_high = _block_range(self.key_document_BS, block_size)
            query_low, query_high = query_low[:, None, :, None], query_high[:, None, :, None]
            key_low, key_high = key_low[:, None, None, :], key_high[:, None, None, :]
            overlap = (query_low <= key_high) & (key_low <= query_high) & (query_high >= 0) & (key_high >= 0)
            one = (query_low == query_high) & (key_low == key_high) & (query_low == key_low) & (query_low >= 0)
            conditions.append((overlap, one))
        if self.mask_BHLS is not None:
            some, every = _mask_blocks(self.mask_BHLS, block_size)
            conditions.append((some, every))
        return conditions


def bind(
    pattern: Pattern,
    *,
    num_heads: int,
    query_length: int,
    key_length: int | None = None,
    query_start: int = 0,
    key_start: int = 0,
    length: int | Sequence[int] | None = None,
    key_padding: Tensor | None = None,
    query_document: Tensor | None = None,
    key_document: Tensor | None = None,
    query_is_global: Tensor | None = None,
    key_is_global: Tensor | None = None,
    mask: Tensor | None = None,
) -> BoundPattern:
    """Bind `pattern` to a batch, and check that everything fits.

    key_padding (B, S) bool, True = real token; query_document (B, L) and key_document (B, S) int, -1 = padding (with
    queries and keys of equal length, one of them is enough); query_is_global (B, L) and key_is_global (B, S) bool; mask
    (B or 1, H or 1, L, S) bool, True = may be seen. `query_start`, `key_start` and `length` (one, or one per
    entry) place a slice of queries and keys within a document; a length not given ends at the last real token, so that
    what a document sees does not depend on how far it is padded. ConfigError says what does not fit.
    """
    if not isinstance(pattern, Pattern):
        raise ConfigError(f"pattern must be a Pattern such as SlidingWindow(radius=256), got {pattern!r}")
    pattern.check_num_heads(num_heads)
    key_length = query_length if key_length is None else key_length
    bools, ints = (torch.bool,), (torch.int64, torch.int32)
    _check("key_padding", key_padding, (key_length,), bools)
    _check("query_document", query_document, (query_length,), ints)
    _check("key_document", key_document, (key_length,), ints)
    _check("query_is_global", query_is_global, (query_length,), bools)
    _check("key_is_global", key_is_global, (key_length,), bools)
    _check("mask", mask, (num_heads, query_length, key_length), bools)
    if query_document is None and query_length == key_length:
        query_document = key_document
    if key_document is None and query_length == key_length:
        key_document = query_document
    if (query_document is None) != (key_document is None):
        raise ConfigError("documents of queries and keys must be given together when their lengths differ")
    if length is None:
        if not pattern.allows_cross_attention and query_length != key_length:
            raise ConfigError(
                f"{type(pattern).__name__} has no meaning in cross-attention "
                f"({query_length} queries, {key_length} keys): "
                "use Dense with a mask"
            )
        length = max(query_start + query_length, key_start + key_length)
        real = _real_keys(key_padding, key_document)
        if pattern.depends_on_length and real is not None and real.numel():
            length = [key_start + tokens for tokens in _real_lengths(real)]
    lengths = (length,) if isinstance(length, int) else tuple(length)
    pattern.check_length(max(lengths))
    if not pattern.uses_globals and (query_is_global is not None or key_is_global is not None):
        raise ConfigError(f"{pattern!r} has no global tokens: use Longformer, or leave is_global out")
    return BoundPattern(
        pattern=pattern,
        num_heads=num_heads,
        query_length=query_length,
        key_length=key_length,
        query_start=query_start,
        key_start=key_start,
        length=max(lengths),
        lengths=lengths if len(set(lengths)) > 1 else (),
        key_padding_BS=key_padding,
        query_document_BL=query_document,
        key_document_BS=key_document,
        query_is_global_BL=query_is_global,
        key_is_global_BS=key_is_global,
        mask_BHLS=mask,
    )


def gather_flags(flags_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of True, (B, G), and which of them are real; rows with fewer repeat other tokens, not real.

    The fillers are distinct tokens too, so that scattering to them is well defined.
    """
    count = int(flags_BN.sum(1).max()) if flags_BN.numel() else 0
    index = torch.argsort(flags_BN.to(torch.int8), dim=1, descending=True, stable=True)[:, :count].contiguous()
    return index, flags_BN.gather(1, index)


def _check(name: str, tensor: Tensor | None, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if tensor is None:
        return
    if tensor.dtype not in dtypes:
        raise ConfigError(f"{name} must have dtype {dtypes[0]}, got {tensor.dtype}")
    wanted = "(batch, " + ", ".join(map(str, shape)) + ")"
    fits = tensor.dim() == len(shape) + 1 and tensor.shape[-1] == shape[-1]
    if fits and len(shape) == 3:
        fits = tensor.shape[-2] == shape[-2] and tensor.shape[1] in (1, shape[0])
    if not fits:
        raise ConfigError(f"{name} must have shape {wanted}, got {tuple(tensor.shape)}")


def _real_keys(key_padding_BS: Tensor | None, key_document_BS: Tensor | None) -> Tensor | None:
    """Return which keys are no padding, (B, S) bool, or None where nothing says that any is."""
    if key_document_BS is None:
        return key_padding_BS
    real_BS = key_document_BS >= 0
    if key_padding_BS is None or key_padding_BS.shape != real_BS.shape:
        return real_BS
    return real_BS & key_padding_BS


def _real_lengths(real_BS: Tensor) -> list[int]:
    """Return, for each entry, the tokens up to and with its last real one, at least 1."""
    place = torch.arange(1, real_BS.shape[1] + 1, device=real_BS.device)
    lengths: list[int] = (real_BS * place).amax(1).clamp(min=1).tolist()
    return lengths


def _take(flags: Tensor | None, batch: Tensor, index: Tensor) -> Tensor | None:
    return None if flags is None else flags[batch, index]


def _blocks(values_BN: Tensor, block_size: int, fill: int) -> Tensor:
    """(B, N) -> (B, blocks, block_size) on the CPU, the last block filled up with `fill`."""
    short = -values_BN.shape[1] % block_size
    padded = torch.nn.functional.pad(values_BN.cpu().to(torch.int64), (0, short), value=fill)
    return padded.view(padded.shape[0], padded.shape[1] // block_size, block_size)


def _block_reduce(flags_BN: Tensor | None, block_size: int, how: str) -> Tensor | None:
    if flags_BN is None:
        return None
    blocks = _blocks(flags_BN, block_size, 0 if how == "any" else 1).bool()
    return blocks.any(-1) if how == "any" else blocks.all(-1)


def _block_range(document_BN: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest document of each block, (B, blocks); positions past the end do not count."""
    highest = torch.iinfo(torch.int64).max
    return _blocks(document_BN, block_size, highest).amin(-1), _blocks(document_BN, block_size, -2).amax(-1)


def _mask_blocks(mask_BHLS: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return (any, all) of an explicit mask by block, (B or 1, H or 1, query blocks, key blocks)."""
    short = (0, -mask_BHLS.shape[-1] % block_size, 0, -mask_BHLS.shape[-2] % block_size)

    def tiles(fill: bool) -> Tensor:
        padded = torch.nn.functional.pad(mask_BHLS.cpu(), short, value=fill)
        batch, heads, queries, keys = padded.shape
        tiled = padded.view(batch, heads, queries // block_size, block_size, keys // block_size, block_size)
        return tiled.transpose(3, 4).flatten(4)

    return tiles(False).any(-1), tiles(True).all(-1)
