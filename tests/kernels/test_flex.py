"""The block mask given to FlexAttention, checked on CPU; the compiled kernel runs in the contract test on a GPU."""

import math
import warnings

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import flex_attention

import longattn
from longattn.kernels.base import Request
from longattn.kernels.flex import BLOCK_SIZE, block_mask, call_flex
from longattn.patterns import bind
from longattn.testing import PATTERN_CASES, conditions_for

HEADS = 3


def request_for(pattern, length, condition):
    bound = bind(
        pattern,
        num_heads=HEADS,
        query_length=length,
        key_padding=condition.key_padding,
        query_document=condition.document,
        query_is_global=condition.is_global,
        key_is_global=condition.is_global,
    )
    return Request(
        bound=bound,
        device=torch.device("cpu"),
        dtype=torch.float32,
        batch=2,
        head_dim=16,
        scale=1 / math.sqrt(16),
        needs_lse=True,
    )


@pytest.mark.parametrize("length", [1, 130, 300])
@pytest.mark.parametrize("name", PATTERN_CASES)
def test_blocks_of_the_mask_cover_what_is_visible(name, length):
    pattern = PATTERN_CASES[name]
    for condition in conditions_for(pattern, length):
        mask = block_mask(request_for(pattern, length, condition))
        listed = mask.to_dense().bool()
        full = torch.zeros_like(listed)
        for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in full.shape[:3])).tolist():
            full[b, h, i, mask.full_kv_indices[b, h, i, : mask.full_kv_num_blocks[b, h, i]].long()] = True
        visible = condition.visible(pattern, HEADS, length)
        for i, rows in enumerate(visible.split(BLOCK_SIZE, 2)):
            for j, tile in enumerate(rows.split(BLOCK_SIZE, 3)):
                shape = tile.shape[:2]
                assert (tile.flatten(2).any(2) <= listed[:, :, i, j].expand(shape)).all(), condition.name
                assert (full[:, :, i, j].expand(shape) <= tile.flatten(2).all(2)).all(), condition.name


@pytest.mark.parametrize("length", [1, 100, 257])
@pytest.mark.parametrize("name", PATTERN_CASES)
def test_mask_function_is_the_pattern(name, length):
    """PyTorch's unfused form of flex_attention runs on CPU forward and traces the mask function as the GPU one does."""
    pattern = PATTERN_CASES[name]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, HEADS, length, 16, generator=generator) for _ in range(3))
    for condition in conditions_for(pattern, length):
        request = request_for(pattern, length, condition)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            out, lse = call_flex(flex_attention, q, k, v, request)
        truth, true_lse = longattn.attention(q, k, v, request.bound, kernel="reference", return_lse=True)
        torch.testing.assert_close(out, truth, rtol=0, atol=3e-6)
        torch.testing.assert_close(lse, true_lse, rtol=0, atol=3e-6)


@pytest.mark.slow
def test_a_pattern_is_compiled_for_one_length_and_once_for_all_others():
    """New batches, new lengths and other patterns bring no further compilation (counted, with a stand-in backend)."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(flex_attention, backend=counter)
    expected = 0
    with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
        for pattern in PATTERN_CASES.values():
            counts = []
            for length in (300, 300, 500, 700, 300, 1000):
                condition = conditions_for(pattern, length)[0]
                q, k, v = (torch.randn(2, HEADS, length, 16) for _ in range(3))
                call_flex(compiled, q, k, v, request_for(pattern, length, condition))
                counts.append(counter.frame_count)
            assert counts[0] == counts[1] <= expected + 1
            assert counts[-1] == counts[2] <= expected + 2
            expected = counts[-1]
    torch._dynamo.reset()
