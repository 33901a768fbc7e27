"""Verb launch: requests TPUs of Google Cloud, trains on them and deletes them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from tpu_trainer.cloud.api import Api, connect
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.gke_training import GkeTraining
from tpu_trainer.cloud.group_requests import requests
from tpu_trainer.cloud.instance_group import InstanceGroup
from tpu_trainer.cloud.jobset_manifest import manifest
from tpu_trainer.cloud.lease import Lease, LostLeaseError
from tpu_trainer.cloud.named_training import NamedTraining
from tpu_trainer.cloud.queued_resource import QueuedResource, request
from tpu_trainer.cloud.signals import InterruptedBySignal
from tpu_trainer.cloud.tpu_training import TpuTraining
from tpu_trainer.cloud.vertex import custom_job
from tpu_trainer.cloud.vertex_training import VertexTraining
from tpu_trainer.cloud.watch import Watch
from tpu_trainer.support.errors import InterruptedRun

_log = logging.getLogger(__name__)

_BODIES: dict[str, Callable[[LaunchConfig], dict]] = {
    "tpu": lambda config: request(config, attempt="dry-run"),
    "compute": lambda config: {
        f"POST {Api.compute}/compute/v1/{path}": body
        for path, body in requests(config, attempt="dry-run").values()
    },
    "gke": manifest,
    "vertex": custom_job,
}
_TRAININGS: dict[str, Callable[[LaunchConfig, Api, Watch], NamedTraining | VertexTraining]] = {
    "tpu": lambda config, api, watch: TpuTraining(config, QueuedResource(api, config), watch),
    "compute": lambda config, api, watch: TpuTraining(config, InstanceGroup(api, config, watch.pause), watch),
    "gke": GkeTraining,
    "vertex": VertexTraining,
}


def main(config: LaunchConfig) -> None:
    """Runs the verb.

    Raises:
        UsageError: If the model's type or configuration is not supported.
        CloudError: If Google Cloud refuses a request or training fails.
        InterruptedRun: After a signal, such as Ctrl-C.
    """
    if config.model.init_from is None:
        from tpu_trainer.network.hf_config import check_model  # half a second to import

        check_model(config.model, config.objective)
    if config.cloud.dry_run:
        body = _BODIES[config.cloud.service](config)
        print(json.dumps(body, indent=1))
        return
    launch(config, connect(config.cloud.region))


def launch(config: LaunchConfig, api: Api, *, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Trains `config` through `api`; `sleep` waits between two status checks."""
    lease = Lease.of_launch(api, config, sleep=sleep)
    watch = Watch(api, config, lease, sleep)
    training = _TRAININGS[config.cloud.service](config, api, watch)
    try:
        with watch.signals:
            _follow(config, training, lease, watch)
    except InterruptedBySignal:
        raise InterruptedRun(
            f"{config.name}: interrupted; run the same command to continue from the last checkpoint"
        ) from None
    _log.info(f"launch: {config.name}: finished: {config.output_dir}")


def _follow(
    config: LaunchConfig, training: NamedTraining | VertexTraining, lease: Lease, watch: Watch
) -> None:
    """Trains while holding the lease; at the end, prints how to delete resources that may remain."""
    try:
        lease.acquire()
        training.run()
    except InterruptedBySignal as interruption:
        _log.info(f"launch: {config.name}: {interruption}: deleting its resources")
        training.cancel()
        raise
    except LostLeaseError:
        watch.cleanup_command = None
        raise
    finally:
        if watch.cleanup_command is None:
            lease.release()
        else:
            _log.info(f"launch: {config.name}: {watch.cleanup_hint()}")
