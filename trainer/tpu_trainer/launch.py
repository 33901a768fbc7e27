"""Verb launch: trains on a TPU of Google Cloud, from asking for it to giving it back."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, connect
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.queued_resource import (
    NODE_TAKEN_AWAY,
    TAKEN_AWAY,
    WAITING,
    Ending,
    QueuedResource,
    request,
)
from tpu_trainer.cloud.vertex import RUNNING, custom_job
from tpu_trainer.errors import CloudError, ExitStatus, InterruptedRun

_STOPPED = (ExitStatus.INTERRUPTED, 128 + signal.SIGTERM)
"""Exit statuses of a container that was told to stop, as is done before its machine is taken away."""


def main(config: LaunchConfig) -> None:
    """Runs the verb; CloudError where Google Cloud refuses or the training fails, InterruptedRun after Ctrl-C."""
    if config.cloud.dry_run:
        body = custom_job(config) if config.cloud.service == "vertex" else request(config, attempt="dry-run")
        print(json.dumps(body, indent=1))
        return
    launch(config, connect(config.cloud.region))


def launch(config: LaunchConfig, api: Api, *, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Trains as `config` says, through `api`; `sleep` waits between two looks."""
    progress = _Progress(api, config)
    with _signals_raise():
        if config.cloud.service == "vertex":
            _train_on_vertex(config, api, progress, sleep)
        else:
            _train_on_queued_resource(config, QueuedResource(api, config), progress, sleep)
    _say(f"{config.name}: finished: {config.output_dir}")


def _say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


class _Progress:
    """Says how things stand, where they have changed."""

    def __init__(self, api: Api, config: LaunchConfig) -> None:
        self._api = api
        self._log = files.join(config.output_dir, "metrics.jsonl")
        self._said: dict[str, str] = {}

    def state(self, text: str) -> None:
        """How what was asked for stands."""
        self._say_once("state", text)

    def _say_once(self, what: str, text: str) -> None:
        if self._said.get(what) != text:
            _say(text)
            self._said[what] = text

    def training(self) -> None:
        """The last whole line of the run's log."""
        text = self._api.read_object(self._log, last_bytes=4096) or ""
        lines = text.split("\n")[:-1]
        if lines and lines[-1].startswith("{"):
            record = json.loads(lines[-1])
            figures = record.get("eval", record)
            kind = "validation loss" if "eval" in record else "loss"
            self._say_once("training", f"step {record['step']}: {kind} {figures['loss']:.3f}")


def _train_on_queued_resource(
    config: LaunchConfig, resource: QueuedResource, progress: _Progress, sleep: Callable[[float], Any]
) -> None:
    preemptions = 0
    try:
        while True:
            found = resource.get()
            state = "" if found is None else found.get("state", {}).get("state", "")
            if found is None:
                _say(f"{config.name}: asks for a {config.cloud.accelerator_type} in {config.cloud.zone}")
                resource.create()
            elif state == "FAILED":
                why = found["state"].get("failedData", {}).get("error", {}).get("message", "no reason given")
                _remove(resource, sleep, config.cloud.poll_seconds)
                raise CloudError(f"{config.name}: the request for a TPU failed: {why}")
            elif state in (*TAKEN_AWAY, "ACTIVE"):
                taken = state in TAKEN_AWAY or resource.node_state() in NODE_TAKEN_AWAY
                ending = resource.ending(found)
                # A container that does not stop in time is killed, as is one that takes too much memory.
                stopped = (*_STOPPED, 128 + signal.SIGKILL) if taken else _STOPPED
                if ending is not None and ending.status not in stopped:
                    _remove(resource, sleep, config.cloud.poll_seconds)
                    _check(config, ending)
                    return
                if taken or ending is not None:
                    preemptions += 1
                    if preemptions > config.cloud.max_preemptions:
                        _remove(resource, sleep, config.cloud.poll_seconds)
                        raise CloudError(
                            f"{config.name}: the TPU was taken away {preemptions} times (--cloud.max_preemptions); the "
                            "same command continues the run"
                        )
                    _say(f"{config.name}: the TPU was taken away; the run continues on a new one")
                    _remove(resource, sleep, config.cloud.poll_seconds)
                    continue
                progress.state(f"{config.name}: the TPU is there")
                progress.training()
            elif state in WAITING or state == "DELETING":
                progress.state(f"{config.name}: {state}")
            else:
                raise CloudError(
                    f"{config.name}: the queued resource is in a state unknown to this program: {state!r}"
                )
            sleep(config.cloud.poll_seconds)
    except _Interrupted as signal_name:
        _say(f"{signal_name}: deletes the queued resource {config.name}")
        resource.delete()
        raise InterruptedRun(
            f"{config.name}: interrupted; the TPU is given back, and the same command continues the run from its last "
            "checkpoint"
        ) from None


def _remove(resource: QueuedResource, sleep: Callable[[float], Any], seconds: float) -> None:
    """Deletes the queued resource, and waits until it is gone."""
    resource.delete()
    while resource.get() is not None:
        sleep(seconds)


def _check(config: LaunchConfig, ending: Ending) -> None:
    if ending.status != ExitStatus.DONE:
        raise CloudError(
            f"{config.name}: `fit` ended with status {ending.status} (docs/training.md says what that means). The last "
            f"of what it printed:\n{ending.log}"
        )


def _train_on_vertex(
    config: LaunchConfig, api: Api, progress: _Progress, sleep: Callable[[float], Any]
) -> None:
    place = f"{api.vertex}/v1/projects/{config.cloud.project}/locations/{config.cloud.region}/customJobs"
    job = api.call("POST", place, custom_job(config))
    url = f"{api.vertex}/v1/{job['name']}"
    _say(f"{config.name}: {job['name']}")
    try:
        while (state := job.get("state", "JOB_STATE_PENDING")) in RUNNING:
            progress.state(f"{config.name}: {state}")
            progress.training()
            sleep(config.cloud.poll_seconds)
            job = api.call("GET", url)
    except _Interrupted as signal_name:
        _say(f"{signal_name}: cancels {job['name']}")
        api.call("POST", f"{url}:cancel", {})
        raise InterruptedRun(
            f"{config.name}: interrupted; the job is cancelled, and the same command continues the run from its last "
            "checkpoint"
        ) from None
    if state != "JOB_STATE_SUCCEEDED":
        raise CloudError(f"{job['name']}: {state}: {job.get('error', {}).get('message', 'no reason given')}")


class _Interrupted(Exception):
    """A signal, by name."""


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and Ctrl-C as exceptions: what was asked for can be given back."""

    def interrupted(number: int, frame: object) -> NoReturn:
        raise _Interrupted(signal.Signals(number).name)

    old = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
