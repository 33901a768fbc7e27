"""Processes that join, and then differ, fail or are lost, for test_peers.py.

Prints a JSON object: the exit status and the output of both processes of each case. Imports JAX once and forks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax  # before forks

from tests.tpu_trainer.ports import free_ports
from tpu_trainer.config import MeshConfig
from tpu_trainer.devices import pjrt
from tpu_trainer.devices.pjrt.meeting import meet
from tpu_trainer.devices.pjrt.peers import Peers, joined
from tpu_trainer.support.errors import NotMetError, TrainerError, UsageError


def same(peers: Peers) -> None:
    assert peers.gather(f"value {peers.index}") == ["value 0", "value 1"]
    peers.check_same({"--seed": 1}, remedy="")
    if peers.index:
        others_at_the_port(peers)
        time.sleep(1)  # the first waits for it


def others_at_the_port(peers: Peers) -> None:
    """A second run, and a process that comes late: JAX's service is on the port."""
    place = {"address": f"127.0.0.1:{os.environ['PORT']}", "count": 3, "run": {}, "seconds": 1}
    for index, error, text in (
        (0, UsageError, "cannot listen on port"),
        (2, NotMetError, "process 2 did not meet the others within 1 s"),
    ):
        try:
            meet(index=index, **place)
        except error as raised:
            assert text in str(raised), raised
            print(raised)
        else:
            raise AssertionError("it met")


def different(peers: Peers) -> None:
    peers.check_same({"--seed": peers.index, "--x": "y"}, remedy="use one seed")


def fails(peers: Peers) -> None:
    if peers.index:
        raise UsageError("mine")
    time.sleep(600)  # as a collective operation does


def lost(peers: Peers) -> None:
    if peers.index:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def first_lost(peers: Peers) -> None:
    peers.gather("joined")
    if not peers.index:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def alone(peers: Peers) -> None:
    raise AssertionError("it joined")


def flags(peers: Peers) -> None:
    raise AssertionError("it joined")


def killed_after_meeting(peers: Peers) -> None:
    raise AssertionError("it joined")


def first_killed_after_meeting(peers: Peers) -> None:
    raise AssertionError("it joined")


KILLED = {killed_after_meeting: 1, first_killed_after_meeting: 0}


def run(case: Callable[[Peers], None], *, port: int, index: int, output: str) -> int:
    """The child's part; returns the exit status."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    if case in (alone, flags):
        pjrt.peers.CONNECT_SECONDS = 3
    if case is alone and index == 1:
        return 0
    if case is flags:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to=/{index} --xla_a=1 --xla_b={index}"
    if KILLED.get(case) == index:
        jax.distributed.initialize = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
    os.environ["PORT"] = str(port)
    config = MeshConfig(coordinator_address=f"127.0.0.1:{port}", num_processes=2, process_id=index)
    try:
        with joined(config) as peers:
            case(peers)
    except TrainerError as error:
        print(error, file=sys.stderr, flush=True)
        return error.status
    return 0


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    pjrt.peers.LOST_AFTER_SECONDS, pjrt.peers.GRACE_SECONDS = 10, 3
    cases = [same, different, fails, lost, first_lost, alone, flags, *KILLED]
    ports = free_ports(len(cases))
    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for number, case in enumerate(cases):
            for index in range(2):
                output = f"{folder}/{case.__name__}-{index}"
                process = os.fork()
                if not process:
                    status = 1
                    try:
                        status = run(case, port=ports[number], index=index, output=output)
                    finally:
                        os._exit(status)  # without cleaning up what is the parent's
                running[process] = (case.__name__, index, output)
        results: dict[str, list] = {case.__name__: [None, None] for case in cases}
        for _ in running:
            process, status = os.wait()
            name, index, output = running[process]
            results[name][index] = (os.waitstatus_to_exitcode(status), Path(output).read_text())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
