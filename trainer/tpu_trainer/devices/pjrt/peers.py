"""The processes of --strategy pjrt that train together, usually one on each host.

JAX's coordination service, in process 0, introduces them to each other, stores values, and notices which are lost. This
file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NamedTuple, NoReturn

from tokenmill_reader.console.streams import write_to_stderr
from tpu_trainer import __version__
from tpu_trainer.config.mesh import MeshConfig
from tpu_trainer.devices.pjrt.meeting import meet
from tpu_trainer.devices.pjrt.mesh import import_jax
from tpu_trainer.runs.channel import Channel
from tpu_trainer.support.errors import DivergedError, ExitStatus, InterruptedRun, NotSavedError, UsageError

_log = logging.getLogger(__name__)

CONNECT_SECONDS = 300
"""Time to wait for all processes at the start."""
LOST_AFTER_SECONDS = 60
"""A process without a sign of life for this long is lost."""
GRACE_SECONDS = 15
"""Time in which the others may end with the same error as a process that has failed."""
_WATCH_SECONDS = 0.5
_WAIT_SECONDS = 0.05
_ENDED = "ended/"
_A_DAY = 24 * 3600 * 1000  # in ms; the watching thread ends a process that would wait in vain


class Peers:
    """The processes that train together; by default, this one alone.

    All must call `gather`, `check_same` and `channel` in the same order.
    """

    def __init__(self, *, client: Any = None, index: int = 0, count: int = 1) -> None:
        """
        Args:
            client: Of the coordination service; None if the process is alone.
            index: This process's number.
            count: Number of processes.
        """
        self.index = index
        self.count = count
        self._client = client
        self._gathered = self._channels = 0
        self._leaving = self._stopped = self._ending = False
        self._alive = set(range(count))
        self._watcher = threading.Thread(target=self._watch, name="peers", daemon=True)
        if client is not None:
            self._watcher.start()

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run's files; the others only compute."""
        return self.index == 0

    def gather(self, value: str) -> list[str]:
        """Returns the values of all processes, by number. Waits for all."""
        if self._client is None:
            return [value]
        self._gathered += 1
        folder = f"gathered/{self._gathered}/"
        self._client.key_value_set(f"{folder}{self.index:06d}", value)
        self._client.wait_at_barrier(folder, _A_DAY)
        return [text for _, text in sorted(self._client.key_value_dir_get(folder))]

    def channel(self) -> Channel:
        """Returns a channel between the processes. All must call this in the same order."""
        if self._client is None:
            return Channel()
        self._channels += 1
        return _PeerChannel(self, f"channels/{self._channels}/")

    def set(self, key: str, text: str) -> None:
        """Stores a text that all processes can read."""
        self._client.key_value_set(key, text)

    def delete(self, folder: str) -> None:
        """Deletes the texts under a key."""
        self._client.key_value_delete(folder)

    def wait_for(self, folder: str, count: int) -> list[str]:
        """Returns the texts under a key, in the order of their keys, when there are `count`.

        Raises:
            OSError: If this process must end before that, since another is lost or has failed.
        """
        pause = _WAIT_SECONDS
        while True:
            try:
                texts = self._client.key_value_dir_get(folder)
            except RuntimeError as error:  # the service has ended
                raise OSError(f"lost process 0: {error}") from error
            if len(texts) == count:
                return [text for _, text in sorted(texts)]
            if self._ending:
                raise OSError("another process is lost or has failed")
            time.sleep(pause)
            pause = min(1.2 * pause, _WATCH_SECONDS)

    def check_same(self, values: Mapping[str, Any], *, remedy: str) -> None:
        """Checks that all processes have the same values.

        Raises:
            UsageError: In all processes, if they do not. The message names the values that differ.
        """
        texts = self.gather(json.dumps({name: repr(value) for name, value in values.items()}))
        first, *others = map(json.loads, texts)
        for number, other in enumerate(others, 1):
            different = [
                f"{name} is {first.get(name)} in process 0 and {other.get(name)} in process {number}"
                for name in first | other
                if first.get(name) != other.get(name)
            ]
            if different:
                raise UsageError(f"the processes do not match: {'; '.join(different[:5])}; {remedy}")

    def leave(self, error: BaseException | None) -> None:
        """Tells the others that this process ends with `error`, and waits for them if they end in the same way."""
        if self._client is None:
            return
        # Those that have made the same steps end together.
        ends_with_others = error is None or isinstance(error, InterruptedRun | DivergedError | NotSavedError)
        text = "" if ends_with_others else str(error) or type(error).__name__
        self._client.key_value_set(f"{_ENDED}{self.index}", text)
        if ends_with_others:
            self._client.wait_at_barrier("end", _A_DAY)
        self._leaving = True
        # The service must outlive its clients: JAX aborts those that lose it.
        end = time.monotonic() + 2 * GRACE_SECONDS
        while self.is_first and len(self._alive) > 1 and time.monotonic() < end:
            time.sleep(_WATCH_SECONDS / 2)
        # The interpreter cannot end a thread that is in a call of the client.
        self._stopped = True
        self._watcher.join(timeout=2 * GRACE_SECONDS)

    def _watch(self) -> None:
        """Ends this process if another is lost or has failed: a collective operation would wait for it forever."""
        failed_at = None
        while not self._stopped:
            try:
                self._look()
                ended = self._client.key_value_dir_get(_ENDED)
            except RuntimeError as error:  # the service has ended
                if self._leaving:
                    return
                self._end(f"lost process 0: {error}")
            ended = {int(key.removeprefix(_ENDED)): text for key, text in ended}
            lost_processes = set(range(self.count)) - self._alive - ended.keys()
            failed = [f"process {number} has failed: {text}" for number, text in ended.items() if text]
            if lost_processes and not self._leaving:
                self._end(f"lost process {', '.join(map(str, sorted(lost_processes)))}")
            # This process may be about to fail for the same reason.
            failed_at = failed_at or (time.monotonic() if failed else None)
            if failed and not self._leaving and time.monotonic() - failed_at >= GRACE_SECONDS:
                self._end(failed[0])
            time.sleep(_WATCH_SECONDS)

    def _look(self) -> None:
        self._alive = set(self._client.get_live_nodes(list(range(self.count))))

    def _end(self, reason: str) -> NoReturn:
        self._ending = True
        for thread in threading.enumerate():
            if thread.name == "checkpoint":  # of BackgroundSaver
                thread.join()
        text = f"tpu_trainer: error: {reason}; the same command on all hosts continues from the last checkpoint\n"
        write_to_stderr(text)
        end = time.monotonic() + GRACE_SECONDS
        while self.is_first and len(self._alive) > 1 and time.monotonic() < end:
            self._look()
            time.sleep(_WATCH_SECONDS)
        if not self.is_first:
            self._client.shutdown()
        # In a regular exit of the interpreter, the main thread would wait for the lost process.
        os._exit(ExitStatus.INTERRUPTED)


class _PeerChannel(Channel):
    """A channel by texts that the coordination service stores until all have read them."""

    def __init__(self, peers: Peers, folder: str) -> None:
        self.index, self.count = peers.index, peers.count
        self._peers = peers
        self._folder = folder
        self._messages = 0
        self._read = 0

    def gather(self, text: str) -> list[str]:
        folder = self._next()
        self._peers.set(f"{folder}{self.index:06d}", text)
        if self.index > 0:
            return []
        texts = self._peers.wait_for(folder, self.count)
        # All processes have come here, and so have read what was sent before.
        for number in range(self._read + 1, self._messages):
            self._peers.delete(f"{self._folder}{number}/")
        self._read = self._messages - 1
        return texts

    def from_first(self, text: str) -> str:
        folder = self._next()
        if self.index == 0:
            self._peers.set(f"{folder}0", text)
            return text
        return self._peers.wait_for(folder, 1)[0]

    def _next(self) -> str:
        self._messages += 1
        return f"{self._folder}{self._messages}/"


@contextmanager
def joined(config: MeshConfig, *, run: Mapping[str, str] | None = None) -> Iterator[Peers]:
    """Joins the other processes, if there are any, before JAX uses a device. The context ends after all are done.

    Args:
        config: Names the processes.
        run: Name → value of options that identify the run: processes with others are rejected.

    Raises:
        UsageError: If the options are inconsistent, or the processes do not match.
        NotMetError: If a process did not come in time.
    """
    jax = import_jax()
    group = _process_group(config)
    if group is None:
        yield Peers()
        return
    from jax._src import distributed

    _log.info(f"pjrt: process {group.index} of {group.count}, which meet at {group.address}")
    meet(
        address=group.address,
        count=group.count,
        index=group.index,
        run=dict(run or {}) | _releases() | _compiler_flags(),
        seconds=CONNECT_SECONDS,
    )
    # Its handler of SIGTERM would replace ours.
    jax.config.update("jax_enable_preemption_service", False)
    # Without it, JAX aborts a process if another one is lost. Peers ends it with a message.
    jax.config.update("jax_enable_recoverability", True)
    timer = threading.Timer(LOST_AFTER_SECONDS, _end_unconnected)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            group.address,
            group.count,
            group.index,
            group.local_devices,
            cluster_detection_method="deactivate",
            initialization_timeout=LOST_AFTER_SECONDS + GRACE_SECONDS,
            heartbeat_timeout_seconds=LOST_AFTER_SECONDS,
        )
    except RuntimeError as error:
        raise UsageError(
            f"--mesh.coordinator_address is {group.address!r}: process {group.index} cannot use it ({error})"
        ) from error
    finally:
        timer.cancel()
    peers = Peers(client=distributed.global_state.client, index=group.index, count=group.count)
    try:
        yield peers
    except BaseException as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            # The watching thread needs this long to find that another process is lost.
            time.sleep(LOST_AFTER_SECONDS + GRACE_SECONDS)
        peers.leave(error)
        raise
    else:
        peers.leave(None)
    finally:
        jax.distributed.shutdown()


def _end_unconnected() -> NoReturn:
    """Ends this process before JAX aborts it, since another one does not connect."""
    write_to_stderr(
        "tpu_trainer: error: the processes have met, but one was lost before JAX connected them; the same command on "
        "all hosts tries again\n"
    )
    os._exit(ExitStatus.INTERRUPTED)


def _releases() -> dict[str, str]:
    """Returns package → release, of those that determine the program and how processes talk to each other."""
    packages = {package: metadata.version(package) for package in ("jax", "jaxlib", "transformers")}
    return {"tokenmill-trainer": __version__} | packages


def _compiler_flags() -> dict[str, str]:
    """Returns variable → flags of XLA's compilers, which determine the compiled program, without those of its dumps."""
    flags = {name: os.environ.get(name, "").split() for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    return {
        name: " ".join(sorted(flag for flag in each if not flag.startswith("--xla_dump")))
        for name, each in flags.items()
    }


class _ProcessGroup(NamedTuple):
    """Several processes, and this one among them."""

    address: str
    """HOST:PORT of process 0."""
    count: int
    index: int
    """Number of this process."""
    local_devices: Sequence[int] | None
    """Numbers of the GPUs to use; None: all."""


def _process_group(config: MeshConfig) -> _ProcessGroup | None:
    """Returns the processes of the options, JAX's variables or the cluster; None if this one is alone."""
    address = config.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS") or None
    count = _number(config.num_processes, "JAX_NUM_PROCESSES")
    index = _number(config.process_id, "JAX_PROCESS_ID")
    devices = None
    if count == 1:
        return None
    if None in (address, count, index):
        from jax._src.clusters import ClusterEnv

        try:
            address, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
                address, count, index, None, None, CONNECT_SECONDS
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise UsageError(
                f"JAX cannot find the other processes ({error}); set --mesh.coordinator_address, "
                "--mesh.num_processes and --mesh.process_id, or --mesh.num_processes 1 to train alone"
            ) from error
    options = {"coordinator_address": address, "num_processes": count, "process_id": index}
    missing = [f"--mesh.{name}" for name, value in options.items() if value is None]
    if len(missing) == len(options) or count == 1:
        return None
    if missing:
        raise UsageError(
            f"several processes need {' and '.join(missing)}, too; all three, or none to train alone"
        )
    port = re.fullmatch(r".+:(\d{1,5})", address)
    if not port or not 0 < int(port[1]) < 1 << 16:
        raise UsageError(
            f"--mesh.coordinator_address is {address!r}: must be HOST:PORT, with a port from 1 to 65535"
        )
    if not 0 <= index < count:
        raise UsageError(f"--mesh.process_id is {index}: must be less than --mesh.num_processes, {count}")
    return _ProcessGroup(address, count, index, devices)


def _number(option: int | None, variable: str) -> int | None:
    text = os.environ.get(variable)
    if option is not None or not text:
        return option
    if not text.isdecimal():
        raise UsageError(f"{variable} is {text!r}: not a number")
    return int(text)
