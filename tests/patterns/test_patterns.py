"""Each pattern's own meaning, as its paper gives it."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from longattn import ConfigError
from longattn.discovery import classes_in
from longattn.patterns import (
    BigBird,
    BlockSparse,
    Causal,
    Dense,
    Fixed,
    Intersection,
    Longformer,
    Pattern,
    Scope,
    SlidingWindow,
    Strided,
    Union,
    pattern_from_config,
)
from longattn.patterns.base import all_patterns
from longattn.testing import PATTERN_CASES


def seen_keys(pattern, query, length, head=0, scope=None):
    scope = scope or Scope(length=length)
    row = pattern.sees(torch.tensor(head), torch.tensor(query), torch.arange(length), scope)
    return set(torch.nonzero(row.expand(length)).flatten().tolist())


def test_every_pattern_class_has_a_case():
    """A new file in longattn/patterns fails here until it has a case, which every kernel then has to pass."""

    def leaves(pattern):
        parts = pattern.parts if isinstance(pattern, Union | Intersection) else ()
        return {type(pattern)}.union(*(leaves(part) for part in parts))

    covered = set().union(*(leaves(pattern) for pattern in PATTERN_CASES.values()))
    assert covered == set(classes_in("longattn.patterns", Pattern).values())


@pytest.mark.parametrize("radius", [0, 1, 2, 15, 16, 21])
def test_window_sees_radius_keys_on_each_side(radius):
    for query in range(16):
        assert seen_keys(SlidingWindow(radius), query, 16) == {k for k in range(16) if abs(query - k) <= radius}


def test_dilated_window_sees_every_other_key():
    assert seen_keys(SlidingWindow(radius=2, dilation=3), 10, 40) == {4, 7, 10, 13, 16}


def test_longformer_sees_global_tokens_both_ways():
    is_global = torch.zeros(20, dtype=torch.bool)
    is_global[7] = True
    pattern = Longformer(radius=1)
    plain = Scope(length=20, query_is_global=torch.tensor(False), key_is_global=is_global)
    assert seen_keys(pattern, 15, 20, scope=plain) == {7, 14, 15, 16}
    from_global = Scope(length=20, query_is_global=torch.tensor(True), key_is_global=is_global)
    assert seen_keys(pattern, 7, 20, scope=from_global) == set(range(20))
    assert seen_keys(pattern, 15, 20) == {14, 15, 16}


def test_bigbird_has_window_global_and_random_blocks():
    pattern = BigBird(block_size=2, window_blocks=3, global_blocks=2, random_blocks=3, seed=1)
    length, blocks = 40, 20
    for head in range(3):
        for block in range(1, blocks - 1):
            for query in (2 * block, 2 * block + 1):
                seen = {key // 2 for key in seen_keys(pattern, query, length, head)}
                assert {0, blocks - 1, block - 1, block, block + 1} <= seen
                assert len(seen) == len({0, blocks - 1, block - 1, block, block + 1}) + 3
        assert seen_keys(pattern, 0, length, head) == set(range(length))
        assert seen_keys(pattern, length - 1, length, head) == set(range(length))


def test_bigbird_random_blocks_depend_on_seed_layer_and_head_alone():
    pattern = BigBird(block_size=4, random_blocks=3)
    blocks = torch.arange(64)

    def drawn(pattern, head):
        return pattern.sees_block(torch.tensor(head), blocks[:, None], blocks, 256)

    assert torch.equal(drawn(pattern, 0), drawn(BigBird(block_size=4, random_blocks=3), 0))
    others = [
        drawn(pattern, 1),
        drawn(pattern.for_layer(1), 0),
        drawn(BigBird(block_size=4, random_blocks=3, seed=1), 0),
    ]
    for other in others:
        assert not torch.equal(drawn(pattern, 0), other)
    # Each block is drawn about equally often: no bias towards the start of the document.
    counts = sum(drawn(pattern.for_layer(layer), 0)[2:-2].float() for layer in range(200))[:, 2:-2]
    away = (blocks[2:-2, None] - blocks[2:-2]).abs() > 1
    expected = 200 * 3 / 59
    assert abs(counts[away].mean().item() - expected) < 0.3
    assert counts[away].std().item() < 1.3 * expected**0.5


def test_bigbird_draws_the_same_in_another_process_and_leaves_global_random_states_alone():
    code = (
        "import torch; from longattn.patterns import BigBird; p = BigBird(block_size=16, random_blocks=3).for_layer(2);"
        "b = torch.arange(32); print(''.join(map(str, p.sees_block(torch.tensor(1), b[:, None], b, 512).int()"
        ".flatten().tolist())))"
    )
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    blocks = torch.arange(32)
    here = (
        BigBird(block_size=16, random_blocks=3).for_layer(2).sees_block(torch.tensor(1), blocks[:, None], blocks, 512)
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == "".join(map(str, here.int().flatten().tolist()))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()


def test_bigbird_with_few_blocks_sees_all_there_are():
    pattern = BigBird(block_size=16, random_blocks=3)
    for length in (1, 15, 16, 17, 47, 48):
        assert seen_keys(pattern, length - 1, length) == set(range(length))


def test_strided_sees_near_tokens_and_every_stride_th():
    pattern = Strided(stride=5)
    assert seen_keys(pattern, 12, 40) == set(range(7, 18)) | {2, 22, 27, 32, 37}
    split = Strided(stride=5, split_heads=True)
    assert seen_keys(split, 12, 40, head=0) == set(range(7, 18))
    assert seen_keys(split, 12, 40, head=1) == {2, 7, 12, 17, 22, 27, 32, 37}
    causal = pattern & Causal()
    assert seen_keys(causal, 12, 40) == {2, 7, 8, 9, 10, 11, 12}


def test_fixed_sees_its_block_and_the_summaries():
    pattern = Fixed(stride=6, summary=2)
    assert seen_keys(pattern, 8, 20) == set(range(6, 12)) | {4, 5, 16, 17}
    split = Fixed(stride=6, summary=2, split_heads=True)
    assert seen_keys(split, 8, 20, head=2) == set(range(6, 12))
    assert seen_keys(split, 8, 20, head=1) == {4, 5, 10, 11, 16, 17}


def test_block_sparse_follows_its_layout():
    layout = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0]])
    pattern = BlockSparse(layout, block_size=4)
    assert seen_keys(pattern, 0, 12) == {0, 1, 2, 3, 8, 9, 10, 11}
    assert seen_keys(pattern, 11, 12) == set(range(8))
    assert seen_keys(pattern, 2, 7) == {0, 1, 2, 3}  # a shorter document uses the start of the layout
    with pytest.raises(ConfigError, match="covers 12 tokens, the document has 13"):
        pattern.layout(num_heads=1, query_length=13, key_length=13, block_size=4)


def test_block_sparse_gives_its_layout_away_as_a_copy():
    pattern = BlockSparse(torch.eye(3), block_size=4)
    pattern.blocks.fill_(True)
    assert torch.equal(pattern.blocks, torch.eye(3).bool()[None])
    assert seen_keys(pattern, 0, 12) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", PATTERN_CASES)
def test_head_may_be_a_number(name):
    query, key = torch.arange(40)[:, None], torch.arange(40)
    expected = PATTERN_CASES[name].sees(torch.tensor(0), query, key).expand(40, 40)
    assert torch.equal(PATTERN_CASES[name].sees(0, query, key).expand(40, 40), expected)


@pytest.mark.parametrize("name", PATTERN_CASES)
def test_terms_share_out_what_is_seen(name):
    """Every visible pair is in exactly one term, and no other pair is."""
    pattern, length = PATTERN_CASES[name], 150
    head = torch.arange(3)[:, None, None]
    query, key = torch.arange(length)[:, None], torch.arange(length)
    times_seen = torch.zeros(3, length, length, dtype=torch.int64)
    for step, part in pattern.terms():
        in_step = (query - key) % step == 0
        times_seen += in_step & part.sees(head, query // step, key // step, Scope(length=-(-length // step)))
    assert torch.equal(times_seen, pattern.sees(head, query, key, Scope(length=length)).expand(3, -1, -1).long())


@pytest.mark.parametrize("name", PATTERN_CASES)
def test_moving_by_the_period_changes_nothing(name):
    pattern = PATTERN_CASES[name]
    for _, part in pattern.terms():
        if part.period is None:
            continue
        head, scope = torch.arange(3)[:, None, None], Scope(length=400)
        query, key = torch.arange(100)[:, None], torch.arange(100)
        moved = part.sees(head, query + part.period, key + part.period, scope)
        assert torch.equal(part.sees(head, query, key, scope), moved)


def test_what_skips_regularly_becomes_near():
    """The paper's causal patterns too."""
    assert [step for step, _ in SlidingWindow(radius=4, dilation=3).terms()] == [3]
    assert [step for step, _ in Strided(16).terms()] == [1, 16]
    assert [step for step, _ in (Causal() & Strided(16)).terms()] == [1, 16]
    assert [step for step, _ in (Strided(16) | BigBird(16)).terms()] == [1]


def test_composition_is_union_and_intersection():
    window, causal = SlidingWindow(2), Causal()
    assert seen_keys(window & causal, 10, 20) == {8, 9, 10}
    assert seen_keys(window | causal, 10, 20) == set(range(13))
    assert (window | causal | Dense()).parts == (window, causal, Dense())
    assert isinstance(window | causal, Union)
    assert isinstance(window & causal, Intersection)


@pytest.mark.parametrize("name", PATTERN_CASES)
def test_patterns_are_values(name):
    """Equal by content, hashable, and the same after a trip through JSON."""
    pattern = PATTERN_CASES[name]
    copy = pattern_from_config(json.loads(json.dumps(pattern.to_config())))
    assert copy == pattern
    assert hash(copy) == hash(pattern)
    assert all(other == pattern for other in [pattern.for_layer(0)])
    assert sum(other == pattern for other in PATTERN_CASES.values()) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlidingWindow(radius=-1), r"radius must be an integer >= 0, got -1"),
        (lambda: SlidingWindow(radius=2.5), r"radius must be an integer >= 0, got 2.5"),
        (lambda: SlidingWindow(dilation=0), r"dilation must be an integer >= 1, got 0"),
        (lambda: BigBird(window_blocks=2), r"window_blocks must be odd .* got 2"),
        (lambda: BigBird(block_size=0), r"block_size must be an integer >= 1, got 0"),
        (lambda: BigBird(seed=2**63), r"seed must be below 2\*\*63, got 9223372036854775808"),
        (
            lambda: Dense().layout(num_heads=1, query_length=4, key_length=4, block_size=0),
            r"block_size must be at least 1 token, got 0",
        ),
        (
            lambda: (BlockSparse(torch.ones(4, 2, 2)) & Dense()).check_num_heads(2),
            r"the layout has 4 heads, the attention has 2",
        ),
        (lambda: Fixed(stride=4, summary=5), r"summary \(5\) must not exceed stride \(4\)"),
        (lambda: Strided(stride=0), r"stride must be an integer >= 1, got 0"),
        (
            lambda: BlockSparse(torch.ones(2, 3)),
            r"\(blocks, blocks\) or \(heads, blocks, blocks\), got shape \(1, 2, 3\)",
        ),
        (lambda: BlockSparse([[0, 2], [1, 1]]), r"must hold booleans or 0 and 1"),
        (lambda: BlockSparse([[0, 1], [1]]), r"not a rectangular array"),
        (lambda: BlockSparse("nowhere.npy"), r"cannot read layout file 'nowhere.npy'"),
        (lambda: Union((Dense(), 3)), r"parts must be patterns, got 3"),
        (lambda: pattern_from_config({"class": "SlidingWindo"}), r"unknown \(did you mean 'SlidingWindow'\?\)"),
        (
            lambda: pattern_from_config({"class": "SlidingWindow", "radus": 3}),
            r"no field 'radus' \(did you mean 'radius'",
        ),
    ],
)
def test_wrong_values_are_quoted(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_block_sparse_reads_a_file(tmp_path):
    layout = np.eye(4, dtype=bool)
    np.save(tmp_path / "layout.npy", layout)
    assert BlockSparse(tmp_path / "layout.npy", 8) == BlockSparse(layout, 8)


def test_a_pattern_of_ones_own_needs_only_sees():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class EvenKeys(Pattern):
        def sees(self, head, query, key, scope=None):
            return (key % 2 == 0) | (key == query)

    pattern = EvenKeys()
    layout = pattern.layout(num_heads=2, query_length=10, key_length=10, block_size=2)
    assert torch.equal(layout.kinds()[0, 0], torch.ones(5, 5, dtype=torch.int8))
    assert EvenKeys in set(all_patterns())
    assert pattern_from_config(pattern.to_config()) == pattern
