from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import pytest

from longattn.data.corpora import build_corpus
from longattn.errors import ConfigError

FUNCTIONS = {
    "[MAX": lambda *arguments: max(arguments),
    "[MIN": lambda *arguments: min(arguments),
    "[MED": lambda *arguments: int(np.median(arguments)),
    "[SM": lambda *arguments: sum(arguments) % 10,
}
NAMES = {operator: f"f{number}" for number, operator in enumerate(FUNCTIONS)}


def value_by_python(text: str) -> int:
    """Return the value that Python's own parser and evaluator find."""
    words = [f"{NAMES[word]}(" if word in NAMES else ")," if word == "]" else f"{word}," for word in text.split(" ")]
    return eval("".join(words), {NAMES[operator]: function for operator, function in FUNCTIONS.items()})[0]


def shape(text: str) -> tuple[int, list[int]]:
    """Return the level of the innermost digit, and the number of arguments of each operator."""
    deepest, counts, arguments = 0, [], [0]
    for word in text.split(" "):
        if word == "]":
            counts.append(arguments.pop())
            continue
        arguments[-1] += 1
        if word in FUNCTIONS:
            arguments.append(0)
        else:
            assert word in "0123456789"
            deepest = max(deepest, len(arguments))
    assert arguments == [1]
    return deepest, counts


@pytest.fixture(scope="module")
def documents():
    return list(build_corpus("listops", {"count": 1000}).documents(1))


@pytest.mark.parametrize(
    ("text", "value"),
    [("[MAX 4 3 [MIN 2 3 ] 1 0 ]", 4), ("[MED 1 2 ]", 1), ("[MED 9 [SM 9 9 8 ] 7 ]", 7), ("[MED 3 6 8 9 ]", 7)],
)
def test_the_evaluator_of_this_test(text, value):
    assert value_by_python(text) == value


def test_labels_are_the_values(documents):
    assert [document["label"] for document in documents] == [
        str(value_by_python(document["text"])) for document in documents
    ]
    small = build_corpus("listops", {"minimum_length": 4, "maximum_length": 30, "count": 2000, "seed": 5})
    assert all(document["label"] == str(value_by_python(document["text"])) for document in small.documents(1))


def test_no_label_is_frequent_and_all_occur(documents):
    shares = Counter(document["label"] for document in documents)
    assert set(shares) == set("0123456789")
    assert max(shares.values()) <= 350


def test_the_grammar_is_kept(documents):
    shapes = [shape(document["text"]) for document in documents]
    assert {count for _, counts in shapes for count in counts} == set(range(2, 11))
    assert max(depth for depth, _ in shapes) == 10
    operators = Counter(word for document in documents for word in document["text"].split() if word in FUNCTIONS)
    assert set(operators) == set(FUNCTIONS)
    assert max(operators.values()) < 1.1 * min(operators.values())


def long_range_arena_tree(draw: random.Random, depth: int = 1) -> list[str]:
    """Return an expression as `generate_tree` of Long Range Arena's lra_benchmarks/data/listops.py draws it."""
    if depth == 10 or draw.random() > 0.25:
        return [str(draw.randrange(10))]
    words = [draw.choice(list(FUNCTIONS))]
    for _ in range(draw.randint(2, 10)):
        words += long_range_arena_tree(draw, depth + 1)
    return [*words, "]"]


def test_by_default_expressions_are_drawn_as_in_long_range_arena(documents):
    draw = random.Random(3)
    texts = []
    while len(texts) < 500:
        words = long_range_arena_tree(draw)
        if 500 <= len(words) <= 2000:
            texts.append(" ".join(words))
    found = [document["text"] for document in documents]

    def features(text):
        depth, counts = shape(text)
        top = counts[-1]  # the outermost operator closes last
        return len(text.split()), depth, np.mean(counts), top, text.split().count("]")

    theirs, ours = (np.array([features(text) for text in some]) for some in (texts, found))
    error = np.sqrt(theirs.var(0) / len(theirs) + ours.var(0) / len(ours))
    assert (np.abs(theirs.mean(0) - ours.mean(0)) < 4 * error + 1e-9).all()


@pytest.mark.parametrize(("least", "most"), [(500, 2000), (4, 4), (4, 9), (30, 31), (3000, 6000), (20000, 40000)])
def test_lengths_are_in_the_range(least, most):
    corpus = build_corpus("listops", {"minimum_length": least, "maximum_length": most})
    lengths = [len(corpus.document(index)["text"].split(" ")) for index in range(12)]
    assert least <= min(lengths)
    assert max(lengths) <= most
    if most > least + 10:
        assert len(set(lengths)) > 6


def test_200_documents_take_less_than_a_second():
    corpus = build_corpus("listops", {})
    begin = time.process_time()
    for index in range(200):
        corpus.document(index)
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum_length": 3}, r"minimum_length=3: give 4 to \d+ words"),
        (
            {"minimum_length": 600, "maximum_length": 599},
            r"maximum_length=599: give 600 to \d+ words, from minimum_len",
        ),
        ({"maximum_length": 10**9}, r"maximum_length=1000000000: give 500 to \d+ words"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        build_corpus("listops", options)
