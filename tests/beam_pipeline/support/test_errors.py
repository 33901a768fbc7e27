"""The messages for users in the errors of a runner."""

import traceback

import pytest

from beam_pipeline.support.errors import DataError, FileError, LockLost, UsageError, UserError, user_message


@pytest.mark.parametrize(
    "error",
    [
        DataError("x.rows: the 9 bytes at 0 are damaged; --resume recomputes them"),
        UsageError("--output: wrong"),
        LockLost("taken over"),
        FileError("gs://bucket/x: 403 no permission"),
    ],
)
def test_the_message_for_users_is_found_in_the_traceback_of_a_worker(error: UserError):
    assert user_message(error) == str(error)
    quoted = RuntimeError("".join(traceback.format_exception(error)) + "\nTraceback (most recent call last):")
    assert user_message(quoted) == str(error)


def test_an_error_for_users_that_no_runner_could_recognize_cannot_be_defined():
    with pytest.raises(TypeError, match=r"Elsewhere must be in beam_pipeline\.support\.errors"):
        type("Elsewhere", (DataError,), {"__module__": "beam_pipeline.dataset.sections"})
