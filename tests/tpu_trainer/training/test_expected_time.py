"""How long a run takes, which `fit` estimates before it starts."""

from __future__ import annotations

import pytest

from tpu_trainer.training.expected_time import Speed, accelerator_speed, cpu_speed, rounded

DAY = 24 * 3600


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.01, "1 second"),
        (89, "89 seconds"),
        (91, "2 minutes"),
        (3 * 3600, "3 hours"),
        (DAY, "24 hours"),
        (4.2 * DAY, "4 days"),
        (1e9, "11,574 days"),
    ],
)
def test_a_duration_has_one_unit(seconds: float, expected: str) -> None:
    assert rounded(seconds) == expected


def test_more_than_a_day_on_a_cpu_names_the_remedies() -> None:
    cpu = Speed(flops=1e9, is_cpu=True)
    assert cpu.describe(cpu.seconds(7200e9)) == "about 2 hours on this CPU, without compilation"
    line = cpu.describe(cpu.seconds(10 * DAY * 1e9))
    assert line.startswith("about 10 days on this CPU, without compilation: ")
    for remedy in ("--config tiny-clm or tiny-mlm", "--train.steps", "accelerator", "docs/training.md"):
        assert remedy in line


def test_accelerators_reach_a_part_of_their_peak() -> None:
    speed = accelerator_speed(1000.0)
    assert 250 < speed.flops < 600
    assert speed.describe(10 * DAY) == "about 10 days on these devices, without compilation"


def test_a_cpu_is_measured() -> None:
    speed = cpu_speed()
    assert speed.is_cpu and 1e8 < speed.flops < 1e14
