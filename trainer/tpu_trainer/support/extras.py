"""Extras of the distribution, which most runs do not need."""

from __future__ import annotations

import importlib.util

from tpu_trainer.support.errors import UsageError


def require_lm_eval(tasks: str) -> None:
    """Raises UsageError if EleutherAI's lm-eval, for `tasks`, is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError(
            f"--tasks {tasks}: needs lm-eval; install the extra lm-eval, best in an environment of its own: "
            "pip install 'tokenmill-trainer[lm-eval]'"
        )


def require_gcp(url: str) -> None:
    """Raises UsageError if Google's client of Cloud Storage, for listings and locks, is not installed."""
    try:
        spec = importlib.util.find_spec("google.cloud.storage")
    except ModuleNotFoundError:  # not even `google.cloud`
        spec = None
    if spec is None:
        raise UsageError(
            f"{url}: needs google.cloud.storage; install the extra gcp: pip install 'tokenmill-trainer[gcp]'"
        )
