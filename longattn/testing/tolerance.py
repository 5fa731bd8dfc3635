"""The one error budget: a result may be as far from the fp64 truth as the textbook formula in the same precision is.

As in attention-gym: tolerances are measured, not guessed.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FACTOR = 2.0  # how much worse than the textbook formula in the same precision
_FLOOR = {torch.float64: 1e-11, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Of the largest true value: what rounding inputs and outputs alone may cost."""


def assert_within_budget(name: str, actual: Tensor, truth: Tensor, textbook: Tensor, dtype: torch.dtype) -> None:
    """Compare `actual` with the fp64 `truth`, given the same quantity by the textbook formula in `dtype`.

    Infinities must be the same ones, and NaN is never right. AssertionError names the quantity and both errors.
    """
    assert actual.shape == truth.shape, f"{name}: shape {tuple(actual.shape)}, expected {tuple(truth.shape)}"
    infinite = torch.isinf(truth)
    assert torch.equal(torch.isinf(actual), infinite), f"{name}: infinities differ"
    assert not torch.isnan(actual).any(), f"{name}: NaN"
    difference = (actual.double() - truth)[~infinite].abs()
    if difference.numel() == 0:
        return
    largest = truth[~infinite].abs().max().item()
    allowed = _FACTOR * (textbook.double() - truth)[~infinite].abs().max().item() + _FLOOR[dtype] * max(largest, 1e-3)
    error = difference.max().item()
    assert error <= allowed, f"{name}: error {error:.3g} exceeds {allowed:.3g} (largest value {largest:.3g}, {dtype})"
