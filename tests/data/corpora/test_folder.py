from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from longattn.data.corpora import build_corpus
from longattn.errors import ConfigError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path):
    files = {
        "README.MD": b"# title\n",
        "notes/b.txt": b"second\n",
        "notes/a.txt": BYTE_ORDER_MARK + b"caf\xc3\xa9\r\nend\r\n",
        "notes/deep/a.rst": b"deep\n",
        "code/main.py": b"print()\n",
        "code/table.csv": b"1,2\n",
        "code/blank.py": b" \n",
        "code/empty.py": b"",
        "code/late_nul.c": b"x" * 8192 + b"\0",
        "code/binary.c": b"x" * 8191 + b"\0",
        ".hidden.txt": b"hidden\n",
        ".git/config.txt": b"hidden\n",
        "notes/.cache/deep/x.txt": b"hidden\n",
        "notes.txt/c.md": b"in a folder with a suffix\n",
    }
    return write(tmp_path / "home" / "top", files)


def read(folder, minimum_characters=1, **options):
    """Return text and label by the path below the folder, and check their order."""
    found = list(build_corpus("folder", {"folder": str(folder)} | options).documents(minimum_characters))
    sources = [Path(document["source"]) for document in found]
    assert sources == sorted(sources)
    names = [str(source.relative_to(folder)) for source in sources]
    return dict(zip(names, ((document["text"], document["label"]) for document in found), strict=True))


def test_each_text_file_is_a_document(folder):
    assert read(folder) == {
        "README.MD": ("# title\n", ""),
        "code/late_nul.c": ("x" * 8192 + "\0", ""),
        "code/main.py": ("print()\n", ""),
        "notes/a.txt": ("café\nend\n", ""),
        "notes/b.txt": ("second\n", ""),
        "notes/deep/a.rst": ("deep\n", ""),
        "notes.txt/c.md": ("in a folder with a suffix\n", ""),
    }


def test_labels(folder):
    assert {name: label for name, (_, label) in read(folder, label="folder").items()} == {
        "README.MD": ".",
        "code/late_nul.c": "code",
        "code/main.py": "code",
        "notes/a.txt": "notes",
        "notes/b.txt": "notes",
        "notes/deep/a.rst": "notes",
        "notes.txt/c.md": "notes.txt",
    }
    labels = [label for _, label in read(folder, label="suffix").values()]
    assert labels == [".md", ".c", ".py", ".txt", ".txt", ".rst", ".md"]


def test_suffixes_and_minimum(folder):
    assert list(read(folder, suffixes=[".csv", ".Md"])) == ["README.MD", "code/table.csv", "notes.txt/c.md"]
    assert list(read(folder, minimum_characters=9)) == ["code/late_nul.c", "notes/a.txt", "notes.txt/c.md"]
    write(folder, {"page.rst.txt": b"page\n"})
    labels = {name: label for name, (_, label) in read(folder, suffixes=[".txt", ".rst.txt"], label="suffix").items()}
    assert labels == {"page.rst.txt": ".rst.txt", "notes/a.txt": ".txt", "notes/b.txt": ".txt"}


def test_links_are_followed_and_each_file_is_read_once(folder, tmp_path):
    elsewhere = write(
        tmp_path / "elsewhere",
        {"far/far.txt": b"far\n", "far/in/x.txt": b"in\n", "near.txt": b"not linked\n", "one.txt": b"one\n"},
    )
    write(folder.parent, {"outside.txt": b"beside the folder\n"})
    links = {
        folder / "a_copy.txt": "notes/b.txt",
        folder / "a_one.txt": elsewhere / "one.txt",
        folder / "a_linked": "notes",
        folder / "notes/loop": "..",
        folder / "notes/itself": "itself",
        folder / "notes/up": "../..",
        folder / "notes/broken.txt": "nowhere.txt",
        folder / "z_far": elsewhere / "far",
        folder / "z_file.txt": elsewhere / "far/far.txt",
        elsewhere / "far/back": folder,
        elsewhere / "far/holds_the_folder": folder.parent,
        elsewhere / "far/holds_the_link": elsewhere,
        elsewhere / "far/holds_all": "/",
    }
    before = read(folder, label="folder")
    for link, target in links.items():
        link.symlink_to(target)
    assert read(folder, label="folder") == before | {
        "a_one.txt": ("one\n", "."),
        "z_far/far.txt": ("far\n", "z_far"),
        "z_far/in/x.txt": ("in\n", "z_far"),
    }


def test_the_folder_may_be_a_link_itself(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert read(tmp_path / "link") == read(folder)


def test_files_that_are_not_utf8_are_counted_in_one_warning(folder, caplog):
    before = read(folder)
    assert caplog.messages == []
    write(folder, {"notes/latin.txt": b"caf\xe9\n", "code/latin.py": b"# caf\xe9\n"})
    with caplog.at_level(logging.WARNING):
        assert read(folder) == before
    (message,) = caplog.messages
    assert "2 of the files" in message
    assert message.endswith(f"first {folder / 'code/latin.py'}")


def test_the_warning_comes_where_reading_stops_early(folder, caplog):
    write(folder, {"README.MD": b"caf\xe9"})
    documents = build_corpus("folder", {"folder": str(folder)}).documents(1)
    next(documents)
    documents.close()
    assert "1 of the files" in caplog.text


def test_what_cannot_be_read_is_counted(folder, caplog, monkeypatch):
    scan, read_bytes = os.scandir, Path.read_bytes

    def refusing_scan(place):
        if str(place).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    def refusing_read(file):
        if file.name == "b.txt":
            raise PermissionError(13, "Permission denied", str(file))
        return read_bytes(file)

    monkeypatch.setattr(os, "scandir", refusing_scan)
    monkeypatch.setattr(Path, "read_bytes", refusing_read)
    assert not {"notes/deep/a.rst", "notes/b.txt"} & set(read(folder))
    (message,) = caplog.messages
    assert "2 of the files and folders" in message


def test_the_home_folder_is_understood(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    documents = list(build_corpus("folder", {"folder": "~/top"}).documents(1))
    assert [document["source"] for document in documents] == [str(folder / name) for name in read(folder)]


def test_a_relative_path_is_below_the_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    relative, absolute = (build_corpus("folder", {"folder": name}) for name in ("top", str(folder)))
    assert list(relative.documents(1)) == list(absolute.documents(1))
    assert relative.identity() == absolute.identity()


def test_identity_follows_what_is_read(folder):
    def identity(**options):
        return build_corpus("folder", {"folder": str(folder)} | options).identity()

    before = identity()
    write(folder, {"code/other.csv": b"1\n"})
    assert identity() == before
    assert len({before, identity(label="folder"), identity(suffixes=[".md"])}) == 3
    os.utime(folder / "notes/a.txt", (1, 1))
    touched = identity()
    (folder / "notes/a.txt").rename(folder / "notes/c.txt")
    assert len({before, touched, identity()}) == 3


def test_an_empty_folder_gets_advice(tmp_path):
    corpus = build_corpus("folder", {"folder": str(tmp_path), "suffixes": [".md"]})
    assert list(corpus.documents(1)) == []
    assert "that end in .md; give other suffixes" in corpus.explain_empty()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": "missing"}, r"folder='missing' does not exist: give the path of a folder"),
        ({"folder": ""}, r"folder='' does not exist"),
        ({"folder": "~no_such_user_/x"}, r"folder='~no_such_user_/x' does not exist"),
        ({"folder": __file__}, r"test_folder.py' is no folder: give"),
        ({"suffixes": ["md"]}, r"suffixes=\['md'\]: 'md' is no suffix; give such as"),
        ({"suffixes": ["."]}, r"'.' is no suffix"),
        ({"suffixes": []}, r"suffixes=\[\]: empty"),
        ({"label": "folders"}, r"label='folders' \(did you mean 'folder'\?\): give one of none, folder, suffix"),
    ],
)
def test_options_are_checked(options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        build_corpus("folder", {"folder": str(tmp_path)} | options)
