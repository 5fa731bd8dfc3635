from __future__ import annotations

import gzip
import json

import datasets
import pytest

from longattn.data.load_errors import explained
from longattn.data.sources import Source, content_hash, load_documents, quiet
from longattn.errors import ConfigError

ODD = "one\u2028two\u2029three\u0085four\x0bfive\x0csix"
"""Characters that str.splitlines takes for the end of a line."""


@pytest.fixture
def load(tmp_path):
    def loaded(split="train", **source):
        with quiet(progress=False):
            return load_documents(Source(cache_dir=str(tmp_path / "cache"), **source), split).table

    return loaded


def fails(load, capfd, **source):
    """Return the message of the error, which must be one line, with nothing printed beside it."""
    with pytest.raises(ConfigError) as caught:
        load(**source)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    return str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_json_lines_end_at_a_line_feed_only(load, tmp_path, end):  # case B19
    records = ["first", ODD, "last"]
    content = end.join(json.dumps({"text": record}, ensure_ascii=False) for record in records) + end
    (tmp_path / "x.jsonl").write_bytes(content.encode())
    assert load(path="json", data_files=str(tmp_path / "x.jsonl"))["text"][:] == records


def test_a_text_file_is_one_document(load, tmp_path):  # case B19
    (tmp_path / "a.txt").write_text(f"line\n\n{ODD}\n", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("\ufeffwith a byte-order mark\r\n".encode())
    (tmp_path / "c.txt").write_text("")
    texts = load(path="text", data_files=str(tmp_path / "*.txt"))["text"][:]
    assert texts == [f"line\n\n{ODD}\n", "with a byte-order mark\n"]


def test_blank_lines_are_no_documents(load, tmp_path):  # case B21
    (tmp_path / "x.jsonl").write_text('\n{"text": "a"}\n\n  \n{"text": "b"}\n\t\n')
    assert load(path="json", data_files=str(tmp_path / "x.jsonl"))["text"][:] == ["a", "b"]


def test_other_fields_may_hold_anything(load, tmp_path, write_jsonl):
    path = write_jsonl(
        tmp_path / "x.jsonl", [{"text": "a", "meta": 1}, {"text": "b", "meta": {"k": []}}, {"text": "c"}]
    )
    assert load(path="json", data_files=str(path)).column_names == ["text"]


def test_json_lists_and_compressed_lines(load, tmp_path):
    (tmp_path / "list.json").write_text('[{"body": "a"},\n {"body": "b"}]')
    (tmp_path / "more.jsonl.gz").write_bytes(gzip.compress(b'{"body": "c"}\n'))
    files = [str(tmp_path / "list.json"), str(tmp_path / "more.jsonl.gz")]
    assert load(path="json", data_files=files, text_column="body")["text"][:] == ["a", "b", "c"]


def test_labels_come_along_when_asked_for(load, tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "a", "y": 3}, {"text": "b", "y": 1}])
    assert load(path="json", data_files=str(path), label_column="y")["label"][:] == [3, 1]


def test_csv(load, tmp_path):
    (tmp_path / "x.csv").write_text('body,y\n"two\nlines",1\nplain,2\n')
    documents = load(path="csv", data_files=str(tmp_path / "x.csv"), text_column="body", label_column="y")
    assert documents["text"][:] == ["two\nlines", "plain"]
    assert documents["label"][:] == [1, 2]


def test_parquet(load, tmp_path):
    datasets.Dataset.from_dict({"text": ["a", "b"], "other": [1, 2]}).to_parquet(str(tmp_path / "x.parquet"))
    assert load(path="parquet", data_files=str(tmp_path / "x.parquet"))["text"][:] == ["a", "b"]


def test_folders_of_save_to_disk(load, tmp_path):
    part = datasets.Dataset.from_dict({"text": ["a", "b"]})
    part.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": part, "validation": part.select([1])}).save_to_disk(tmp_path / "two")
    assert load(path=str(tmp_path / "one"))["text"][:] == ["a", "b"]
    assert load(path=str(tmp_path / "two"), split="validation")["text"][:] == ["b"]


def test_a_file_that_has_changed_is_read_again(load, tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "old"}])
    assert load(path="json", data_files=str(path))["text"][:] == ["old"]
    write_jsonl(path, [{"text": "new"}])
    assert load(path="json", data_files=str(path))["text"][:] == ["new"]


@pytest.mark.parametrize(
    ("split", "numbers"),
    [("train", range(10)), ("train[:30%]", range(3)), ("train[8:]", [8, 9]), ("extra+train[:1]", [100, 0])],
)
def test_splits_are_those_of_load_dataset(load, tmp_path, split, numbers, write_jsonl):
    files = {
        "train": str(write_jsonl(tmp_path / "t.jsonl", [{"text": str(number)} for number in range(10)])),
        "extra": [str(write_jsonl(tmp_path / "e.jsonl", [{"text": "100"}]))],
    }
    assert load(path="json", data_files=files, split=split)["text"][:] == [str(number) for number in numbers]


def test_short_documents_and_surplus_ones_are_left_out(load, tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "x" * length} for length in (5, 0, 9, 3, 7)] + [{"text": None}])
    assert [len(text) for text in load(path="json", data_files=str(path), minimum_characters=5)["text"]] == [5, 9, 7]
    assert [len(text) for text in load(path="json", data_files=str(path), maximum_documents=2)["text"]] == [5, 9]


def test_content_hash_sees_text_borders_and_labels():
    def hashed(**columns):
        return content_hash(datasets.Dataset.from_dict(columns))

    assert hashed(text=["ab", "c"]) == hashed(text=["ab", "c"])
    assert hashed(text=["ab", "c"]) != hashed(text=["a", "bc"])
    assert hashed(text=["a", "b"], label=[0, 1]) != hashed(text=["a", "b"], label=[1, 0])
    assert content_hash(datasets.Dataset.from_dict({"text": ["x", "a", "b"]}).select([1, 2])) == hashed(text=["a", "b"])


def test_missing_file(load, capfd, tmp_path, write_jsonl):
    write_jsonl(tmp_path / "papers.jsonl", [{"text": "a"}])
    message = fails(load, capfd, path="json", data_files=str(tmp_path / "paper.jsonl"))
    assert f"{tmp_path / 'paper.jsonl'} does not exist" in message
    assert "did you mean 'papers.jsonl'" in message
    (tmp_path / "link.jsonl").symlink_to("gone.jsonl")
    message = fails(load, capfd, path="json", data_files=str(tmp_path / "link.jsonl"))
    assert "link.jsonl is a link to gone.jsonl, which does not exist" in message


@pytest.mark.parametrize("path", ["json", "text", "csv", "parquet"])
def test_empty_file(load, capfd, tmp_path, path):
    (tmp_path / "x").write_text("")
    assert f"{tmp_path / 'x'} is empty (0 bytes)" in fails(load, capfd, path=path, data_files=str(tmp_path / "x"))


def test_file_of_blank_lines(load, capfd, tmp_path):  # case B21
    (tmp_path / "x.jsonl").write_text("\n  \n\n")
    message = fails(load, capfd, path="json", data_files=str(tmp_path / "x.jsonl"))
    assert "x.jsonl" in message
    assert "no documents" in message


def test_all_documents_empty(load, capfd, tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": ""}, {"text": None}])
    assert "all 2 documents are empty in column 'text'" in fails(load, capfd, path="json", data_files=str(path))


def test_none_long_enough(load, capfd, tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    message = fails(load, capfd, path="json", data_files=str(path), minimum_characters=4)
    assert "none of 1 documents has 4 characters; lower minimum_characters" in message


@pytest.mark.parametrize("path", ["json", "csv", "parquet"])
def test_wrong_column(load, capfd, tmp_path, path, write_jsonl):
    if path == "json":
        write_jsonl(tmp_path / "x", [{"body": "a", "title": "b"}])
    elif path == "csv":
        (tmp_path / "x").write_text("body,title\na,b\n")
    else:
        datasets.Dataset.from_dict({"body": ["a"], "title": ["b"]}).to_parquet(str(tmp_path / "x"))
        capfd.readouterr()
    message = fails(load, capfd, path=path, data_files=str(tmp_path / "x"), text_column="bodi")
    assert "text_column='bodi': no such column" in message
    assert "(did you mean 'body'?); there are: body, title" in message
    message = fails(load, capfd, path=path, data_files=str(tmp_path / "x"), text_column="body", label_column="titel")
    assert "label_column='titel': no such column" in message


def test_column_without_text(load, capfd, tmp_path, write_jsonl):
    (tmp_path / "x.csv").write_text("text\n1\n2\n")
    assert "text must be a string" in fails(load, capfd, path="csv", data_files=str(tmp_path / "x.csv"))
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "a"}, {"text": ["b", 3]}])
    message = fails(load, capfd, path="json", data_files=str(path))
    assert message == f"{path}:2: field 'text' holds a number, but text must be a string or a list of strings"


@pytest.mark.parametrize(
    ("path", "content", "offset"),
    [
        ("json", b'{"text": "ok"}\n\n{"text": "caf\xe9"}\n', 29),
        ("csv", b"text\nok\ncaf\xe9\n", 11),
        ("text", b"caf\xe9", 3),
        ("text", b"x" * (1 << 20) + "ü".encode()[:1] + b"y", 1 << 20),
        ("text", b"x" * ((1 << 20) - 1) + "ü".encode() + b"\xff", (1 << 20) + 1),
    ],
)
def test_not_utf8(load, capfd, tmp_path, path, content, offset):
    (tmp_path / "x").write_bytes(content)
    message = fails(load, capfd, path=path, data_files=str(tmp_path / "x"))
    place = f"{tmp_path / 'x'}:3" if path == "json" else str(tmp_path / "x")
    assert message.startswith(f"{place}: not UTF-8: byte 0x{content[offset]:02x} at offset {offset}; convert")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{bad", "broken JSON"),
        ('{"text": "a"', "broken JSON"),
        ('"a"', "a string, but each line must be a JSON object"),
        ('{"text": "\\ud800"}', r"half a surrogate pair (\ud800) at character 0"),
        ('{"other": "a"}', "text_column='text': no such column"),
    ],
)
def test_broken_line_is_named(load, capfd, tmp_path, line, message):  # case B21
    (tmp_path / "x.jsonl").write_text(f'{{"text": "good"}}\n\n   \n{{"text": "good"}}\n{line}\n{{"text": "good"}}\n')
    found = fails(load, capfd, path="json", data_files=str(tmp_path / "x.jsonl"))
    assert f"{tmp_path / 'x.jsonl'}:5" in found
    assert message in found


def test_not_a_parquet_file(load, capfd, tmp_path):
    (tmp_path / "x.parquet").write_text("nothing of the kind")
    message = fails(load, capfd, path="parquet", data_files=str(tmp_path / "x.parquet"))
    assert "path='parquet' cannot be read" in message


def test_no_match_and_folder(load, capfd, tmp_path):
    assert "no file matches" in fails(load, capfd, path="text", data_files=str(tmp_path / "*.txt"))
    assert "is a folder; give its files" in fails(load, capfd, path="text", data_files=str(tmp_path))


def test_wrong_split(load, capfd, jsonl):
    message = fails(load, capfd, path="json", data_files=str(jsonl), split="test")
    assert "has no 'test'; there are: train" in message
    assert "is not understood" in fails(load, capfd, path="json", data_files=str(jsonl), split="train[:x]")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "json"}, "say which with data_files"),
        ({"path": "some.jsonl"}, "is a file name: give path='json' and data_files='some.jsonl'"),
        ({"path": "./nowhere"}, "path='./nowhere' does not exist"),
        ({"path": "python_library", "data_files": "x"}, "data_files has no effect"),
        ({"path": "python_library", "label_column": "y"}, "has one label column, 'label'"),
    ],
)
def test_settings_that_contradict(load, capfd, source, message):
    assert message in fails(load, capfd, **source)


def test_settings_without_effect(load, capfd, jsonl):
    assert "name='x' has no effect" in fails(load, capfd, path="json", data_files=str(jsonl), name="x")


def test_loading_script(load, capfd, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "old.py").write_text("import datasets\n")
    message = fails(load, capfd, path=str(tmp_path / "old"))
    assert "needs a loading script" in message
    assert "parquet copy" in message


def test_the_parquet_copy_of_a_data_set_with_a_script_is_named():
    error = RuntimeError("Dataset scripts are no longer supported, but found pg19.py")
    message = str(explained(error, "deepmind/pg19", None, "train"))
    assert message.endswith("take its parquet copy, path='emozilla/pg19'")


@pytest.mark.parametrize(("path", "hint"), [("some/dataset", ""), ("jsno", " (did you mean 'json'?)")])
def test_no_network(load, capfd, monkeypatch, path, hint):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = fails(load, capfd, path=path)
    assert message.startswith(f"path={path!r}: not in the cache, and the hub is switched off (HF_HUB_OFFLINE){hint};")
    assert "python_library" in message


def test_unreachable_hub(load, capfd, monkeypatch):
    def refused(*_, **__):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(datasets, "load_dataset", refused)
    assert "path='some/dataset': the hub cannot be reached" in fails(load, capfd, path="some/dataset")


NESTED = {
    "title": "T",
    "full_text": [
        {"name": "one", "paragraphs": ["a", "b"]},
        {"name": "two", "paragraphs": [None, "", "c"]},
    ],
    "answer": {"value": "yes"},
}


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize(
    ("column", "text"),
    [
        (["title", "full_text.paragraphs"], "T|a|b|c"),
        ("full_text.name", "one|two"),
        (["full_text.name", "full_text.paragraphs"], "one|two|a|b|c"),
        ("answer.value", "yes"),
    ],
)
def test_text_in_several_columns_in_lists_and_at_nested_places(load, tmp_path, write_jsonl, kind, column, text):
    if kind == "json":
        file = write_jsonl(tmp_path / "x.jsonl", [NESTED, NESTED])
    else:
        file = tmp_path / "x.parquet"
        datasets.Dataset.from_list([NESTED, NESTED]).to_parquet(str(file))
    documents = load(path=kind, data_files=str(file), text_column=column, text_separator="|")
    assert documents.column_names == ["text"]
    assert documents["text"][:] == [text, text]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_pairs_and_nested_labels(load, tmp_path, write_jsonl, kind):
    records = [{"a": "x", "b": ["y", "z"], "m": {"label": n}} for n in (2, 0)]
    file = tmp_path / f"x.{kind}"
    if kind == "json":
        write_jsonl(file, records)
    else:
        datasets.Dataset.from_list(records).to_parquet(str(file))
    chosen = {"text_column": "a", "text_pair_column": "b", "text_separator": " ", "label_column": "m.label"}
    documents = load(path=kind, data_files=str(file), **chosen)
    assert documents[:] == {"text": ["x", "x"], "text_pair": ["y z", "y z"], "label": [2, 0]}


def test_a_field_with_a_dot_in_its_name_comes_first(load, tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "x.jsonl", [{"a.b": "dotted", "a": {"b": "nested"}}])
    assert load(path="json", data_files=str(path), text_column="a.b")["text"][:] == ["dotted"]


def test_one_column_in_two_roles(load, tmp_path):
    datasets.Dataset.from_dict({"x": ["a", "b"]}).to_parquet(str(tmp_path / "x.parquet"))
    documents = load(path="parquet", data_files=str(tmp_path / "x.parquet"), text_column="x", label_column="x")
    assert documents[:] == {"text": ["a", "b"], "label": ["a", "b"]}


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_nested_places_that_are_not_there(load, capfd, tmp_path, write_jsonl, kind):
    file = tmp_path / f"x.{kind}"
    records = [{"meta": {"body": "x"}}]
    write_jsonl(file, records) if kind == "json" else datasets.Dataset.from_list(records).to_parquet(str(file))
    capfd.readouterr()  # `datasets` shows a bar for what it writes
    message = fails(load, capfd, path=kind, data_files=str(file), text_column="meta.bodi")
    assert "text_column='bodi'" in message
    assert "did you mean 'body'" in message
    assert "text_column='mata'" in fails(load, capfd, path=kind, data_files=str(file), text_column="mata.body")
    message = fails(load, capfd, path=kind, data_files=str(file), text_column="meta.body.more")
    assert "looks for 'more' within a string, which has no fields" in message


def test_bad_lines_are_left_out_and_counted_when_asked(load, tmp_path, caplog):  # case B21
    lines = [
        '{"text": "a"}',
        "",
        "  ",
        '{"text": "b"}',
        "{bad",
        '{"text": "c"}',
        '{"text": 3}',
        "[1]",
        '{"text": "\\ud800"}',
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    path = str(tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match=r"x\.jsonl:5: broken JSON .* bad_records='skip'"):
        load(path="json", data_files=path)
    assert load(path="json", data_files=path, bad_records="skip")["text"][:] == ["a", "b", "c"]
    (said,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "left out 4 records" in said
    assert "x.jsonl:5: broken JSON" in said


def test_urls_of_any_file_system(load, tmp_path, write_jsonl):
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": name}])
    url = f"file://{tmp_path}"
    assert load(path="json", data_files=f"{url}/a.jsonl")["text"][:] == ["a"]
    assert load(path="json", data_files=f"{url}/*.jsonl")["text"][:] == ["a", "b"]
    with pytest.raises(ConfigError, match="no file matches"):
        load(path="json", data_files=f"{url}/c*.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path="json", data_files=f"{url}/c.jsonl")
