from __future__ import annotations

from collections import Counter

import pytest

from longattn.data.corpora import build_corpus
from longattn.errors import ConfigError

CHARACTERS = 4000


@pytest.fixture(scope="module")
def pairs():
    return list(build_corpus("document_matching", {"count": 600, "characters": CHARACTERS}).documents(1))


@pytest.fixture(scope="module")
def texts():
    """Every document of the library by its source."""
    return {document["source"]: document["text"] for document in build_corpus("python_library", {}).documents(1)}


def test_halves_are_from_where_the_label_says(pairs, texts):
    for pair in pairs:
        first, second = pair["source"].split(" + ")
        assert pair["label"] == ("same" if first == second else "different")
        if first == second:
            assert pair["text"] + pair["text_pair"] in texts[first]
        else:
            assert pair["text"] in texts[first]
            assert pair["text_pair"] in texts[second]
            assert pair["text_pair"] not in texts[first]


def test_half_of_the_pairs_are_the_same_and_the_order_does_not_tell(pairs):
    labels = [pair["label"] for pair in pairs]
    couples = Counter(zip(labels[::2], labels[1::2], strict=True))
    assert set(couples) == {("same", "different"), ("different", "same")}
    assert min(couples.values()) > 100


def test_halves_are_whole_lines_of_the_size_asked_for(pairs, texts):
    for pair in pairs:
        first, second = pair["source"].split(" + ")
        for half, text in ((pair["text"], texts[first]), (pair["text_pair"], texts[second])):
            assert CHARACTERS / 2 < len(half) <= CHARACTERS
            assert f"\n{half}" in text or text.startswith(half)
            assert half.endswith("\n") or text.endswith(half)


def test_halves_come_from_many_documents_and_places(pairs, texts):
    firsts, seconds = ({pair["source"].split(" + ")[side] for pair in pairs} for side in (0, 1))
    assert len(firsts) > 150
    assert len(seconds) > 150
    starts = sum(texts[pair["source"].split(" + ")[0]].startswith(pair["text"]) for pair in pairs)
    assert starts < len(pairs) / 4


def page(name: str, paragraphs: int, words: int) -> str:
    body = "".join(f".PP\n{name} {number} " + "word " * words + "\n" for number in range(paragraphs))
    return f".TH {name} 1\n.SH NAME\n{body}"


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A function that makes a system with these manual pages; the library is no option then."""

    def made(**texts):
        (tmp_path / "man1").mkdir()
        for name, text in texts.items():
            (tmp_path / "man1" / f"{name}.1").write_text(text)
        monkeypatch.setenv("MANPATH", str(tmp_path))
        return build_corpus("document_matching", {"corpus": "manual_pages", "characters": 500, "count": 60})

    return made


def test_other_corpora_copies_short_texts_and_long_lines(pages):
    corpus = pages(
        one=page("one", 60, 10), copy=page("one", 60, 10), two=page("two", 60, 10),
        short=page("short", 5, 10), long_lines=page("long", 60, 60),
    )  # fmt: skip
    names = {source.rsplit("/", 1)[1] for pair in corpus.documents(1) for source in pair["source"].split(" + ")}
    assert len(names) == 2
    assert names < {"one.1", "copy.1", "two.1"}
    assert "two.1" in names


def test_identity_follows_the_corpus(pages, tmp_path):
    corpus = pages(one=page("one", 60, 10), two=page("two", 60, 10))
    before = corpus.identity()
    (tmp_path / "man1" / "three.1").write_text(page("three", 60, 10))
    options = {"corpus": "manual_pages", "characters": 500, "count": 60}
    assert build_corpus("document_matching", options).identity() != before


def test_one_document_makes_no_pairs(pages):
    corpus = pages(one=page("one", 60, 10), short=page("short", 5, 10))
    with pytest.raises(ConfigError, match=r"characters=500: corpus='manual_pages' has 1 documents of twice as many"):
        corpus.document(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 7}, r"count=7: give an even number"),
        ({"characters": 10}, r"characters=10: give 200 to \d+ characters"),
        ({"corpus": "listops"}, r"corpus='listops': give one of manual_pages, python_library"),
        ({"corpus": "document_matching"}, r"corpus='document_matching': give one of"),
        ({"corpus": "folder"}, r"corpus='folder': give one of manual_pages, python_library"),
        ({"corpus": "python_libary"}, r"corpus='python_libary' \(did you mean 'python_library'\?\): give one of"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        build_corpus("document_matching", options)
