"""Two hosts of a TPU slice on one machine: network namespaces, each with a loopback of its own, and CPU devices.

`host-server` runs in each. The process that trains runs in the first; it connects as to a TPU, but computes with
`CpuSlice`, since TPUStrategy needs TPUs. By itself the module is that process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PORT = 8470
_ADDRESSES = ("10.87.0.1", "10.87.0.2")


@dataclass
class Hosts:
    """The namespaces and the servers in them."""

    namespaces: tuple[str, ...]
    servers: dict[int, subprocess.Popen] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        """ADDRESS:PORT of each host."""
        return [f"{address}:{_PORT}" for address in _ADDRESSES]

    def serve(self, number: int) -> None:
        """Starts the host's `host-server` and waits until it serves."""
        verb = ["host-server", "--addresses", ",".join(self.addresses), "--index", str(number)]
        process = subprocess.Popen(
            self._command(number, ["-m", "tpu_trainer", *verb]), stdout=subprocess.PIPE, text=True, cwd=_ROOT
        )
        self.servers[number] = process
        assert f"number {number} of {len(_ADDRESSES)}" in process.stdout.readline()

    def kill(self, number: int) -> None:
        """Ends the host's server at once."""
        process = self.servers.pop(number)
        process.kill()
        process.wait()
        process.stdout.close()

    def fit(self, arguments: Sequence[Any], fault: dict[str, Any] | None = None) -> tuple[int, str]:
        """(exit status, what it printed) of `fit` on the first host; `fault` is as for faults.py."""
        name = ",".join(f"grpc://{address}" for address in self.addresses)
        options = [*map(str, arguments), "--strategy", "tpu", "--tpu.name", name]
        words = ["-m", "tests.tpu_trainer.slices", json.dumps(fault or {}), *options]
        result = subprocess.run(
            self._command(0, words), capture_output=True, text=True, check=False, cwd=_ROOT, timeout=400
        )
        return result.returncode, result.stdout + result.stderr

    def _command(self, number: int, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespaces[number], sys.executable, *words]


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """The hosts, without servers; skips the test if this machine does not permit namespaces."""
    if not shutil.which("ip"):
        pytest.skip("needs iproute2's `ip`")
    names = tuple(f"slice-{os.getpid()}-{number}" for number in range(len(_ADDRESSES)))
    hosts = Hosts(names)
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
        for number in list(hosts.servers):
            hosts.kill(number)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def cpu_slice(resolver: Any) -> Any:
    """A strategy with a replica on each host's CPU, whose input pipelines are placed as TPUStrategy places them."""
    import tensorflow as tf
    from tensorflow.python.distribute import mirrored_strategy

    devices = [f"/job:worker/replica:0/task:{n}/device:CPU:0" for n in range(len(_ADDRESSES))]

    class Extended(mirrored_strategy.MirroredExtended):
        def __init__(self, strategy: tf.distribute.Strategy) -> None:
            # It refuses devices of several hosts for its collectives, which this one does not use.
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
    """SIGKILL for a host's server after a step."""
    import signal

    from tests.tpu_trainer.faults import at_step

    step, process = step_and_process
    at_step(step, lambda: os.kill(process, signal.SIGKILL))


def main() -> int:
    from tests.tpu_trainer import faults
    from tpu_trainer.__main__ import main as run
    from tpu_trainer.training import strategy

    strategy._strategy_of = cpu_slice
    for name, argument in json.loads(sys.argv[1]).items():
        (globals().get(name) or getattr(faults, name))(argument)
    sys.argv = ["tpu_trainer", *sys.argv[2:]]
    return run()


if __name__ == "__main__":
    sys.exit(main())
