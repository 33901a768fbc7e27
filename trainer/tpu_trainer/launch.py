"""Verb launch: trains on a TPU of Google Cloud, from asking for it to giving it back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tpu_trainer.cloud.api import Api, connect
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.lease import Lease, LostLeaseError
from tpu_trainer.cloud.queued_resource import request
from tpu_trainer.cloud.signals import InterruptedBySignal
from tpu_trainer.cloud.tpu_training import TpuTraining
from tpu_trainer.cloud.vertex import custom_job
from tpu_trainer.cloud.vertex_training import VertexTraining
from tpu_trainer.cloud.watch import Watch, say
from tpu_trainer.errors import InterruptedRun


def main(config: LaunchConfig) -> None:
    """Runs the verb; CloudError if Google Cloud refuses or the training fails, InterruptedRun after Ctrl-C."""
    if config.cloud.dry_run:
        body = custom_job(config) if config.cloud.service == "vertex" else request(config, attempt="dry-run")
        print(json.dumps(body, indent=1))
        return
    launch(config, connect(config.cloud.region))


def launch(config: LaunchConfig, api: Api, *, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Trains as `config` says, through `api`; `sleep` waits between two looks."""
    lease = Lease(api, config, sleep=sleep, say=say)
    watch = Watch(api, config, lease, sleep)
    kind = VertexTraining if config.cloud.service == "vertex" else TpuTraining
    training = kind(config, api, watch)
    try:
        with watch.signals:
            _follow(config, training, lease, watch)
    except InterruptedBySignal:
        raise InterruptedRun(
            f"{config.name}: interrupted; the same command continues the run from its last checkpoint"
        ) from None
    say(f"{config.name}: finished: {config.output_dir}")


def _follow(config: LaunchConfig, training: TpuTraining | VertexTraining, lease: Lease, watch: Watch) -> None:
    """Trains with the right to; says what may be left on Google Cloud, however it ends."""
    try:
        lease.take()
        training.run()
    except InterruptedBySignal as interruption:
        say(f"{config.name}: {interruption}: gives back what it asked for")
        training.give_back_at_once()
        raise
    except LostLeaseError:
        watch.left = None
        raise
    finally:
        if watch.left is None:
            lease.release()
        else:
            say(f"{config.name}: {watch.last_words()}")
