"""Verb launch: requests TPUs of Google Cloud, trains on them and deletes them."""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.signals import InterruptedBySignal
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER
from tpu_trainer.support import files
from tpu_trainer.support.errors import InterruptedRun, UsageError

_log = logging.getLogger(__name__)

_SERVICES = {
    "tpu": ("tpu_vms", "TpuVms"),
    "compute": ("compute_engine", "ComputeEngine"),
    "gke": ("gke", "Gke"),
    "vertex": ("vertex", "VertexAi"),
}
"""Each service's module in `cloud`, and the class in it. Google's libraries take a second to import."""


def main(config: LaunchConfig) -> None:
    """Runs the verb.

    Raises:
        UsageError: If the model's type or configuration is not supported, or a package is missing.
        CloudError: If Google Cloud refuses a request or training fails.
        InterruptedRun: After a signal, such as Ctrl-C.
    """
    if config.model.init_from is None:
        from tpu_trainer.network.configuration import check_model  # half a second to import

        check_model(config.model, config.objective)
    try:
        service = _service(config)
    except ImportError as error:
        raise UsageError(
            f"--cloud.service {config.cloud.service} needs Google's packages ({error}); install them: pip install "
            "'tokenmill-trainer[launch]'"
        ) from error
    if config.cloud.dry_run:
        print(json.dumps(service.preview(config), indent=1))
        return
    from tpu_trainer.cloud.google import connect

    launch(config, connect())


def _service(config: LaunchConfig) -> Any:
    module, name = _SERVICES[config.cloud.service]
    return getattr(importlib.import_module(f"tpu_trainer.cloud.{module}"), name)


def launch(config: LaunchConfig, google: Any, *, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Trains `config` through `google`, a `cloud.google.Google`; `sleep` waits between two status checks."""
    from tpu_trainer.cloud.follow import RunFollower
    from tpu_trainer.cloud.lease import Lease
    from tpu_trainer.cloud.objects import Objects

    objects = Objects(google.credentials, google.storage)
    lease = Lease(
        objects,
        files.join(config.output_dir, LAUNCH_FOLDER, "launcher.json"),
        verb="launch",
        poll_seconds=config.cloud.poll_seconds,
        target=f"{config.cloud.service} {config.place}/{config.name}",
        sleep=sleep,
    )
    service = _service(config)(google, objects, config)
    try:
        RunFollower(config, service, objects, lease, sleep=sleep).follow()
    except InterruptedBySignal:
        raise InterruptedRun(
            f"{config.name}: interrupted; run the same command to continue from the last checkpoint"
        ) from None
    _log.info(f"launch: {config.name}: finished: {config.output_dir}")
