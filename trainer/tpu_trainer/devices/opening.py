"""Opens the devices of a run, after the processes that use them have met."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpu_trainer.config import EvaluateConfig, FitConfig
from tpu_trainer.devices.pjrt.peers import Peers, joined
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    from tpu_trainer.devices.devices import Devices


@contextmanager
def met_processes(config: FitConfig | EvaluateConfig, *, run: Mapping[str, str]) -> Iterator[Peers]:
    """Joins the processes that train together: with --strategy pjrt those of --mesh, else this one alone.

    Args:
        config: Names strategy and mesh.
        run: Name → value of options that identify the run: processes with others are rejected.

    Raises:
        UsageError: If the options are inconsistent, or the processes do not match.
        NotMetError: If a process did not come in time.
    """
    if config.strategy != "pjrt":
        _check_alone(config.strategy)
        yield Peers()
        return
    with joined(config.mesh, run=run) as peers:
        yield peers


def _check_alone(strategy: str) -> None:
    """Raises UsageError if TensorFlow's variable for clusters lists several tasks: each would train alone."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        tasks = sum(len(addresses) for addresses in json.loads(text).get("cluster", {}).values())
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"TF_CONFIG is {text!r}: not a cluster ({error}); unset it") from None
    if tasks > 1:
        raise UsageError(
            f"TF_CONFIG lists {tasks} tasks, but --strategy {strategy} trains in a single process; to train together, "
            "use --strategy pjrt (docs/sharding.md); to train in this process alone, unset TF_CONFIG"
        )


def open_devices(config: FitConfig, peers: Peers) -> Devices:
    """Opens the devices of `config.strategy`. Call it before TensorFlow computes anything.

    Args:
        config: The run's.
        peers: From `met_processes`.

    Raises:
        UsageError: If this machine lacks the devices.
    """
    # TensorFlow takes seconds to import, and processes meet before.
    if config.strategy == "pjrt":
        from tpu_trainer.devices.pjrt.devices import PjrtDevices

        return PjrtDevices(config, peers)
    from tpu_trainer.devices.tensorflow.devices import TensorFlowDevices

    return TensorFlowDevices(config)
