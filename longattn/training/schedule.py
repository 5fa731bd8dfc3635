"""Learning-rate schedules: a linear warm-up, then a shape (WSD: Hu et al. 2024, arXiv 2404.06395, sec. 4)."""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from longattn.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate goes over the run; all lengths are in optimizer steps."""

    shape: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """After the warm-up: half a cosine, a straight line, a plateau with a straight decay at its end (wsd), or flat."""

    warmup_steps: int = 0
    """Optimizer steps over which the rate rises in a straight line from 0; step k of them uses k / warmup_steps."""

    total_steps: int | None = None
    """Optimizer steps until the rate reaches its end; None = those of the run (trainer.max_steps or max_epochs)."""

    decay_steps: int | None = None
    """Optimizer steps of the decay at the end, for wsd only; None = a tenth of total_steps."""

    final_fraction: float = 0.1
    """The rate at the end as a fraction of the peak; 0 to 1."""

    def __post_init__(self) -> None:
        for name, minimum in (("warmup_steps", 0), ("total_steps", 1), ("decay_steps", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"schedule.{name} must be an integer >= {minimum} (optimizer steps), got {value}")
        if not 0.0 <= self.final_fraction <= 1.0:
            raise ConfigError(f"schedule.final_fraction must be between 0 and 1, got {self.final_fraction}")
        if self.decay_steps is not None and self.shape != "wsd":
            raise ConfigError(
                f"schedule.decay_steps {self.decay_steps} has a meaning for shape wsd only, not {self.shape!r}: "
                "leave it out or choose --model.schedule.shape wsd"
            )

    @property
    def needs_total_steps(self) -> bool:
        """Whether the shape depends on the length of the run."""
        return self.shape != "constant" and self.total_steps is None

    def resolve(self, run_steps: int | None) -> ScheduleConfig:
        """Return the schedule with `total_steps` and `decay_steps` filled in for a run of `run_steps` optimizer steps.

        ConfigError when the shape needs a length that is not known (`run_steps` None). Parts that do not fit into the
        run are cut short, with a warning: the warm-up comes first.
        """
        if self.shape == "constant":
            return self
        total = self.total_steps if self.total_steps is not None else run_steps
        if total is None:
            raise ConfigError(
                f"schedule {self.shape!r} must know how many optimizer steps the run has: give --trainer.max_steps, "
                "--trainer.max_epochs or --model.schedule.total_steps, or choose --model.schedule.shape constant"
            )
        decay = None
        if self.shape == "wsd":
            decay = self.decay_steps if self.decay_steps is not None else max(1, total // 10)
        if self.warmup_steps + (decay or 0) > total:
            parts = f"warmup_steps {self.warmup_steps}" + ("" if decay is None else f" + decay_steps {decay}")
            _log.warning("schedule: %s exceed the %d optimizer steps of the run and are cut short", parts, total)
        return ScheduleConfig(
            shape=self.shape,
            warmup_steps=self.warmup_steps,
            total_steps=total,
            decay_steps=decay,
            final_fraction=self.final_fraction,
        )


def learning_rate_factor(schedule: ScheduleConfig, step: int) -> float:
    """Return the fraction of the peak rate that optimizer step `step` (the first is 0) uses; `schedule` is resolved."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.shape == "constant":
        return 1.0
    assert schedule.total_steps is not None, "resolve the schedule first"
    start = schedule.warmup_steps
    if schedule.shape == "wsd":
        assert schedule.decay_steps is not None, "resolve the schedule first"
        start = max(start, schedule.total_steps - schedule.decay_steps)
    progress = min(1.0, max(0.0, (step - start) / max(1, schedule.total_steps - start)))
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule.shape == "cosine" else 1.0 - progress
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * left


def build_scheduler(optimizer: Optimizer, schedule: ScheduleConfig) -> LambdaLR:
    """Return a scheduler, stepped once per optimizer step, that multiplies the optimizer's rates by the schedule."""
    return LambdaLR(optimizer, functools.partial(learning_rate_factor, schedule))
