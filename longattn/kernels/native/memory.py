"""Lets large CPU tensors take over the memory of earlier ones, which costs no page faults."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from longattn.kernels.native.library import missing


class CpuMemory(NamedTuple):
    """Bytes of tensors of 1 MiB and more."""

    used: int
    """In tensors."""

    kept: int
    """Of tensors that are gone, ready for others."""

    peak: int
    """Most bytes used at once; used and kept are together never more."""


@functools.cache
def reuse_cpu_memory() -> str | None:
    """Let every large CPU tensor of this process take over memory from now on; return why it cannot be, or None.

    It changes no number. Freed memory stays with the process, but used and kept memory are together never more than
    was ever used at once, which is less than the system's allocator needs: it leaves holes. `longattn fit` does so by
    itself on CPU; programs with a training loop of their own call it once, before the first step.
    """
    reason = missing()
    if reason is None:
        torch.ops.longattn.reuse_memory()
    return reason


def cpu_memory() -> CpuMemory:
    """Return what the allocator of `reuse_cpu_memory` holds; all 0 where it is not in use."""
    if missing() is not None:
        return CpuMemory(0, 0, 0)
    return CpuMemory(*torch.ops.longattn.memory_in_use())
