from __future__ import annotations

import random

import numpy as np
import pytest
import tokenizers

import longattn.data.tokenizer as tokenizer_module
from longattn.data import TokenizerTraining, train_tokenizer
from longattn.data.long_text import encode_long

WORDS = ["the", "cup", "fällt", "日本語", "because", "it", "wasn't", "100,000", "🙂🙂", "\n\n", "\t", "   ", "naïve"]


def text_of(words, seed=0):
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + draw.choice([" ", "  ", "", "\n"]) for _ in range(words))


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "unigram"])
def trained(request):
    return train_tokenizer(lambda: [text_of(3000)], TokenizerTraining(kind=request.param, vocab_size=400))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("piece", "overlap"), [(1000, 600), (333, 500), (5000, 400)])
def test_pieces_have_the_tokens_of_the_whole(trained, seed, piece, overlap):
    text = text_of(2000, seed)
    whole = trained._tokenizer.encode(text, add_special_tokens=False).ids
    pieces = encode_long(trained._tokenizer, text, piece=piece, overlap=overlap)
    assert pieces is not None
    assert pieces.tolist() == whole


def test_texts_of_any_length(trained):
    for words in (0, 1, 5, 40, 200):
        text = text_of(words)
        pieces = encode_long(trained._tokenizer, text, piece=300, overlap=400)
        assert pieces.tolist() == trained._tokenizer.encode(text, add_special_tokens=False).ids


def test_a_tokenizer_that_looks_far_is_not_trusted_in_pieces():
    """All of the text is one word to it."""
    pieces = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    assert encode_long(pieces, "x" * 1000, piece=300, overlap=100) is None


def test_a_long_document_among_short_ones(trained, monkeypatch):
    texts = ["short", text_of(3000), "", "end"]
    expected = [trained._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    monkeypatch.setattr(tokenizer_module, "_CHARACTERS_AT_ONCE", 5000)
    monkeypatch.setattr("longattn.data.long_text.encode_long.__kwdefaults__", {"piece": 2000, "overlap": 600})
    joined = []
    real = encode_long

    def counted(tokenizer, text):
        joined.append(len(text))
        return real(tokenizer, text)

    monkeypatch.setattr(tokenizer_module, "encode_long", counted)
    encoded = trained.encode_batch(texts)
    assert [ids.tolist() for ids in encoded] == expected
    assert joined == [len(texts[1])]
    assert all(ids.dtype == np.int64 for ids in encoded)
