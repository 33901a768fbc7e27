"""The meeting of a run's processes before they use JAX's service, which aborts those that come if one does not.

Process 0 listens on the coordinator's port, which JAX's service uses afterwards. All processes, including process 0,
introduce themselves there again and again. Process 0 answers who is missing, and `go` when all have introduced
themselves after nobody was. A connection has one introduction and one answer, each a JSON object in a line. Anyone may
connect.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from tpu_trainer.support.errors import NotMetError, UsageError

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5
"""Processes introduce themselves this often."""
LOST_SECONDS = 5.0
"""A process that has not introduced itself for so long is missing."""
_SOCKET_SECONDS = 10.0
_MAX_LINE_BYTES = 1 << 20
_MAX_NAMED_PROCESSES = 20
Message = dict[str, Any]


def meet(*, address: str, count: int, index: int, run: Mapping[str, str], seconds: float) -> None:
    """Returns when all processes are there.

    Args:
        address: HOST:PORT of process 0.
        count: Number of processes.
        index: Number of this one.
        run: Name → value of what must be the same in all processes.
        seconds: Time to wait for the others.

    Raises:
        UsageError: If the processes do not match, or process 0 cannot listen on the port.
        NotMetError: If one is missing after `seconds`.
    """
    run = {"--mesh.num_processes": str(count), **run}
    introduction = {"process": index, "nonce": secrets.token_hex(16), "run": run}
    if index != 0:
        _join(address, introduction, seconds)
        return
    host = _Host(address, count, run)
    threading.Thread(target=host.serve_forever, args=[INTERVAL_SECONDS / 10], daemon=True).start()
    try:
        _join(address, introduction, seconds)
        end = time.monotonic() + LOST_SECONDS
        while host.uninformed and time.monotonic() < end:
            time.sleep(INTERVAL_SECONDS / 10)
    finally:
        host.shutdown()
        host.server_close()


def _join(address: str, introduction: Message, seconds: float) -> None:
    """Introduces this process to process 0 until the answer is `go`; raises UsageError or NotMetError."""
    place = f"--mesh.coordinator_address is {address!r}: process {introduction['process']}"
    start, logged = time.monotonic(), set()
    while "go" not in (answer := _ask(address, introduction)):
        waited = time.monotonic() - start
        # Another process with its number may be this one before its host was lost.
        if "error" in answer or ("taken" in answer and waited >= 2 * LOST_SECONDS):
            raise UsageError(
                f"{place} is rejected by process 0: {answer.get('error') or answer.get('taken')}"
            )
        problem = answer.get("missing") or answer.get("taken")
        if waited >= seconds:
            raise NotMetError(
                f"{place} did not meet the others within {seconds:g} s: {problem}; start process 0 at this address, "
                "let hosts reach its port, and start all --mesh.num_processes processes at about the same time"
            )
        if problem not in logged:
            _log.info(f"pjrt: waits up to {seconds - waited:.0f} s: {problem}")
            logged.add(problem)
        time.sleep(INTERVAL_SECONDS)


def _ask(address: str, introduction: Message) -> Message:
    """Sends an introduction to process 0. Returns its answer, or that it is missing."""
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SOCKET_SECONDS) as connection,
            connection.makefile("rb") as stream,
        ):
            _send(connection, introduction)
            answer = _receive(stream)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot have
        return {"missing": f"process 0 does not answer at {address} ({error})"}
    if any(isinstance(answer.get(kind), str) for kind in ("go", "missing", "taken", "error")):
        return answer
    return {
        "missing": f"another program is at {address}, or process 0 has ended or started without this process"
    }


@dataclass(frozen=True)
class _Visit:
    """The last introduction of a process."""

    nonce: str
    """A random value of the process, which another process with its number does not have."""
    address: str
    time: float

    @property
    def is_recent(self) -> bool:
        return time.monotonic() - self.time < LOST_SECONDS


class _Host(socketserver.ThreadingTCPServer):
    """Process 0's part: answers introductions."""

    daemon_threads = True

    def __init__(self, address: str, count: int, run: Mapping[str, str]) -> None:
        """Listens on all addresses of this machine, as JAX's service will; raises UsageError if it cannot."""
        port = int(address.rpartition(":")[2])
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        super().__init__(("", port), _Conversation, bind_and_activate=False)
        self.socket.close()
        try:
            self.socket = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=128)
        except OSError as error:
            raise UsageError(
                f"--mesh.coordinator_address is {address!r}: process 0 cannot listen on port {port} ({error}); if "
                "another run or another process 0 uses it, wait for its end, or set another port or --mesh.process_id"
            ) from None
        self.uninformed = set(range(count))
        """The processes that have not got `go`."""
        self._count = count
        self._run = run
        self._visits: dict[int, _Visit] = {}
        self._full_since: float | None = None
        self._complete = False
        self._rejected = ""
        self._lock = threading.Lock()

    def answer(self, introduction: Message, address: str) -> Message:
        """Returns the answer to an introduction that came from an address."""
        with self._lock:
            if (problem := self._mismatch(introduction)) is not None:
                self._rejected = f"; rejected a process from {address}: {problem}"
                return {"error": problem}
            index, visit = introduction["process"], _Visit(introduction["nonce"], address, time.monotonic())
            earlier = self._visits.get(index, visit)
            if earlier.nonce != visit.nonce and (self._complete or earlier.is_recent):
                remedy = "give each process another --mesh.process_id"
                return {"taken": f"process {index} is there already, from {earlier.address}; {remedy}"}
            self._visits[index] = visit
            present = {number for number, visit in self._visits.items() if visit.is_recent}
            missing = sorted(set(range(self._count)) - present)
            self._full_since = None if missing else self._full_since or visit.time
            if not missing and all(each.time >= self._full_since for each in self._visits.values()):
                self._complete = True
            if self._complete:
                self.uninformed.discard(index)
                return {"go": ""}
            if not missing:
                return {"missing": "all processes have come and confirm it"}
            names = ", ".join(map(str, missing[:_MAX_NAMED_PROCESSES]))
            ellipsis = ", …" if len(missing) > _MAX_NAMED_PROCESSES else ""
            return {"missing": f"process(es) {names}{ellipsis} are missing{self._rejected}"}

    def _mismatch(self, introduction: Message) -> str | None:
        """Returns why the sender of an introduction cannot take part."""
        index, nonce, run = (introduction.get(name) for name in ("process", "nonce", "run"))
        if type(index) is not int or index < 0 or not isinstance(nonce, str) or not isinstance(run, dict):
            return "this is a meeting of processes of tokenmill-trainer; start the same release everywhere"
        for name, value in self._run.items():
            if run.get(name) != value:
                return (
                    f"{name} is {value!r} in process 0 and {run.get(name)!r:.200} in process {index!r:.20}; start all "
                    "with the same options, releases and compiler flags, and give each run a port of its own"
                )
        if index >= self._count:
            return (
                f"--mesh.process_id is {index!r:.20}: must be less than --mesh.num_processes, {self._count}"
            )
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug(f"pjrt: lost a connection from {client_address[0]}", exc_info=True)


class _Conversation(socketserver.StreamRequestHandler):
    """An introduction and its answer."""

    timeout = _SOCKET_SECONDS
    server: _Host

    def handle(self) -> None:
        _send(self.connection, self.server.answer(_receive(self.rfile), self.client_address[0]))


def _send(connection: socket.socket, message: Message) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(stream: BinaryIO) -> Message:
    """Returns the next message; an empty one if it is something else, or the connection has ended."""
    try:
        message = json.loads(stream.readline(_MAX_LINE_BYTES))
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
