from __future__ import annotations

import gzip

import pytest

from longattn.data.corpora import corpora
from longattn.data.corpora.manual_pages import ManualPages
from longattn.data.corpora.python_library import PythonLibrary
from longattn.data.sources import Source, load_documents
from longattn.errors import ConfigError


@pytest.fixture
def library(tmp_path):
    """A small standard library, and a documentation folder."""
    files = {
        "lib/os.py": "import abc\n" * 10,
        "lib/asyncio/tasks.py": "class Task: ...\n" * 10,
        "lib/asyncio/tiny.py": "x = 1\n",
        "lib/test/test_os.py": "tests\n" * 50,
        "lib/site-packages/other.py": "other\n" * 50,
        "lib/latin.py": "",
        "lib/pydoc_data/topics.py": f"topics = {{'b': {'reference ' * 20!r}, 'a': {'other ' * 20!r}}}\n",
        "share/doc/python3-doc/html/_sources/tutorial.rst.txt": "Tutorial\n" * 20,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "lib/latin.py").write_bytes(b"# caf\xe9\n" * 30)
    return PythonLibrary(tmp_path / "lib", (tmp_path,))


def test_python_library(library):
    documents = list(library.documents(50))
    found = [(document["label"], document["source"].rsplit("/", 1)[1]) for document in documents]
    assert found == [
        ("asyncio", "tasks.py"),
        ("module", "os.py"),
        ("reference", "topics.py#a"),
        ("reference", "topics.py#b"),
        ("documentation", "tutorial.rst.txt"),
    ]
    assert documents[1]["text"] == "import abc\n" * 10


def test_identity_follows_the_files(library, tmp_path):
    before = library.identity()
    assert library.identity() == before
    (tmp_path / "lib/os.py").write_text("changed\n" * 10)
    assert library.identity() != before


def test_the_installed_library_has_long_documents():
    documents = list(PythonLibrary().documents(40_000))
    assert len(documents) > 20
    assert all(len(document["text"]) >= 40_000 for document in documents)
    assert any(document["source"].endswith("argparse.py") for document in documents)


@pytest.fixture
def pages(tmp_path):
    """Two folders of manual pages, some compressed, some aliases."""
    page = ".TH {0} 1\n.SH NAME\n{0} \\- a page\n.SH DESCRIPTION\n" + "Some words.\n" * 30
    files = {
        "one/man1/a.1": page.format("a").encode(),
        "one/man1/b.1.gz": gzip.compress(page.format("b").encode()),
        "one/man3/c.3pm": page.format("c").encode() + b"caf\xe9\n",
        "one/man1/alias.1": b".so man1/a.1\n",
        "one/man1/short.1": b".TH short 1\n.SH NAME\nshort\n",
        "one/man1/broken.1.gz": b"not gzip",
        "one/de/man1/a.1": page.format("deutsch").encode(),
        "two/man1/a.1.gz": gzip.compress(page.format("second").encode()),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "one/man1/link.1").symlink_to("a.1")
    return ManualPages((tmp_path / "one", tmp_path / "two"))


def test_manual_pages(pages):
    documents = list(pages.documents(100))
    found = [(document["label"], document["source"].rsplit("/", 1)[1]) for document in documents]
    assert found == [("1", "a.1"), ("1", "b.1.gz"), ("3", "c.3pm")]
    assert documents[0]["text"].startswith("NAME\na - a page\n\nDESCRIPTION\nSome words. Some words.")
    assert documents[2]["text"].endswith("café\n")


def test_the_text_does_not_tell_the_section(pages):
    assert not any("(1)" in document["text"] or "TH" in document["text"] for document in pages.documents(100))


def test_a_machine_without_pages_gets_advice(tmp_path, monkeypatch):
    monkeypatch.setenv("MANPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"path='manual_pages': no document of at least 32000.*install manual pages"):
        load_documents(Source(path="manual_pages", cache_dir=str(tmp_path / "cache")), "train")


def test_corpora_are_found_by_name_and_loaded(tmp_path, monkeypatch, pages):
    assert {"python_library", "manual_pages"} <= set(corpora())
    monkeypatch.setenv("MANPATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    source = Source(
        path="manual_pages", label_column="label", minimum_characters=100, cache_dir=str(tmp_path / "cache")
    )
    documents = load_documents(source, "train").table
    assert documents.column_names == ["text", "label"]
    assert documents["label"][:] == ["1", "1", "3"]
    assert len(load_documents(source, "train[:2]").table) == 2
