"""The agreement of several processes on the step after which they end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpu_trainer.training.interruption import AgreedEnd


@given(
    signals=st.lists(st.none() | st.integers(0, 15), min_size=1, max_size=4),
    lag=st.integers(0, AgreedEnd.AHEAD),
)
def test_all_processes_end_after_the_same_step_and_read_only_computed_steps(
    signals: list[int | None], lag: int
) -> None:
    """Each process gets a signal after the step of its number, or none; the device is `lag` steps behind."""
    steps, agreed_ends = 30, [AgreedEnd() for _ in signals]

    class Sum:
        def __init__(self, step: int) -> None:
            self.step = step

        def __float__(self) -> float:
            assert self.step + lag <= current_step
            return float(sum(signal is not None and signal < self.step for signal in signals))

    end_steps: list[set[int]] = [set() for _ in signals]
    for current_step in range(steps):
        for process, end in enumerate(agreed_ends):
            if end.ends(Sum(current_step)):
                end_steps[process].add(current_step)
    signal_steps = [signal for signal in signals if signal is not None]
    expected = min(signal_steps) + 1 + AgreedEnd.AHEAD if signal_steps else None
    assert [min(own_steps, default=None) for own_steps in end_steps] == [expected] * len(signals)
