"""The messages for users in the errors of a runner."""

import traceback

import pytest

from beam_pipeline.dataset.sections import SectionError
from beam_pipeline.engines.sample_check import EngineMismatch
from beam_pipeline.support.errors import DataError, LockLost, UsageError, user_message


@pytest.mark.parametrize(
    "error",
    [
        DataError("x.rows: damaged"),
        UsageError("--output: wrong"),
        LockLost("taken over"),
        SectionError("x.rows: the 9 bytes at 0 are damaged; --resume recomputes them"),
        EngineMismatch("x.txt", 3, "other ids"),
    ],
)
def test_the_message_for_users_is_found_in_the_traceback_of_a_worker(error):
    quoted = RuntimeError("".join(traceback.format_exception(error)) + "\nTraceback (most recent call last):")
    assert user_message(quoted) == str(error)
