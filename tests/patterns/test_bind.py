"""Binding checks what a batch brings, and says what does not fit."""

import pytest
import torch

from longattn import ConfigError
from longattn.patterns import BigBird, BlockSparse, Causal, Dense, Longformer, SlidingWindow, bind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_padding": torch.ones(2, 9)}, r"key_padding must have dtype torch.bool, got torch.float32"),
        ({"key_padding": torch.ones(2, 8).bool()}, r"key_padding must have shape \(batch, 9\), got \(2, 8\)"),
        ({"query_document": torch.ones(2, 9)}, r"query_document must have dtype torch.int64, got torch.float32"),
        ({"mask": torch.ones(2, 5, 9, 9).bool()}, r"mask must have shape \(batch, 4, 9, 9\), got \(2, 5, 9, 9\)"),
        ({"query_is_global": torch.ones(2, 9).bool()}, r"SlidingWindow\(.*\) has no global tokens: use Longformer"),
        ({"key_length": 7}, r"SlidingWindow has no meaning in cross-attention \(9 queries, 7 keys\): use Dense"),
    ],
)
def test_what_does_not_fit_is_quoted(arguments, message):
    with pytest.raises(ConfigError, match=message):
        bind(SlidingWindow(2), num_heads=4, query_length=9, **arguments)


def test_what_is_no_pattern_and_what_has_other_heads_is_named():
    with pytest.raises(ConfigError, match=r"pattern must be a Pattern .* got 'Dense'"):
        bind("Dense", num_heads=1, query_length=3)  # type: ignore[arg-type]
    for heads in (2, 8):
        with pytest.raises(ConfigError, match=f"the layout has 4 heads, the attention has {heads}"):
            bind(BlockSparse(torch.ones(4, 2, 2)) | Dense(), num_heads=heads, query_length=8)


def test_shape_of_padding_is_checked_before_its_values():
    with pytest.raises(ConfigError, match=r"key_padding must have shape \(batch, 9\), got \(9,\)"):
        bind(BigBird(4), num_heads=1, query_length=9, key_padding=torch.ones(9).bool())


@pytest.mark.parametrize("padding", [0, 1, 23])
@pytest.mark.parametrize("said_by", ["key_padding", "query_document"])
def test_how_padding_is_told_and_how_much_there_is_changes_nothing(padding, said_by):
    """The last global block and the random blocks of BigBird depend on where the document ends."""
    alone = bind(BigBird(4, random_blocks=1), num_heads=2, query_length=37).mask()[0]
    real = torch.stack([torch.arange(50 + padding) < tokens for tokens in (37, 50)])
    told = {"key_padding": real} if said_by == "key_padding" else {"query_document": real.int() - 1}
    bound = bind(BigBird(4, random_blocks=1), num_heads=2, query_length=50 + padding, **told)
    assert torch.equal(bound.mask()[0, :, :37, :37], alone)


def test_cross_attention_is_dense_only():
    assert bind(Dense(), num_heads=1, query_length=3, key_length=5).mask().shape == (1, 1, 3, 5)
    for pattern in (Causal(), SlidingWindow(1), SlidingWindow(1) | Dense()):
        with pytest.raises(ConfigError, match="no meaning in cross-attention"):
            bind(pattern, num_heads=1, query_length=3, key_length=5)


def test_a_slice_of_a_document_sees_what_the_whole_sees():
    whole = bind(SlidingWindow(3), num_heads=1, query_length=20).mask()
    part = bind(
        SlidingWindow(3), num_heads=1, query_length=5, key_length=9, query_start=8, key_start=6, length=20
    ).mask()
    assert torch.equal(part, whole[:, :, 8:13, 6:15])


def test_padding_documents_and_globals_are_joined():
    document = torch.tensor([[0, 0, 0, 1, 1, -1]])
    is_global = torch.tensor([[True, False, False, False, False, False]])
    bound = bind(
        Longformer(0),
        num_heads=1,
        query_length=6,
        query_document=document,
        query_is_global=is_global,
        key_is_global=is_global,
    )
    expected = torch.tensor(
        [
            [1, 1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 0, 1, 0, 0, 0],
            [0, 0, 0, 1, 0, 0],
            [0, 0, 0, 0, 1, 0],
            [0, 0, 0, 0, 0, 0],
        ]
    ).bool()
    assert torch.equal(bound.mask()[0, 0], expected)
