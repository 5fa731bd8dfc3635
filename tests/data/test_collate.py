from __future__ import annotations

import numpy as np
import pytest
import torch

from longattn.data.collate import Collator, Row, Segment
from longattn.data.sampler import Key
from longattn.data.tasks import filler_row

PAD = 9


def row(length, document=0, denominator=7.0):
    tokens = np.arange(1, length + 1)
    labels = np.where(tokens % 3 == 0, tokens, -100)
    return Row((Segment(tokens, labels, document, document + 10),), denominator)


@pytest.mark.parametrize(
    ("lengths", "multiple", "max_length", "padded"),
    [([5, 3], 8, 100, 8), ([8, 1], 8, 100, 8), ([9], 8, 100, 16), ([97], 8, 100, 100), ([5], 1, 100, 5)],
)
def test_pads_to_the_longest_and_a_multiple_but_not_past_max_length(lengths, multiple, max_length, padded):
    collate = Collator(pad_id=PAD, max_length=max_length, pad_to_multiple_of=multiple)
    batch = collate([row(length, number) for number, length in enumerate(lengths)])
    assert batch["input_ids"].shape == (len(lengths), padded)
    for number, length in enumerate(lengths):
        assert batch["attention_mask"][number].tolist() == [True] * length + [False] * (padded - length)
        assert batch["input_ids"][number, length:].eq(PAD).all()
        assert batch["labels"][number, length:].eq(-100).all()
        assert batch["input_ids"][number, :length].tolist() == list(range(1, length + 1))
    assert batch["real_tokens"] == sum(lengths)
    assert batch["document_index"].tolist() == list(range(len(lengths)))
    assert batch["window_index"].tolist() == [number + 10 for number in range(len(lengths))]
    assert "global_attention_mask" not in batch


def test_dtypes():
    batch = Collator(pad_id=PAD, max_length=8)([row(3)])
    assert batch["input_ids"].dtype == batch["labels"].dtype == batch["document_index"].dtype == torch.int64
    assert batch["attention_mask"].dtype == torch.bool


def test_the_first_token_is_global_for_every_document():  # case B08
    collate = Collator(pad_id=PAD, max_length=64, global_tokens="first")
    is_global = collate([row(5), row(9), row(1)])["global_attention_mask"]
    assert is_global.dtype == torch.bool
    assert is_global.nonzero().tolist() == [[0, 0], [1, 0], [2, 0]]


def test_a_step_without_labels_divides_by_one():  # case B31b
    assert Collator(pad_id=PAD, max_length=8)([row(2, denominator=0.0)])["loss_denominator"] == 1.0
    assert Collator(pad_id=PAD, max_length=8)([row(2, denominator=12.0)])["loss_denominator"] == 12.0


def test_a_filler_has_tokens_but_no_label_and_no_document(tokenizer):
    filler = filler_row(tokenizer, Key(0, -1, 5.0))
    batch = Collator(pad_id=PAD, max_length=8)([row(4), filler])
    assert batch["document_index"].tolist() == [0, -1]
    assert batch["window_index"].tolist() == [10, -1]
    assert batch["labels"][1].eq(-100).all()
    assert batch["attention_mask"][1].any()


def test_packed_rows_tell_their_documents_apart():
    packed = Row(tuple(row(size, number).segments[0] for number, size in enumerate((3, 1, 4))), 7.0)
    collate = Collator(pad_id=PAD, max_length=64, packed=True, global_tokens="first")
    batch = collate([packed, row(9, 5)])
    assert batch["document_ids"].tolist() == [
        [0, 0, 0, 1, 2, 2, 2, 2, *[-1] * 8],
        [*[0] * 9, *[-1] * 7],
    ]
    assert batch["input_ids"][0].tolist() == [1, 2, 3, 1, 1, 2, 3, 4, *[PAD] * 8]
    assert batch["segments"].tolist() == [[0, 0, 3], [0, 3, 4], [0, 4, 8], [1, 0, 9]]
    assert batch["document_index"].tolist() == [0, 1, 2, 5]
    assert batch["window_index"].tolist() == [10, 11, 12, 15]
    assert batch["global_attention_mask"].nonzero().tolist() == [[0, 0], [0, 3], [0, 4], [1, 0]]
    assert batch["attention_mask"].sum() == batch["real_tokens"] == 17
