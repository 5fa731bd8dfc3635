"""`layout` is `sees`, by blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longattn.patterns import (
    BigBird,
    BlockSparse,
    Causal,
    Dense,
    Fixed,
    Longformer,
    Pattern,
    Scope,
    SlidingWindow,
    Strided,
    bind,
)
from longattn.patterns.layout import cached_layout
from longattn.testing import PATTERN_CASES

HEADS = 3


def kinds_by_brute_force(pattern, queries, keys, length, block_size):
    """(heads, query blocks, key blocks): 0 unseen, 1 partial, 2 full, pair by pair."""
    head = torch.arange(HEADS)[:, None, None]
    seen = pattern.sees(head, queries[:, None], keys, Scope(length=length)).expand(HEADS, len(queries), len(keys))
    kinds = torch.zeros(HEADS, -(-len(queries) // block_size), -(-len(keys) // block_size), dtype=torch.int8)
    for h in range(HEADS):
        for i, rows in enumerate(seen[h].split(block_size, 0)):
            for j, tile in enumerate(rows.split(block_size, 1)):
                kinds[h, i, j] = 2 if tile.all() else int(tile.any())
    return kinds


@pytest.mark.parametrize("name", PATTERN_CASES)
@pytest.mark.parametrize("length", [1, 2, 63, 100, 257])
def test_layout_is_sees_by_blocks(name, length):
    pattern = PATTERN_CASES[name]
    positions = torch.arange(length)
    for block_size in (8, 16, 24, 64):
        layout = pattern.layout(num_heads=HEADS, query_length=length, key_length=length, block_size=block_size)
        expected = kinds_by_brute_force(pattern, positions, positions, length, block_size)
        assert torch.equal(layout.kinds()[0].expand_as(expected), expected), block_size


patterns = st.recursive(
    st.one_of(
        st.just(Dense()),
        st.just(Causal()),
        st.builds(SlidingWindow, radius=st.integers(0, 40), dilation=st.integers(1, 6)),
        st.builds(Longformer, radius=st.integers(0, 40)),
        st.builds(
            BigBird,
            block_size=st.integers(1, 12),
            window_blocks=st.sampled_from([1, 3, 5]),
            global_blocks=st.integers(0, 3),
            random_blocks=st.integers(0, 3),
            seed=st.integers(0, 9),
        ),
        st.builds(Strided, stride=st.integers(1, 30), split_heads=st.booleans()),
        st.builds(lambda stride, split: Fixed(stride, max(1, stride // 3), split), st.integers(1, 30), st.booleans()),
        st.builds(
            lambda seed, size: BlockSparse(torch.rand(HEADS, 90, 90, generator=torch.manual_seed(seed)) < 0.3, size),
            st.integers(0, 9),
            st.integers(1, 9),
        ),
    ),
    lambda inner: st.builds(lambda a, b, both: a & b if both else a | b, inner, inner, st.booleans()),
    max_leaves=3,
)


@settings(max_examples=120, deadline=None)
@given(patterns, st.integers(1, 90), st.integers(1, 33), st.data())
def test_layout_of_any_slice_is_sees_by_blocks(pattern, length, block_size, data):
    starts = [data.draw(st.integers(0, length - 1)) for _ in range(2)]
    queries, keys = (torch.arange(start, data.draw(st.integers(start + 1, length))) for start in starts)
    layout = cached_layout(pattern, HEADS, len(queries), len(keys), block_size, starts[0], starts[1], length)
    expected = kinds_by_brute_force(pattern, queries, keys, length, block_size)
    assert torch.equal(layout.kinds()[0].expand_as(expected), expected)


def test_layout_work_follows_the_window_not_the_length():
    """Building the layout of a window of 131,072 tokens looks at few pairs, and holds few tiles."""
    layout = SlidingWindow(256).layout(num_heads=8, query_length=131_072, key_length=131_072, block_size=64)
    assert layout.columns.numel() < 9 * layout.query_blocks
    assert layout.heads == 1


def test_layout_is_cached_by_value():
    def make():
        return BlockSparse(torch.eye(8), 4).layout(num_heads=2, query_length=30, key_length=30, block_size=8)

    assert make() is make()
    other = BlockSparse(torch.eye(8).flip(0), 4).layout(num_heads=2, query_length=30, key_length=30, block_size=8)
    assert other is not make()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PATTERN_CASES)), st.integers(1, 120), st.sampled_from([4, 16, 64]), st.integers(0, 99))
def test_bound_layout_never_hides_a_visible_pair(name, length, block_size, seed):
    pattern: Pattern = PATTERN_CASES[name]
    generator = torch.Generator().manual_seed(seed)
    arguments = {
        "key_padding": torch.rand(2, length, generator=generator) < 0.7,
        "query_document": torch.randint(-1, 3, (2, length), generator=generator).sort(1).values,
        "mask": torch.rand(2, HEADS, length, length, generator=generator) < 0.5,
    }
    if pattern.uses_globals:
        arguments["query_is_global"] = torch.rand(2, length, generator=generator) < 0.1
        arguments["key_is_global"] = arguments["query_is_global"]
    for name in [*arguments, None]:
        chosen = arguments if name is None else {name: arguments[name]}
        bound = bind(pattern, num_heads=HEADS, query_length=length, **chosen)
        kinds = bound.layout(block_size, with_globals=True).kinds()
        seen = bound.mask()
        seen = seen.expand(2, HEADS, length, length)
        for i, rows in enumerate(seen.split(block_size, 2)):
            for j, tile in enumerate(rows.split(block_size, 3)):
                kind = kinds[:, :, i, j].expand(2, HEADS)
                assert not (tile.flatten(2).any(2) & (kind == 0)).any()
                assert not (~tile.flatten(2).all(2) & (kind == 2)).any()
