"""The C++ operators: the same numbers whatever the threads and the memory, and plain torch without a compiler."""

import logging
import subprocess
import sys

import pytest
import torch

import longattn
from longattn.kernels import chunked, native, torch_tiles
from longattn.kernels.native import library
from longattn.kernels.native.plan import Place, plan_of
from longattn.nn import Alibi
from longattn.patterns import BigBird, Causal, Dense, Fixed, Longformer, SlidingWindow, Strided, bind

needs_compiler = pytest.mark.skipif(library.missing() is not None, reason=f"no C++ attention: {library.missing()}")


def random_qkv(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def results(q, k, v, pattern, **arguments):
    out, lse = longattn.attention(q, k, v, pattern, kernel="chunked", return_lse=True, **arguments)
    return (out, lse, *torch.autograd.grad(out.sin().sum() + lse.sum(), (q, k, v)))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_this_machine_has_the_operators():
    """Where there is a compiler: without this all the rest would pass by being skipped."""
    if library._no_compiler() is not None:
        pytest.skip(library._no_compiler())
    assert library.missing() is None
    assert library.known_missing() is None


@needs_compiler
@pytest.mark.parametrize("pattern", [SlidingWindow(20), Dense(), Strided(9), BigBird(16)])
def test_threads_change_no_result(pattern, threads):
    """Few sequences are cut into parts, whose gradients are added in a fixed order: the same bits every time."""
    q, k, v = random_qkv(1, 2, 700, 24)
    threads(1)
    alone = results(q, k, v, pattern)
    threads(4)
    together, again = results(q, k, v, pattern), results(q, k, v, pattern)
    for one, four, twice in zip(alone, together, again, strict=True):
        torch.testing.assert_close(four, one, rtol=1e-5, atol=1e-5)
        assert torch.equal(four, twice)


@needs_compiler
@pytest.mark.parametrize("head_dim", [1, 7, 16, 40, 128])
def test_any_head_width(head_dim):
    q, k, v = random_qkv(1, 2, 90, head_dim, dtype=torch.float64)
    expected = longattn.attention(q, k, v, SlidingWindow(30), kernel="reference")
    torch.testing.assert_close(longattn.attention(q, k, v, SlidingWindow(30), kernel="chunked"), expected)


@needs_compiler
def test_any_strides():
    """Heads side by side in memory, as layers give them; dimensions last to first; one key for all."""
    q, k, v = random_qkv(2, 3, 100, 8)
    expected = results(q, k, v, SlidingWindow(10))
    apart = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    turned = [x.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in (q, k, v)]
    for other in (apart, turned):
        for actual, wanted in zip(results(*other, SlidingWindow(10)), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
    one_key = torch.randn(2, 3, 1, 8).expand(2, 3, 100, 8)
    out = longattn.attention(q, one_key, v, Dense(), kernel="chunked")
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), rtol=1e-5, atol=1e-5)


@needs_compiler
def test_output_lies_in_memory_as_layers_join_it():
    out = longattn.attention(*random_qkv(2, 3, 50, 8), SlidingWindow(10), kernel="chunked")
    assert out.transpose(1, 2).is_contiguous()


@needs_compiler
def test_document_numbers_too_large_for_fp32():
    q, k, v = random_qkv(1, 2, 60, 8)
    small = torch.tensor([[0] * 20 + [1] * 30 + [-1] * 10])
    large = torch.where(small < 0, -5, small + 2**40)
    expected = results(q, k, v, Dense(), document=small)
    for actual, wanted in zip(results(q, k, v, Dense(), document=large), expected, strict=True):
        assert torch.equal(actual, wanted)


@needs_compiler
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_bias_and_dropout_find_gathered_tokens(dropout_p):
    """Global tokens are gathered; distances and lots are still those of their places in the document."""
    q, k, v = random_qkv(2, 4, 80, 8, dtype=torch.float64)
    is_global = torch.zeros(2, 80, dtype=torch.bool)
    is_global[0, [0, 33, 79]] = True
    is_global[1, 50] = True
    padding = torch.arange(80) < torch.tensor([[80], [60]])
    bound = bind(
        Longformer(6),
        num_heads=4,
        query_length=80,
        key_padding=padding,
        query_is_global=is_global,
        key_is_global=is_global,
    )
    arguments = {"bias": Alibi().bias(4), "dropout_p": dropout_p, "dropout_seed": 5 if dropout_p else None}
    expected = longattn.attention(q, k, v, bound, kernel="reference", **arguments)
    actual = longattn.attention(q, k, v, bound, kernel="chunked", **arguments)
    grads = [torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (actual, expected)]
    for one, other in zip((actual, *grads[0]), (expected, *grads[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)  # the slopes are fp32


def request_of(bound, **changes):
    from longattn.kernels.base import Request

    fields = {"device": torch.device("cpu"), "dtype": torch.float32, "batch": 1, "head_dim": 8, "scale": 1.0}
    return Request(bound=bound, **(fields | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": torch.device("meta")}, "CPU"),
        ({"dtype": torch.float8_e4m3fn}, "float8"),
        ({"bias": lambda head, query, key: query * 1.0}, "distance"),
    ],
)
def test_what_plain_torch_does_is_said_in_words(changes, reason):
    assert reason in native.unsupported_reason(request_of(bind(Dense(), num_heads=1, query_length=9), **changes))


def test_masks_and_half_seen_global_tokens_are_left_to_plain_torch():
    flags = torch.ones(1, 9, dtype=torch.bool)
    masked = bind(Dense(), num_heads=1, query_length=9, mask=torch.ones(1, 1, 9, 9, dtype=torch.bool))
    causal = bind(Longformer(2) & Causal(), num_heads=1, query_length=9, key_is_global=flags)
    for bound in (masked, causal):
        assert chunked.engine_for(request_of(bound)) is torch_tiles


def test_a_plan_follows_the_window_not_the_length():
    """Masks are told once for all tiles at the same distance, and rows of keys that no query sees are left out."""
    one, two = (plan_of(SlidingWindow(100), 8, (Place(query_length=n, key_length=n, length=n),)) for n in (4096, 8192))
    assert two.visible.shape == one.visible.shape
    assert two.computed_pairs <= 2.05 * one.computed_pairs
    assert one.computed_pairs <= 4096 * (2 * 100 + 1 + one.block_size)
    fixed = plan_of(Fixed(128, 8), 8, (Place(query_length=4096, key_length=4096, length=4096),))
    assert fixed.computed_pairs <= 4096 * (128 + 4096 * 8 // 128)


def test_pairs_are_counted_once_per_batch(monkeypatch):
    """Each layer of a model asks."""
    document = torch.arange(300)[None] // 100
    request = request_of(bind(Dense(), num_heads=1, query_length=300, query_document=document))
    first = native.computed_pairs(request)
    monkeypatch.setattr(native.engine, "_count_pairs", None)
    assert native.computed_pairs(request) == first


def test_pairs_of_other_documents_are_not_counted():
    document = torch.arange(4096)[None] // 256
    alone = native.computed_pairs(request_of(bind(Dense(), num_heads=1, query_length=4096)))
    packed = native.computed_pairs(request_of(bind(Dense(), num_heads=1, query_length=4096, query_document=document)))
    assert packed <= 0.1 * alone


@pytest.mark.parametrize(("compiler", "reason"), [("no-such-compiler", "no C++ compiler"), ("false", "cannot compile")])
def test_without_a_compiler_plain_torch_computes(compiler, reason, tmp_path):
    code = """
import torch, longattn
from longattn.kernels import chunked, native
from longattn.patterns import SlidingWindow
q = torch.randn(1, 2, 300, 8)
chosen = longattn.attention(q, q, q, SlidingWindow(4), kernel="chunked")
torch.testing.assert_close(chosen, longattn.attention(q, q, q, SlidingWindow(4), kernel="reference"))
print(native.missing())
"""
    environment = {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert reason in run.stdout


@pytest.mark.slow
@needs_compiler
def test_many_processes_compile_once(tmp_path):
    """A killed compilation leaves nothing behind that the next one waits for."""
    code = "import sys; from longattn.kernels.native import missing; sys.exit(missing() or 0)"
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    start = [sys.executable, "-c", code]
    first = subprocess.Popen(start, env=environment, stderr=subprocess.PIPE)
    first.stderr.readline()  # it says that it compiles
    first.kill()
    first.wait()
    runs = [subprocess.Popen(start, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum("compiling" in text for text in said) == 1


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("width", [16, 64])
def test_every_vector_width_computes_the_same(width, tmp_path):
    """As on machines with SSE or NEON alone, and with AVX-512: the compiler makes such vectors of what there is."""
    code = """
import torch, longattn
from longattn.kernels.native import missing
from longattn.patterns import *
assert missing() is None, missing()
torch.manual_seed(0)
document = torch.tensor([[0] * 90 + [1] * 100 + [-1] * 10])
cases = [(SlidingWindow(20), {}), (Strided(9), {}), (BigBird(16), {}), (Dense(), {"document": document}),
         (Longformer(9), {"is_global": torch.arange(200)[None] % 70 == 0}), (Dense(), {"dropout_p": 0.3})]
for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
    for pattern, arguments in cases:
        q, k, v = (torch.randn(1, 2, 200, 24, dtype=dtype, requires_grad=True) for _ in range(3))
        if "dropout_p" in arguments:
            arguments["dropout_seed"] = 3
        outs = [longattn.attention(q, k, v, pattern, kernel=kernel, **arguments) for kernel in ("chunked", "reference")]
        grads = [torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in outs]
        for actual, wanted in zip((outs[0], *grads[0]), (outs[1], *grads[1])):
            torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)
"""
    environment = {"CXXFLAGS": f"-DLONGATTN_VECTOR_BYTES={width} -Wno-psabi", "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment | {"PATH": "/usr/bin:/bin"})


def test_the_reason_is_on_record(caplog, monkeypatch):
    monkeypatch.setattr(native, "missing", lambda: "no compiler, for the sake of argument")
    with caplog.at_level(logging.INFO, logger="longattn"):
        assert chunked.engine_for(request_of(bind(Dense(), num_heads=1, query_length=9))) is torch_tiles
    assert "for the sake of argument" in caplog.text
