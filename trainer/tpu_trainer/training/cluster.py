"""The machines that train together, as TF_CONFIG tells; read without TensorFlow."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from tpu_trainer.errors import UsageError

_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """This process's place among its peers."""

    workers: int
    index: int

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run's files; the others compute."""
        return self.index == 0


def cluster_from_environment() -> Cluster:
    """What TF_CONFIG says; without it, this process is alone. UsageError where it says nothing that makes sense."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return Cluster(workers=1, index=0)
    try:
        config = json.loads(text)
        roles = set(config["cluster"])
        workers = config["cluster"]["worker"]
        kind, index = config["task"]["type"], int(config["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"TF_CONFIG is {text!r}: not a cluster ({error!r}); such as {_EXAMPLE}") from None
    if roles != {"worker"} or kind != "worker":
        raise UsageError(f"TF_CONFIG is {text!r}: all tasks must be of type 'worker', such as {_EXAMPLE}")
    if not 0 <= index < len(workers):
        raise UsageError(f"TF_CONFIG is {text!r}: task {index} of {len(workers)} workers")
    return Cluster(workers=len(workers), index=index)
