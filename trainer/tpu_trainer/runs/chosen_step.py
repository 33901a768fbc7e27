"""The checkpoint that --checkpoint names."""

from __future__ import annotations

from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.support.errors import UsageError


def chosen_step(checkpoints: Checkpoints, choice: str) -> int:
    """Returns the step of a checkpoint.

    Args:
        checkpoints: The run's.
        choice: latest, best, or a step.

    Raises:
        UsageError: If there is no such checkpoint, or it is damaged. `latest` is the newest that is not.
    """
    if choice == "latest":
        return checkpoints.latest()
    if choice == "best":
        best = checkpoints.best()
        if best is None:
            raise UsageError(
                "--checkpoint is 'best', but no checkpoint of the run has a validation loss; use 'latest' or a step"
            )
        checkpoints.check(best)
        return best
    steps = checkpoints.steps()
    if int(choice) not in steps:
        raise UsageError(
            f"--checkpoint is {choice}, but the run has checkpoints of the steps {', '.join(map(str, steps)) or 'none'}"
        )
    checkpoints.check(int(choice))
    return int(choice)
