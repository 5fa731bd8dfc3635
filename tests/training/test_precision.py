"""A precision that the CPU has no instructions for is warned of, before hours are lost."""

import logging

import pytest
import torch

from longattn.training.precision import warn_if_slow


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed", "32-true", "64-true"])
def test_low_precision_without_instructions_is_warned_of(precision, supported, monkeypatch, caplog):
    for name in ("bf16", "fp16"):
        monkeypatch.setattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", lambda: supported)
    with caplog.at_level(logging.WARNING, logger="longattn"):
        warn_if_slow(precision, torch.device("cpu"))
        assert bool(caplog.records) == (not supported and "16" in precision)
        caplog.clear()
        warn_if_slow(precision, torch.device("cuda"))
        assert not caplog.records
