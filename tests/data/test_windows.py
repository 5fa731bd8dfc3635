from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longattn.data.windows import Windowing, cut
from longattn.errors import ConfigError


def test_a_hundred_words_in_windows_of_sixteen():  # case B27
    windows, counts = cut(np.array([100]), Windowing(max_length=16, stride=4))
    assert len(windows) == math.ceil((100 - 14) / (14 - 4)) + 1 == 10
    assert windows.start[:3].tolist() == [0, 10, 20]
    assert windows.stop[-1] == 100
    assert set().union(*(range(a, b) for a, b in zip(windows.start, windows.stop, strict=True))) == set(range(100))
    assert counts.long_documents == 1
    assert counts.truncated_tokens == 0


@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=8),
    max_length=st.integers(3, 40),
    data=st.data(),
)
def test_windows_cover_each_token_and_overlap_by_the_stride(lengths, max_length, data):
    stride = data.draw(st.integers(0, max_length - 3))
    windows, counts = cut(np.array(lengths), Windowing(max_length=max_length, stride=stride))
    assert (windows.length >= 1).all()
    assert (windows.length <= max_length - 2).all()
    assert counts.truncated_tokens == 0
    assert (np.diff(windows.document) >= 0).all()
    for document, length in enumerate(lengths):
        mine = windows.document == document
        starts, stops = windows.start[mine], windows.stop[mine]
        if length == 0:
            assert len(starts) == 0
            continue
        assert starts[0] == 0
        assert stops[-1] == length
        assert (stops[:-1] - starts[1:] == stride).all()
        assert len(starts) == 1 or length > max_length - 2  # no window that another holds whole
        assert (np.diff(stops) > 0).all()


def held(windows, index):
    """The tokens of a window, by their places in the document."""
    start, stop, gap_start, gap_stop = (int(x[index]) for x in list(vars(windows).values())[1:])
    return [*range(start, gap_start), *range(gap_stop, stop)] if gap_stop > gap_start else list(range(start, stop))


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ("keep_head", list(range(14))),
        ("keep_tail", list(range(16, 30))),
        ("keep_ends", [*range(7), *range(23, 30)]),
        ("keep_whole", list(range(30))),
    ],
)
def test_a_part_is_kept_and_the_rest_counted(part, kept):
    windows, counts = cut(np.array([5, 0, 30, 14]), Windowing(max_length=16, long_documents=part))
    assert windows.document.tolist() == [0, 2, 3]
    assert [held(windows, index) for index in range(3)] == [list(range(5)), kept, list(range(14))]
    assert windows.length.tolist() == [5, len(kept), 14]
    assert (counts.long_documents, counts.truncated_tokens) == (1, 30 - len(kept))


def test_each_window_of_a_pair_begins_with_its_first_text():
    """The first text and its separator take 5 tokens, which leaves 9 for each window of the second."""
    windows, counts = cut(np.array([30, 10]), Windowing(max_length=16, stride=2), np.array([5, 4]))
    first = list(range(5))
    assert [held(windows, index) for index in range(len(windows))] == [
        [*first, *range(5, 14)],
        [*first, *range(12, 21)],
        [*first, *range(19, 28)],
        [*first, *range(26, 30)],
        list(range(10)),
    ]
    assert counts.truncated_tokens == 0
    with pytest.raises(ConfigError, match="document 1: its first text and separator take 13 of a window's 14 tokens"):
        cut(np.array([3, 40]), Windowing(max_length=16, stride=1), np.array([1, 13]))


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(20, 20, (7, 6)), (20, 3, (10, 3)), (3, 20, (3, 10)), (8, 7, (7, 6)), (13, 1, (12, 1))],
)
def test_the_longer_text_of_a_pair_is_cut(first, second, kept):
    setting = Windowing(max_length=16, long_documents="keep_head")
    windows, counts = cut(np.array([first + 1 + second]), setting, np.array([first + 1]))
    assert held(windows, 0) == [*range(kept[0]), *range(first, first + 1 + kept[1])]
    assert counts.truncated_tokens == first + second - sum(kept)


@pytest.mark.parametrize("stride", [14, 15, 16, -1])
def test_a_stride_without_progress_is_refused(stride):  # case B28
    with pytest.raises(ConfigError, match=rf"stride={stride} with max_length=16 and 2 special tokens.*0 to 13"):
        Windowing(max_length=16, stride=stride)


def test_the_largest_stride_moves_by_one_token():  # case B28
    windows, _ = cut(np.array([20]), Windowing(max_length=16, stride=13))
    assert windows.start.tolist() == list(range(7))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_length": 2}, "max_length=2: no room"),
        ({"long_documents": "drop"}, "long_documents='drop'"),
        ({"long_documents": "keep_head", "stride": 4}, "stride=4 has no effect"),
    ],
)
def test_settings_without_meaning_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Windowing(**({"max_length": 16} | wrong))
