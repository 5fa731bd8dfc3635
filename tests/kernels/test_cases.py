"""Faults that users met elsewhere, as tests of every kernel that runs here; b01 and so on number them."""

import pytest
import torch

import longattn
from longattn import ConfigError
from longattn.kernels import available
from longattn.patterns import BigBird, BlockSparse, Causal, Dense, Longformer, SlidingWindow

RUNNABLE = [name for name, reason in available().items() if reason is None]
pytestmark = pytest.mark.parametrize("kernel", RUNNABLE)


def random_qkv(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("radius", [0, 1, 2, 15, 16, 21])
def test_b01_window_edge(kernel, radius):
    """With v = identity an output row is the attention row; its support is exactly |i - j| <= radius."""
    q, k, _ = random_qkv(1, 1, 16, 16)
    rows = longattn.attention(q, k, torch.eye(16).double()[None, None], SlidingWindow(radius), kernel=kernel)[0, 0]
    position = torch.arange(16)
    assert torch.equal(rows > 0, (position[:, None] - position).abs() <= radius)
    if radius == 0:
        torch.testing.assert_close(rows, torch.eye(16).double())
    if radius >= 15:
        dense = longattn.attention(q, k, torch.eye(16).double()[None, None], Dense(), kernel=kernel)[0, 0]
        torch.testing.assert_close(rows, dense, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pattern", [Dense(), Causal(), SlidingWindow(3), Longformer(3), BigBird(8, random_blocks=0)])
def test_b03_hidden_keys_change_nothing(kernel, pattern):
    """A padded key, or one outside the pattern, may hold anything: no valid row changes by a bit."""
    length = 48
    q, k, v = random_qkv(2, 2, length, 8)
    padding = torch.arange(length).expand(2, -1) < torch.tensor([[length], [30]])
    before = longattn.attention(q, k, v, pattern, key_padding=padding, kernel=kernel)
    with torch.no_grad():
        k[1, :, 30:] += 1e3
        v[1, :, 30:] += 1e3
    after = longattn.attention(q, k, v, pattern, key_padding=padding, kernel=kernel)
    assert torch.equal(before, after)
    seen = pattern.sees(torch.tensor(0), torch.arange(length), torch.tensor(20)).expand(length)
    with torch.no_grad():
        k[0, :, 20] += 1e3
        v[0, :, 20] += 1e3
    changed = longattn.attention(q, k, v, pattern, key_padding=padding, kernel=kernel)
    assert torch.equal(changed[0, :, ~seen], before[0, :, ~seen])
    assert not torch.equal(changed[0, :, seen], before[0, :, seen])


@pytest.mark.parametrize("block_size", [1, 8, 12, 16])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 100, 1000])
def test_b06_any_length_with_any_block_size(kernel, length, block_size):
    pattern = BigBird(block_size=block_size, random_blocks=3)
    q, k, v = random_qkv(1, 2, length, 8)
    out = longattn.attention(q, k, v, pattern, kernel=kernel)
    truth = longattn.attention(q, k, v, pattern, kernel="reference")
    assert out.shape == q.shape
    torch.testing.assert_close(out, truth, rtol=0, atol=1e-10)
    if length <= 3 * block_size:
        dense = longattn.attention(q, k, v, Dense(), kernel="reference")
        torch.testing.assert_close(out, dense, rtol=0, atol=1e-10)


def test_b07_uneven_global_tokens(kernel):
    length = 32
    q, k, v = random_qkv(3, 2, length, 8)
    is_global = torch.zeros(3, length, dtype=torch.bool)
    is_global[0, 0] = True
    is_global[1, [0, 5, 31]] = True
    pattern = Longformer(2)
    batched = longattn.attention(q, k, v, pattern, is_global=is_global, kernel=kernel)
    for row in range(3):
        one = [x[row : row + 1] for x in (q, k, v)]
        alone = longattn.attention(*one, pattern, is_global=is_global[row : row + 1], kernel=kernel)
        torch.testing.assert_close(batched[row : row + 1], alone, rtol=0, atol=1e-10)
    window = longattn.attention(q[2:], k[2:], v[2:], SlidingWindow(2), kernel=kernel)
    torch.testing.assert_close(batched[2:], window, rtol=0, atol=1e-10)
    identity = torch.eye(length).double().expand(3, 2, -1, -1)
    wide = [torch.nn.functional.pad(x, (0, length - 8)) for x in (q, k)]
    rows = longattn.attention(*wide, identity, pattern, is_global=is_global, kernel=kernel)
    torch.testing.assert_close(rows.sum(-1), torch.ones(3, 2, length).double())
    assert (rows[1, :, 5] > 0).all(), "a global token attends to every token"
    assert (rows[1, :, :, 5] > 0).all(), "every token attends to a global token"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pattern", [Dense(), SlidingWindow(2), Longformer(2), BigBird(8)])
def test_b12_rows_that_see_nothing(kernel, pattern, dtype):
    """One entry all padding, one with a single valid token: zeros, lse -inf, no NaN anywhere, valid rows untouched."""
    length = 32
    q, k, v = random_qkv(3, 2, length, 8, dtype=dtype)
    padding = torch.zeros(3, length, dtype=torch.bool)
    padding[0] = True
    padding[2, 0] = True
    out, lse = longattn.attention(q, k, v, pattern, key_padding=padding, kernel=kernel, return_lse=True)
    assert (out[1] == 0).all()
    assert (lse[1] == -torch.inf).all()
    if isinstance(pattern, SlidingWindow):
        assert (out[2, :, 3:] == 0).all()
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    for x in (out, *grads):
        assert torch.isfinite(x).all()
    assert all((grad[1] == 0).all() for grad in grads)
    alone = longattn.attention(q[:1], k[:1], v[:1], pattern, key_padding=padding[:1], kernel=kernel)
    torch.testing.assert_close(out[:1], alone, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    "pattern", [Dense(), SlidingWindow(40), Longformer(40), BlockSparse(torch.eye(64), 16), BigBird(4)]
)
def test_b15_padding_does_not_change_a_document(kernel, pattern):
    """A document of 37 tokens alone, in a batch padded to 500, and padded to 1000: the same."""
    q, k, v = random_qkv(1, 2, 37, 8, dtype=torch.float32)
    alone = longattn.attention(q, k, v, pattern, kernel=kernel)
    for padded in (500, 1000):
        wide = [torch.cat([x, torch.randn(1, 2, padded - 37, 8)], 2) for x in (q, k, v)]
        padding = torch.arange(padded)[None] < 37
        out = longattn.attention(*wide, pattern, key_padding=padding, kernel=kernel)
        torch.testing.assert_close(out[:, :, :37], alone, rtol=0, atol=1e-5)


def test_packed_documents_are_as_good_as_separate_ones(kernel):
    lengths, pattern = [5, 40, 1, 64, 18], SlidingWindow(6)
    q, k, v = random_qkv(1, 2, sum(lengths), 8)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    packed = longattn.attention(q, k, v, pattern, document=document, kernel=kernel)
    parts = zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True)
    separate = torch.cat([longattn.attention(*part, pattern, kernel=kernel) for part in parts], 2)
    torch.testing.assert_close(packed, separate, rtol=0, atol=1e-10)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_explicit_masks(kernel, batch, heads):
    """A mask of (B or 1, H or 1, L, S), in self- and in cross-attention."""
    q, k, v = random_qkv(3, 2, 50, 8)
    mask = torch.rand(batch, heads, 50, 30, generator=torch.Generator().manual_seed(1)) < 0.4
    out = longattn.attention(q, k[:, :, :30], v[:, :, :30], Dense(), mask=mask, kernel=kernel)
    truth = longattn.attention(q, k[:, :, :30], v[:, :, :30], Dense(), mask=mask, kernel="reference")
    torch.testing.assert_close(out, truth, rtol=0, atol=1e-10)


def test_scale_is_one_over_root_of_head_dim(kernel):
    q, k, v = random_qkv(1, 1, 20, 64)
    default = longattn.attention(q, k, v, Dense(), kernel=kernel)
    torch.testing.assert_close(default, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    other = longattn.attention(q, k, v, Dense(), scale=0.5, kernel=kernel)
    torch.testing.assert_close(other, torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 6, 8)), "same length, got 5 keys and 6 values"),
        (((1, 2, 4, 8), (1, 3, 5, 8), (1, 3, 5, 8)), r"agree in batch, heads and head_dim, got q \(1, 2, 4, 8\)"),
        (((2, 4, 8), (2, 4, 8), (2, 4, 8)), r"must have shape \(batch, heads, length, head_dim\), got q \(2, 4, 8\)"),
    ],
)
def test_shapes_that_do_not_fit_are_quoted(kernel, shapes, message):
    with pytest.raises(ConfigError, match=message):
        longattn.attention(*(torch.zeros(shape) for shape in shapes), Dense(), kernel=kernel)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
@pytest.mark.parametrize("said_by", ["key_padding", "document"])
@pytest.mark.parametrize("pattern", [Dense(), SlidingWindow(3), BigBird(8, random_blocks=1)])
def test_padding_may_hold_nan(kernel, pattern, said_by, garbage):
    """A weight of 0 times NaN is NaN, forward and backward."""
    real = torch.arange(40) < torch.tensor([[40], [21]])
    told = {"key_padding": real} if said_by == "key_padding" else {"document": real.long() - 1}
    q, k, v = random_qkv(2, 2, 40, 8)
    expected = longattn.attention(q, k, v, pattern, **told, kernel=kernel, return_lse=True)
    dirty = [x.detach().masked_fill(~real[:, None, :, None], garbage).requires_grad_() for x in (k, v)]
    out, lse = longattn.attention(q, *dirty, pattern, **told, kernel=kernel, return_lse=True)
    torch.testing.assert_close((out, lse), expected)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, *dirty))


@pytest.mark.parametrize("pattern", [Dense(), Longformer(2), BigBird(4)])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 5), (2, 0, 0), (0, 0, 0), (2, 3, 0), (2, 0, 3)])
def test_nothing_at_all_is_seen_as_nothing(kernel, pattern, batch, queries, keys):
    """The CPU operator of PyTorch ends the process (SIGFPE) on an empty sequence."""
    if queries != keys and pattern != Dense():
        pytest.skip("no meaning in cross-attention")
    q = torch.randn(batch, 2, queries, 8, requires_grad=True)
    k = torch.randn(batch, 2, keys, 8, requires_grad=True)
    padding = torch.ones(batch, keys, dtype=torch.bool)
    for name in (kernel, "auto"):
        out, lse = longattn.attention(q, k, k, pattern, key_padding=padding, kernel=name, return_lse=True)
        assert out.shape == q.shape
        assert (out == 0).all()
        assert torch.equal(lse, torch.full((batch, 2, queries), -torch.inf))
        out.sum().backward()
        assert (q.grad == 0).all()
        assert (k.grad == 0).all()


@pytest.mark.parametrize("pattern", [SlidingWindow(3), Longformer(3), BigBird(4, seed=5)])
def test_the_default_device_of_the_user_does_not_matter(kernel, pattern):
    q, k, v = random_qkv(1, 2, 41, 8)
    is_global = torch.arange(41)[None] == 3 if pattern.uses_globals else None
    with torch.device("meta"):
        out = longattn.attention(q, k, v, pattern, is_global=is_global, kernel=kernel)
        out.sum().backward()
    expected = longattn.attention(q, k, v, pattern, is_global=is_global, kernel=kernel)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("pattern", [Dense(), SlidingWindow(3)])
def test_backward_within_autocast(kernel, pattern):
    """Not what PyTorch advises, and often done."""
    q, k, v = random_qkv(1, 2, 40, 8, dtype=torch.float32)
    longattn.attention(q, k, v, pattern, kernel=kernel).sum().backward()
    outside = q.grad.clone()
    q.grad = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        longattn.attention(q, k, v, pattern, kernel=kernel).sum().backward()
    torch.testing.assert_close(q.grad, outside, rtol=0.05, atol=0.05)
