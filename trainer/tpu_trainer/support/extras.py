"""The extra `gcp` of the distribution, which TensorFlow's own access to Cloud Storage does not need."""

from __future__ import annotations

import importlib.util

from tpu_trainer.support.errors import UsageError


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
