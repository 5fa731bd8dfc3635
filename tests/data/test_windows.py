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


def test_truncation_keeps_the_head_and_counts_the_rest():
    windows, counts = cut(np.array([5, 0, 30, 14]), Windowing(max_length=16, long_documents="truncate"))
    assert windows.document.tolist() == [0, 2, 3]
    assert windows.length.tolist() == [5, 14, 14]
    assert (counts.long_documents, counts.truncated_tokens) == (1, 16)


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
        ({"long_documents": "truncate", "stride": 4}, "stride=4 has no effect"),
    ],
)
def test_settings_without_meaning_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Windowing(**({"max_length": 16} | wrong))
