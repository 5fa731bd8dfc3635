"""Large CPU tensors take over memory; each test is a process of its own, as the allocator is the process's."""

import subprocess
import sys

import pytest

from longattn.kernels.native import library

pytestmark = pytest.mark.skipif(library.missing() is not None, reason=f"no C++ attention: {library.missing()}")

START = """
import os, threading, torch, longattn
from longattn.kernels.native import cpu_memory
MIB = 1 << 20
def mib(n): return torch.empty(n * MIB, dtype=torch.uint8)
before = mib(3)
assert longattn.reuse_cpu_memory() is None
assert longattn.reuse_cpu_memory() is None
"""


def run(code):
    subprocess.run([sys.executable, "-c", START + code], check=True, timeout=120)


def test_memory_of_a_freed_tensor_is_taken_over():
    run("""
x = mib(50); place = x.data_ptr(); x.fill_(7); del x
y = mib(48)
assert y.data_ptr() == place, "by a tensor of nearly the same size"
assert mib(20).data_ptr() != place
assert torch.zeros(50 * MIB, dtype=torch.uint8).sum() == 0
""")


def test_used_and_kept_are_never_more_than_the_peak():
    run("""
import random
random.seed(0)
held, peak = [], 0
for _ in range(3000):
    if held and random.random() < 0.5:
        held.pop(random.randrange(len(held)))
    else:
        held.append(mib(random.choice([1, 2, 3, 5, 8, 13])))
    memory = cpu_memory()
    assert memory.used == sum(x.numel() for x in held)
    peak = max(peak, memory.used)
    assert memory.peak == peak
    assert memory.used + memory.kept <= peak
held.clear()
assert cpu_memory().used == 0 < cpu_memory().kept
torch.ops.longattn.release_memory()
assert cpu_memory() == (0, 0, 0)
""")


def test_small_and_earlier_tensors_are_freed_where_they_came_from():
    run("""
small = [torch.empty(100) for _ in range(1000)]
assert cpu_memory().used == 0
before.resize_(5 * MIB).fill_(1)
del small, before
assert cpu_memory().used == 0
""")


def test_contents_survive_copies_resizes_and_threads():
    run("""
x = torch.arange(MIB)
y = x.clone(); x.resize_(3 * MIB)
assert torch.equal(x[:MIB], y) and torch.equal(y, torch.arange(MIB))
def work(seed):
    for _ in range(200):
        z = torch.full((MIB,), seed); assert (z == seed).all()
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
""")


def test_a_forked_worker_allocates():
    run("""
torch.set_num_threads(1)
x = mib(5); del x
child = os.fork()
if child == 0:
    os._exit(0 if torch.full((2 * MIB,), 3.0)[-1] == 3.0 else 1)
assert os.waitpid(child, 0)[1] == 0
""")


def test_too_much_memory_is_an_error_not_the_end():
    run("""
try:
    torch.empty(1 << 60, dtype=torch.uint8)
except torch.OutOfMemoryError as error:
    assert "out of memory" in str(error)
else:
    raise AssertionError("a tensor of an exbibyte")
assert mib(2).fill_(1).sum() == 2 * MIB
""")
