"""What all generated corpora have in common; each has a case here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from longattn.data.corpora import build_corpus, corpora
from longattn.data.corpora.base import Corpus
from longattn.data.corpora.generated import GeneratedCorpus
from longattn.discovery import classes_in
from longattn.errors import ConfigError

CASES = {
    "document_matching": {"characters": 1000},
    "key_value_recall": {"length": 101, "distance": 30},
    "listops": {"minimum_length": 20, "maximum_length": 90},
}
FIRST_DOCUMENTS = {  # of CASES, by version: other documents need another version
    ("key_value_recall", 1): "cf014caa732274da6724a631448a8672918a7d0814ee595e445afa389e9569e5",
    ("listops", 1): "43a8ff16a5a2c2043383de54b2ced775f18c10a52c9b0eb043c9883b75b8c685",
}

PROGRAM = """
import json, sys
from longattn.data.corpora import build_corpus
for name, options in json.loads(sys.argv[1]).items():
    corpus = build_corpus(name, options)
    print(json.dumps([corpus.identity(), *(corpus.document(index) for index in (19, 3, 7))]))
"""


def digest(documents) -> str:
    return hashlib.sha256(json.dumps(documents).encode()).hexdigest()


def test_every_generated_corpus_has_a_case():
    assert {name for name, kind in corpora().items() if issubclass(kind, GeneratedCorpus)} == set(CASES)
    assert {name for name, _ in FIRST_DOCUMENTS} == set(CASES) - {"document_matching"}  # its source is the machine's


def test_an_abstract_corpus_is_not_offered():
    assert "GeneratedCorpus" not in classes_in("longattn.data.corpora", Corpus)


@pytest.fixture(params=sorted(CASES))
def build(request):
    """A function that builds the corpus of a case with changes."""

    def built(**changes):
        return build_corpus(request.param, CASES[request.param] | {"count": 20} | changes)

    return built


def test_documents_are_the_same_in_any_order(build):
    streamed = list(build().documents(1))
    assert len(streamed) == len(build()) == 20
    corpus = build(count=40)
    assert [corpus.document(index) for index in (19, 0, 7, 0)] == [streamed[index] for index in (19, 0, 7, 0)]


def test_documents_differ_from_each_other_and_from_those_of_other_seeds(build):
    texts = [document["text"] for seed in (0, 1, 2) for document in build(seed=seed).documents(1)]
    assert len(set(texts)) == 60


def test_documents_shorter_than_asked_for_are_left_out(build):
    documents = list(build().documents(1))
    lengths = [len(document["text"]) + len(document.get("text_pair", "")) for document in documents]
    least = sorted(lengths)[10]
    expected = [document for document, length in zip(documents, lengths, strict=True) if length >= least]
    assert list(build().documents(least)) == expected
    assert 0 < len(expected) < 20
    assert list(build().documents(10**6)) == []


def test_another_process_makes_the_same_documents():
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    built = [build_corpus(name, options) for name, options in CASES.items()]
    expected = [[corpus.identity(), *(corpus.document(index) for index in (19, 3, 7))] for corpus in built]
    assert [json.loads(line) for line in ran.stdout.splitlines()] == expected


@pytest.mark.parametrize("name", sorted(set(CASES) - {"document_matching"}))
def test_documents_change_with_the_version_only(name):
    corpus = build_corpus(name, CASES[name])
    found = digest([corpus.document(index) for index in range(5)])
    assert found == FIRST_DOCUMENTS[name, corpus.version]


def test_identity_follows_every_option(build):
    identities = [build().identity(), build().identity(), build(seed=1).identity(), build(count=22).identity()]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3


def test_identity_follows_name_and_version(build, monkeypatch):
    kind = type(build())
    before = kind(count=20).identity()
    assert type("Another", (kind,), {})(count=20).identity() != before
    monkeypatch.setattr(kind, "version", 99)
    assert kind(count=20).identity() != before


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [("count", 0, "give 1 to 2147483647"), ("seed", -1, "give 0 to"), ("seed", 2**63, "give 0 to")],
)
def test_common_options_are_checked(build, option, value, advice):
    with pytest.raises(ConfigError, match=rf"options: {option}={value}: {advice}"):
        build(**{option: value})
