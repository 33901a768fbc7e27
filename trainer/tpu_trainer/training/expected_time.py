"""Estimates before a run starts how long it takes here."""

from __future__ import annotations

import time
from dataclasses import dataclass

import tensorflow as tf

_SHARE_OF_PEAK = 0.4
"""Share of an accelerator's published peak. Runs of large models report 30% to 60%."""
_SHARE_OF_CPU = 0.5
"""Share of the rate of a matrix product on a CPU. docs/training.md has measurements."""
_MEASURED_SECONDS = 0.2
_DAY = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The operations per second to expect of a run's devices."""

    flops: float
    is_cpu: bool

    def seconds(self, flops: float) -> float:
        """Returns the seconds that `flops` operations take."""
        return flops / self.flops

    def describe(self, seconds: float) -> str:
        """Returns the line about a run that takes `seconds`; for more than a day on a CPU, with the remedies."""
        line = f"about {rounded(seconds)} on {'this CPU' if self.is_cpu else 'these devices'}, without compilation"
        if self.is_cpu and seconds > _DAY:
            line += (
                ": for less, take a smaller model (--config tiny-clm or tiny-mlm), fewer --train.steps, "
                "or an accelerator; see docs/training.md, 'How long a run takes'"
            )
        return line


def accelerator_speed(peak_flops: float) -> Speed:
    """Returns the speed of accelerators with this peak in all, in operations per second."""
    return Speed(flops=_SHARE_OF_PEAK * peak_flops, is_cpu=False)


def cpu_speed() -> Speed:
    """Measures this machine's CPUs with a matrix product of a small model's shapes.

    It is in float32: XLA's products in bfloat16 are not faster on CPUs. The fastest one counts, because other programs
    disturb so short a measurement more than a run.
    """
    with tf.device("CPU:0"):
        left, right = tf.ones((2048, 256)), tf.ones((256, 512))
        tf.matmul(left, right).numpy()  # starts the threads
        times: list[float] = []
        while sum(times) < _MEASURED_SECONDS or len(times) < 3:
            start = time.perf_counter()
            tf.matmul(left, right).numpy()
            times.append(time.perf_counter() - start)
    return Speed(flops=_SHARE_OF_CPU * 2 * 2048 * 256 * 512 / min(times), is_cpu=True)


def rounded(seconds: float) -> str:
    """Returns a duration in its largest unit, such as "3 hours"."""
    for size, unit in ((_DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= 1.5 * size or unit == "second":
            count = max(1, round(seconds / size))
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    raise AssertionError
