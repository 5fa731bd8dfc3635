"""Schedules: the values that the words of their configuration promise."""

from __future__ import annotations

import logging

import pytest
import torch

from longattn.errors import ConfigError
from longattn.training.schedule import ScheduleConfig, build_scheduler, learning_rate_factor


def factors(schedule: ScheduleConfig, steps: int) -> list[float]:
    return [learning_rate_factor(schedule, step) for step in range(steps)]


def test_warm_up_rises_in_a_straight_line_to_the_peak():
    schedule = ScheduleConfig(shape="constant", warmup_steps=4)
    assert factors(schedule, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_goes_from_the_peak_through_the_middle_to_the_end():
    schedule = ScheduleConfig(shape="cosine", final_fraction=0.2).resolve(10)
    values = factors(schedule, 11)
    assert values[0] == 1.0
    assert values[5] == pytest.approx(0.6)
    assert values[10] == pytest.approx(0.2)
    assert learning_rate_factor(schedule, 100) == pytest.approx(0.2)


def test_linear_falls_by_the_same_amount_each_step():
    values = factors(ScheduleConfig(shape="linear", warmup_steps=2, final_fraction=0.0).resolve(6), 7)
    assert values == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_wsd_has_a_plateau_and_decays_at_the_end():
    values = factors(ScheduleConfig(shape="wsd", warmup_steps=1, decay_steps=2, final_fraction=0.0).resolve(6), 7)
    assert values == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0])


def test_wsd_decays_over_a_tenth_of_the_run_by_default():
    assert ScheduleConfig(shape="wsd").resolve(50).decay_steps == 5


def test_total_steps_win_over_the_length_of_the_run():
    assert ScheduleConfig(shape="linear", total_steps=100).resolve(10).total_steps == 100


@pytest.mark.parametrize("shape", ["cosine", "linear", "wsd"])
def test_a_shape_that_needs_the_length_says_so(shape):
    with pytest.raises(ConfigError, match=f"{shape}.*--trainer.max_steps"):
        ScheduleConfig(shape=shape).resolve(None)


def test_constant_needs_no_length():
    assert learning_rate_factor(ScheduleConfig(shape="constant").resolve(None), 1000) == 1.0


def test_parts_longer_than_the_run_are_cut_short_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        schedule = ScheduleConfig(shape="wsd", warmup_steps=4, decay_steps=4, final_fraction=0.0).resolve(6)
    assert "exceed the 6 optimizer steps" in caplog.text
    assert factors(schedule, 6) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_steps": -1}, "warmup_steps.*-1"),
        ({"final_fraction": 1.5}, "final_fraction.*1.5"),
        ({"total_steps": 0}, "total_steps.*0"),
        ({"shape": "cosine", "decay_steps": 5}, "decay_steps 5.*wsd"),
    ],
)
def test_wrong_settings_are_quoted(settings, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**settings)


def test_the_scheduler_steps_the_optimizer_and_its_state_is_plain():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = build_scheduler(optimizer, ScheduleConfig(shape="linear", final_fraction=0.0).resolve(4))
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([2.0, 1.5, 1.0, 0.5])
    again = build_scheduler(optimizer, ScheduleConfig(shape="linear", final_fraction=0.0).resolve(4))
    again.load_state_dict(scheduler.state_dict())
    assert again.last_epoch == 4
