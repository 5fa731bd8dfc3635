from __future__ import annotations

import itertools
from collections import Counter

import pytest

from longattn.data.corpora import build_corpus
from longattn.errors import ConfigError

SIZES = [
    {},
    {"length": 101, "distance": 40, "distractors": 7},
    {"length": 100, "distance": 0, "distractors": 3, "keys": 4},
    {"length": 100, "distance": 96, "distractors": 48},
    {"length": 101, "distance": 33, "distractors": 48, "keys": 49},  # no room for more
    {"length": 4, "distance": 0, "distractors": 0, "keys": 1, "values": 2},
]


def pairs(words: list[str]) -> dict[str, tuple[int, str]]:
    """Return the place and the value of each key that has one; each has one only."""
    found = {}
    for place, (word, follower) in enumerate(itertools.pairwise(words)):
        if word.startswith("key") and follower.startswith("value"):
            assert word not in found
            found[word] = (place, follower)
    return found


@pytest.mark.parametrize("question", ["start", "end"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_value_of_the_key_is_told_once_at_the_distance(sizes, question):
    corpus = build_corpus("key_value_recall", {"question": question, "count": 40} | sizes)
    for document in corpus.documents(1):
        words = document["text"].split(" ")
        assert len(words) == corpus.length
        begin = words.index("question")
        assert begin == (0 if question == "start" else corpus.length - 2)
        asked = words[begin + 1]
        place, value = pairs(words)[asked]
        assert document["label"] == value
        assert words.count(asked) == 2
        between = words[2:place] if question == "start" else words[place + 2 : begin]
        assert len(between) == corpus.distance
        assert Counter(word.rstrip("0123456789") for word in words if word[-1].isdigit()) == {
            "key": corpus.distractors + 2,
            "value": corpus.distractors + 1,
        }
        assert len(pairs(words)) == corpus.distractors + 1


@pytest.mark.parametrize("question", ["start", "end"])
def test_labels_and_keys_are_uniform(question):
    options = {"length": 40, "distance": 20, "distractors": 3, "values": 5, "keys": 8, "question": question}
    corpus = build_corpus("key_value_recall", options | {"count": 4000})
    documents = list(corpus.documents(1))
    labels = Counter(document["label"] for document in documents)
    assert set(labels) == {f"value{number}" for number in range(5)}
    assert all(abs(count - 800) < 4 * 26 for count in labels.values())
    texts = [document["text"].split(" ") for document in documents]
    asked = Counter(words[words.index("question") + 1] for words in texts)
    assert set(asked) == {f"key{number}" for number in range(8)}
    assert all(abs(count - 500) < 4 * 21 for count in asked.values())


def test_distractors_are_anywhere_and_tell_nothing():
    options = {"length": 44, "distance": 20, "distractors": 4, "values": 4, "question": "start"}
    corpus = build_corpus("key_value_recall", options | {"count": 2000})
    places: Counter[int] = Counter()
    same = total = 0
    for document in corpus.documents(1):
        words = document["text"].split(" ")
        others = {key: found for key, found in pairs(words).items() if key != words[1]}
        places.update(place for place, _ in others.values())
        same += sum(value == document["label"] for _, value in others.values())
        total += len(others)
    assert set(places) == {*range(2, 22, 2), *range(24, 44, 2)}
    assert max(places.values()) < 1.3 * min(places.values())
    assert abs(same / total - 1 / 4) < 0.02


def test_there_is_much_to_read_besides_pairs():
    words = build_corpus("key_value_recall", {}).document(0)["text"].split(" ")
    fillers = Counter(word for word in words if word.isalpha())
    assert 60 < len(fillers) < 120
    assert sum(fillers.values()) > 1900


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 3}, r"length=3: give 4 to \d+ words"),
        ({"length": 100, "distance": 97}, r"distance=97: give 0 to 96 words, for a length of 100"),
        ({"distance": -1}, r"distance=-1: give 0 to 2044 words"),
        ({"values": 1}, r"values=1: give 2 to"),
        ({"keys": 0}, r"keys=0: give 1 to"),
        ({"keys": 20, "distractors": 20}, r"distractors=20: give 0 to 19 pairs"),
        ({"length": 101, "distance": 33, "distractors": 49}, r"distractors=49: give 0 to 48 pairs"),
        ({"question": "strat"}, r"question='strat' \(did you mean 'start'\?\): give 'start' or 'end'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        build_corpus("key_value_recall", options)
