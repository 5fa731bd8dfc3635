"""The chunked kernel keeps O(n) for the backward pass, and works in O(keys seen)."""

import subprocess
import sys

import pytest
import torch

import longattn
from longattn.patterns import BigBird, Longformer, SlidingWindow


def bytes_saved(pattern, length, kernel, **arguments):
    """Bytes that autograd keeps between forward and backward."""
    q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = longattn.attention(q, k, v, pattern, kernel=kernel, **arguments)
    out.sum().backward()
    return sum(saved.values())


@pytest.mark.parametrize("pattern", [SlidingWindow(64), Longformer(64), BigBird(64)])
def test_bytes_saved_grow_linearly(pattern):
    def at(length):
        is_global = torch.arange(length)[None] < 8
        return bytes_saved(pattern, length, "chunked", is_global=is_global if pattern.uses_globals else None)

    one, two = at(2048), at(4096)
    assert two <= 2.01 * one
    row = 2 * 4 * 16
    assert one <= 2048 * (4 * row + 2 * 4), "q, k, v, the output and one number per row"


def test_the_measure_sees_quadratic_memory():
    """The same measure on the oracle, which keeps its scores, must show them."""
    assert bytes_saved(SlidingWindow(64), 1024, "reference") > 3.5 * bytes_saved(SlidingWindow(64), 512, "reference")


@pytest.mark.slow
def test_peak_memory_of_a_long_document_is_linear():
    """A window over 65,536 tokens forward and backward in a fresh process: one n x n mask would take 4 GiB."""
    code = """
import resource, torch, longattn
from longattn.patterns import SlidingWindow
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
q, k, v = (torch.randn(1, 1, 65536, 16, requires_grad=True) for _ in range(3))
longattn.attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], SlidingWindow(64), kernel="chunked").sum().backward()
before = peak()
longattn.attention(q, k, v, SlidingWindow(64), kernel="chunked").sum().backward()
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 400 * 2**20
