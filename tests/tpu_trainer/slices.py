"""Two hosts of a TPU slice on one machine: network namespaces, each with its own loopback, and CPU devices.

Each runs `host-server`. The process that trains runs on the first host; it connects as to a TPU but uses `CpuSlice`,
since TPUStrategy needs TPUs. Run as a process, this module imports TensorFlow once, forks all these processes before
TensorFlow computes anything, and moves each into its host's namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PORT = 8470
_ADDRESSES = ("10.87.0.1", "10.87.0.2")
_CLONE_NEWNET = 0x40000000


@dataclass
class Hosts:
    """The hosts' namespaces and servers."""

    namespaces: tuple[str, ...]
    """Names, in the order of the hosts' numbers."""
    folder: Path
    """For the processes' output."""
    servers: dict[int, int] = field(default_factory=dict)
    """Host → process id of its server."""
    _starter: subprocess.Popen | None = None

    @property
    def addresses(self) -> list[str]:
        """ADDRESS:PORT of each host."""
        return [f"{address}:{_PORT}" for address in _ADDRESSES]

    def serve(self, number: int) -> None:
        """Starts the host's `host-server` and waits until it serves."""
        verb = ["host-server", "--addresses", ",".join(self.addresses), "--index", str(number)]
        output = self.folder / f"server-{number}.txt"
        output.write_text("")
        self.servers[number] = self._ask("start", number, {}, verb, output)
        end = time.monotonic() + 120
        while f"number {number} of {len(_ADDRESSES)}" not in output.read_text():
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        """Kills the host's server."""
        self._ask("kill", self.servers.pop(number))

    def fit(self, arguments: Sequence[Any], fault: dict[str, Any] | None = None) -> tuple[int, str]:
        """Runs `fit` on the first host with a fault of faults.py; returns exit status and output."""
        name = ",".join(f"grpc://{address}" for address in self.addresses)
        options = [*map(str, arguments), "--strategy", "tpu", "--tpu.name", name]
        output = self.folder / "fit.txt"
        process = self._ask("start", 0, fault or {}, options, output)
        return self._ask("wait", process), output.read_text()

    def close(self) -> None:
        """Ends the servers."""
        for number in list(self.servers):
            self.kill(number)
        if self._starter is not None:
            self._starter.communicate(timeout=60)

    def _ask(self, method: str, *arguments: Any) -> int:
        """Calls a method of Starter in its process."""
        if self._starter is None:
            self._starter = subprocess.Popen(
                [sys.executable, "-m", "tests.tpu_trainer.slices", *self.namespaces],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=_ROOT,
            )
        self._starter.stdin.write(json.dumps([method, *arguments], default=str) + "\n")
        self._starter.stdin.flush()
        return json.loads(self._starter.stdout.readline())


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Creates the hosts, without servers. Skips the test if this machine does not permit namespaces."""
    if not shutil.which("ip"):
        pytest.skip("needs iproute2's `ip`")
    names = tuple(f"slice-{os.getpid()}-{number}" for number in range(len(_ADDRESSES)))
    hosts = Hosts(names, folder)
    try:
        for name in names:
            result = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if result.returncode:
                pytest.skip(f"needs network namespaces, which need root: {result.stderr.strip()}")
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        ends = ("eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        subprocess.run(["ip", "link", "add", *ends], check=True)
        for name, address in zip(names, _ADDRESSES, strict=True):
            subprocess.run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "eth0", "up"], check=True)
        yield hosts
    finally:
        hosts.close()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def cpu_slice(resolver: Any) -> Any:
    """Returns a strategy with a replica on each host's CPU and the input pipelines of TPUStrategy."""
    import tensorflow as tf
    from tensorflow.python.distribute import mirrored_strategy

    devices = [f"/job:worker/replica:0/task:{n}/device:CPU:0" for n in range(len(_ADDRESSES))]

    class Extended(mirrored_strategy.MirroredExtended):
        def __init__(self, strategy: tf.distribute.Strategy) -> None:
            # MirroredExtended rejects devices of several hosts because of its collectives, which are not used here.
            refused = mirrored_strategy._is_device_list_single_worker
            mirrored_strategy._is_device_list_single_worker = lambda _: True
            reduction = tf.distribute.ReductionToOneDevice()
            super().__init__(strategy, devices=devices, cross_device_ops=reduction)
            mirrored_strategy._is_device_list_single_worker = refused
            self._input_workers_devices = [(device, (device,)) for device in devices]
            self._cluster_resolver = resolver

    class CpuSlice(tf.distribute.Strategy):
        _collective_key_base = 0

        def __init__(self) -> None:
            super().__init__(Extended(self))

    return CpuSlice()


def lose_host_at(step_and_process: tuple[int, int]) -> None:
    """Kills a host's server after a step."""
    from tests.tpu_trainer.faults import at_step

    step, process = step_and_process
    at_step(step, lambda: os.kill(process, signal.SIGKILL))


class Starter:
    """Forks this process to run verbs on the hosts; kills and awaits them."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        import tpu_trainer.training.build
        import tpu_trainer.verbs.fit
        import tpu_trainer.verbs.host_server  # noqa: F401 (imported once, before the forks)
        from tpu_trainer.__main__ import main

        self._run = main
        self._namespaces = namespaces

    def start(self, number: int, fault: dict[str, Any], arguments: list[str], output: str) -> int:
        """Starts a verb on a host and returns the process id."""
        child = os.fork()
        if child:
            return child
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        with Path("/run/netns", self._namespaces[number]).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), namespace.name)
        _arrange(fault)
        sys.argv = ["tpu_trainer", *arguments]
        sys.exit(self._run())

    def kill(self, process: int) -> int:
        os.kill(process, signal.SIGKILL)
        return self.wait(process)

    def wait(self, process: int) -> int:
        """Returns the exit status (negative: a signal). Kills a process that takes too long."""
        end = time.monotonic() + 400
        while True:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.05)


def _arrange(fault: dict[str, Any]) -> None:
    """Makes this process use `CpuSlice`, and injects the fault."""
    from tests.tpu_trainer import faults
    from tpu_trainer.devices import strategy

    strategy._strategy_of = cpu_slice
    for name, argument in fault.items():
        (globals().get(name) or getattr(faults, name))(argument)


def main() -> None:
    """Reads a method of Starter and its arguments from each line of standard input, and prints the result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    starter = Starter(sys.argv[1:])
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(starter, method)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
