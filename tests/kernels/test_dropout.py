"""Dropout of attention weights: the same in every kernel that has it, refused by the others, right on average."""

import pytest
import torch

import longattn
from longattn import ConfigError, UnsupportedError
from longattn.kernels import Dropout, available
from longattn.patterns import BigBird, Dense, Longformer, SlidingWindow


def random_qkv(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("pattern", [Dense(), SlidingWindow(9), Longformer(5), BigBird(8)])
def test_kernels_drop_the_same_weights(pattern):
    q, k, v = random_qkv(2, 3, 100, 8)
    is_global = torch.zeros(2, 100, dtype=torch.bool)
    is_global[0, [0, 50]] = True
    arguments = {"dropout_p": 0.3, "dropout_seed": 11, "is_global": is_global if pattern.uses_globals else None}
    results = []
    for kernel in ("reference", "chunked"):
        out = longattn.attention(q, k, v, pattern, kernel=kernel, **arguments)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_scale(p):
    index = torch.arange(2000)
    factors = Dropout(p, 3).factors(torch.tensor(0), torch.tensor(1), index[:, None], index, torch.float64)
    assert set(factors.unique().tolist()) <= {0.0, 1 / (1 - p)}
    assert factors.mean().item() == pytest.approx(1.0, abs=0.005 if p < 0.9 else 0.02)
    # Rows, columns and diagonals are no more alike than chance: their means vary as those of independent lots.
    spread = (p / (1 - p) / 2000) ** 0.5
    for lines in (
        factors.mean(0),
        factors.mean(1),
        torch.stack([factors.roll(s, 1).diagonal().mean() for s in range(0, 2000, 10)]),
    ):
        assert lines.std().item() == pytest.approx(spread, rel=0.25, abs=1e-12)


def test_seed_batch_head_and_position_all_matter():
    index = torch.arange(300)

    def lots(seed=1, batch=0, head=0):
        return Dropout(0.5, seed).factors(torch.tensor(batch), torch.tensor(head), index[:, None], index, torch.float64)

    for other in (lots(seed=2), lots(batch=1), lots(head=1), lots().T):
        agreement = (lots() == other).double().mean().item()
        assert agreement == pytest.approx(0.5, abs=0.02)
    assert torch.equal(lots(), lots())


def test_the_seed_comes_from_torch_and_is_reproducible():
    q, k, v = random_qkv(1, 2, 40, 8)

    def run(seed):
        torch.manual_seed(seed)
        return longattn.attention(q, k, v, SlidingWindow(5), dropout_p=0.5, kernel="chunked")

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_kernels_without_dropout_refuse_it():
    q, k, v = random_qkv(1, 2, 8, 8)
    refusing = {name for name, reason in available().items() if reason is None} - {"reference", "chunked"}
    assert refusing == {"sdpa"}
    for kernel in refusing:
        with pytest.raises(UnsupportedError, match="dropout"):
            longattn.attention(q, k, v, Dense(), dropout_p=0.1, kernel=kernel)


@pytest.mark.parametrize("p", [-0.1, 1.0, 3])
def test_impossible_shares_are_quoted(p):
    with pytest.raises(ConfigError, match=rf"dropout must be in \[0, 1\), got {p}"):
        Dropout(p, 0)
