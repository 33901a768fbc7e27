"""The cluster of TF_CONFIG, read without TensorFlow."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from tpu_trainer.support.errors import UsageError

_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """This process's place in the cluster."""

    workers: int
    index: int

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run's files; the others only compute."""
        return self.index == 0


def cluster_from_environment() -> Cluster:
    """Reads TF_CONFIG; without it, the cluster is this process.

    Raises:
        UsageError: If TF_CONFIG is invalid.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return Cluster(workers=1, index=0)
    try:
        config = json.loads(text)
        roles = set(config["cluster"])
        workers = config["cluster"]["worker"]
        kind, index = config["task"]["type"], int(config["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"TF_CONFIG is {text!r}: not a cluster ({error!r}); an example is {_EXAMPLE}"
        ) from None
    if roles != {"worker"} or kind != "worker":
        raise UsageError(f"TF_CONFIG is {text!r}: all tasks must be of type 'worker', as in {_EXAMPLE}")
    if not 0 <= index < len(workers):
        raise UsageError(
            f"TF_CONFIG is {text!r}: task.index {index} is out of range for {len(workers)} workers"
        )
    return Cluster(workers=len(workers), index=index)
