"""The choice of a kernel: by name it is final, `auto` takes the least work, and nothing is ever silently dense."""

import logging

import pytest
import torch

import longattn
from longattn import ConfigError, UnsupportedError
from longattn.kernels import Kernel, available, kernels, native, select
from longattn.kernels.base import Request
from longattn.kernels.select import _announce
from longattn.patterns import BigBird, Causal, Dense, Longformer, SlidingWindow, bind
from longattn.testing import PATTERN_CASES


def request_for(pattern, length, batch=1, heads=8, **arguments):
    return Request(
        bound=bind(pattern, num_heads=heads, query_length=length),
        device=torch.device("cpu"),
        dtype=torch.float32,
        batch=batch,
        head_dim=64,
        scale=0.125,
        needs_grad=True,
        **arguments,
    )


def test_the_five_kernels_are_found_by_name():
    assert set(kernels()) == {"reference", "sdpa", "chunked", "flex", "flash"}
    assert set(available()) == set(kernels())
    assert available()["reference"] is None
    assert available()["chunked"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU machine flex runs")
def test_a_kernel_asked_for_by_name_gives_its_reason():
    q = torch.zeros(1, 1, 4, 16)
    with pytest.raises(UnsupportedError, match=r"kernel 'flex' cannot run .*: it needs a CUDA GPU"):
        longattn.attention(q, q, q, Dense(), kernel="flex")
    with pytest.raises(UnsupportedError, match=r"kernel 'flash' cannot run .*it needs a CUDA GPU"):
        longattn.attention(q, q, q, Dense(), kernel="flash")


def test_an_unknown_kernel_names_the_nearest():
    q = torch.zeros(1, 1, 4, 16)
    with pytest.raises(ConfigError, match=r"kernel 'chuncked' is unknown \(did you mean 'chunked'\?\)"):
        longattn.attention(q, q, q, Dense(), kernel="chuncked")


@pytest.mark.parametrize(
    ("pattern", "length", "expected"),
    [
        (Dense(), 512, "sdpa"),
        (Dense(), 10_240, "sdpa"),
        (Causal(), 4096, "sdpa"),
        (SlidingWindow(256), 10_240, "chunked"),
        (SlidingWindow(256), 128, "sdpa"),
        (SlidingWindow(20_000), 10_240, "sdpa"),
        (BigBird(64), 10_240, "chunked"),
        (Longformer(256), 10_240, "chunked"),
    ],
)
def test_auto_takes_the_least_counted_work(pattern, length, expected):
    assert select("auto", request_for(pattern, length)).name == expected


@pytest.mark.parametrize("length", [1, 48, 100, 512])
@pytest.mark.parametrize("name", PATTERN_CASES)
def test_short_documents_never_cost_more_than_dense(name, length):
    """Counted in query-key pairs: of blocks where the pattern leaves any out, of the document where it sees all."""
    request = request_for(PATTERN_CASES[name], length, heads=3)
    chosen = select("auto", request)
    assert chosen.cost(request) <= kernels()["sdpa"].cost(request_for(Dense(), length, heads=3)) * 1.6
    if bool(request.bound.mask().all()):
        assert chosen.name in ("sdpa", "reference"), "which both compute dense, the latter a handful of tokens"
    elif chosen.name == "chunked":
        assert native.computed_pairs(request) <= (length + 127) ** 2


def test_auto_never_takes_a_kernel_that_cannot():
    from longattn.kernels import Dropout

    chosen = select("auto", request_for(Dense(), 512, dropout=Dropout(0.1, 1)))
    assert chosen.name in ("chunked", "reference")


def test_auto_says_once_what_it_chose(caplog):
    _announce.cache_clear()
    q = torch.zeros(1, 1, 4, 16)
    with caplog.at_level(logging.INFO, logger="longattn"):
        for _ in range(3):
            longattn.attention(q, q, q, SlidingWindow(1))
    said = [record.getMessage() for record in caplog.records if "kernel auto" in record.getMessage()]
    assert len(said) == 1
    assert "SlidingWindow on cpu is computed by" in said[0]


def test_every_kernel_states_all_of_the_contract():
    for kernel in kernels().values():
        assert issubclass(kernel, Kernel)
        assert kernel.missing() is None or isinstance(kernel.missing(), str)
