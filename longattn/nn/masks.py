"""Reads the masks that users pass: boolean, or integers 0 and 1, of a shape that fits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longattn.errors import ConfigError


def read_flags(name: str, mask: Tensor, shapes: Sequence[tuple[int | tuple[int, ...], ...]], accepted: str) -> Tensor:
    """Return `mask` as bool.

    `shapes` holds what each accepted shape allows along each axis, one size or several; `accepted` says the same to
    people. ConfigError quotes the shape, dtype or value that does not fit.
    """
    if not any(_fits(mask.shape, shape) for shape in shapes):
        raise ConfigError(f"{name} must have shape {accepted}, got {tuple(mask.shape)}")
    if mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point() or mask.is_complex():
        raise ConfigError(f"{name} must be boolean or hold the integers 0 and 1 (1 = may be seen), got {mask.dtype}")
    strange = (mask != 0) & (mask != 1)
    if bool(strange.any()):
        hint = "; global tokens go into global_attention_mask" if name == "attention_mask" else ""
        raise ConfigError(f"{name} must hold 0 and 1 only, got {int(mask[strange][0])}{hint}")
    return mask.bool()


def _fits(actual: torch.Size, allowed: tuple[int | tuple[int, ...], ...]) -> bool:
    if len(actual) != len(allowed):
        return False
    sizes = [(size,) if isinstance(size, int) else size for size in allowed]
    return all(length in size for length, size in zip(actual, sizes, strict=True))
