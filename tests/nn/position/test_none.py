"""No positions: nothing is added anywhere."""

from __future__ import annotations

import torch

from longattn.nn import NoPosition


def test_adds_nothing():
    none = NoPosition()
    assert none.embedding(8) is None
    assert none.rotation(torch.arange(4)[None], 8, torch.float32) is None
    assert none.bias(4) is None
