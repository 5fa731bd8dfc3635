from __future__ import annotations

import re

import pytest

from longattn.data.corpora import build_corpus
from longattn.data.corpora.options import check_options, required_options
from longattn.errors import ConfigError


class Everything:
    """A constructor with arguments of every type."""

    def __init__(
        self,
        *,
        text: str,
        number: int = 0,
        share: float = 0.5,
        flag: bool = False,
        words: list[str] | None = None,
        sizes: list[int] = [],  # noqa: B006
        internal: object = None,
    ) -> None:
        pass


def check(**options):
    check_options(Everything, "everything", {"text": "x"} | options, ("internal",))


@pytest.mark.parametrize(
    "options",
    [
        {"number": -3},
        {"share": 0.25},
        {"share": 1},
        {"flag": True},
        {"words": None},
        {"words": []},
        {"words": ["a", "b"]},
        {"sizes": [1, 2]},
    ],
)
def test_values_of_the_annotated_type_pass(options):
    check(**options)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("text", 1, "str"),
        ("text", None, "str"),
        ("number", "x", "int"),
        ("number", 1.0, "int"),
        ("number", True, "int"),
        ("number", None, "int"),
        ("share", "0.5", "float"),
        ("share", False, "float"),
        ("flag", 1, "bool"),
        ("flag", "yes", "bool"),
        ("words", "a", "list of str or null"),
        ("words", ["a", 1], "list of str or null"),
        ("sizes", None, "list of int"),
        ("sizes", [True], "list of int"),
    ],
)
def test_values_of_other_types_are_refused(option, value, wanted):
    message = f"options: {option}={value!r} of path='everything' must be {wanted}"
    with pytest.raises(ConfigError, match=re.escape(message) + "$"):
        check(**{option: value})


def test_unknown_and_internal_options_are_refused():
    with pytest.raises(ConfigError, match=r"'numbr' is no option of path='everything' \(did you mean 'number'\?\)"):
        check(numbr=1)
    with pytest.raises(ConfigError, match=r"'internal' is no option.*there are: text, number, share, flag, words, si"):
        check(internal=1)


def test_an_option_without_default_is_required():
    with pytest.raises(ConfigError, match=r"options: path='everything' needs text \(str\)"):
        check_options(Everything, "everything", {"number": 1}, ("internal",))
    assert required_options(Everything, ()) == ["text"]
    assert required_options(Everything, ("text",)) == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("listops", {"count": "x"}, "options: count='x' of path='listops' must be int"),
        ("listops", {"length": 5}, "options: 'length' is no option of path='listops'"),
        ("folder", {}, "options: path='folder' needs folder (str)"),
        ("manual_pages", {"folders": ()}, "options: 'folders' is no option of path='manual_pages'; there are: none"),
        ("python_library", {"x": 1}, "options: 'x' is no option of path='python_library'; there are: none"),
    ],
)
def test_a_corpus_is_built_with_checked_options(name, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_corpus(name, options)
