"""The processes of a run meet over TCP before JAX's coordination service starts: its failures end in aborts.

Process 0 listens on the coordinator's port, which JAX's service uses afterwards; the others connect and introduce
themselves. Then process 0 repeatedly sends who is missing, and each answers. When all have answered that none is, it
sends `go`. Messages are JSON objects, a line each, of bounded size: anyone may connect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_trainer.support.errors import NotMetError, UsageError

_log = logging.getLogger(__name__)

_LONGEST = 16 << 10  # bytes of a message
_SHOWN = 200  # characters of a value of another process
_MOST_PROCESSES = 1 << 20
_STRANGERS = 64  # connections at a time that have not introduced themselves
_HELLO_SECONDS = 10.0
_REPORT_SECONDS = 30.0
_RETRY_SECONDS = 0.5
INTERVAL_SECONDS = 2.0
"""Process 0 sends who is missing so often. A process that misses five of these messages is gone."""
_MISSED = 5
Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the processes of a run meet, and what must be the same in all."""

    address: str
    """HOST:PORT of process 0."""
    count: int
    """Number of processes."""
    index: int
    """Number of this one."""
    run: Mapping[str, str]
    """Name → value of what identifies the run and its program."""
    seconds: float
    """Time to wait for the others."""

    def hold(self) -> None:
        """Returns when all processes are there.

        Raises:
            UsageError: If the processes do not match, or process 0 cannot listen on the port.
            NotMetError: If one is missing after `seconds`.
        """
        asyncio.run(_Host(self).hold() if self.index == 0 else _Guest(self).join())

    @property
    def _host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to process 0; raises OSError or asyncio.TimeoutError."""
        host, port = self._host_and_port
        try:
            return await asyncio.wait_for(asyncio.open_connection(host, port, limit=_LONGEST), _HELLO_SECONDS)
        except UnicodeError as error:  # a host name that DNS cannot have
            raise OSError(str(error)) from error

    def listen(self) -> socket.socket:
        """Returns a socket that listens on the port on all addresses of this machine, as JAX's service will."""
        _, port = self._host_and_port
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--mesh.coordinator_address is {self.address!r}: process 0 cannot listen on port {port} ({error}); if "
                "another run or another process 0 uses it, wait for its end, or set another port or --mesh.process_id"
            ) from None

    def hello(self, **more: Any) -> Message:
        """Returns this process's introduction."""
        return {"process": self.index, "count": self.count, "run": dict(self.run), **more}

    def problem(self, hello: Message) -> str | None:
        """Returns why the sender of an introduction cannot take part in the meeting of process 0."""
        index, count, run = (hello.get(name) for name in ("process", "count", "run"))
        numbers = all(type(each) is int and 0 <= each < _MOST_PROCESSES for each in (index, count))
        if not numbers or not isinstance(run, dict):
            return "this is a meeting of processes of tokenmill-trainer; start the same release everywhere"
        for name, own in self.run.items():
            if run.get(name) != own:
                return (
                    f"{name} is {own!r} in process 0 and {_shown(run.get(name))} in process {index}; start all with "
                    "the same options, releases and compiler flags, and give each run a port of its own"
                )
        if count != self.count:
            return f"--mesh.num_processes is {self.count} in process 0 and {count} in process {index}"
        if index >= self.count:
            return f"--mesh.process_id is {index}: must be less than --mesh.num_processes, {self.count}"
        return None


class _Deadline:
    """The end of the time to wait, and reports until then."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._reported: tuple[str, float] = ("", 0.0)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end

    def report(self, text: str) -> None:
        """Logs a text if it is new or was last logged a while ago."""
        before, at = self._reported
        if text != before or time.monotonic() - at >= _REPORT_SECONDS:
            self._reported = (text, time.monotonic())
            left = max(0.0, self._end - time.monotonic())
            _log.info(f"pjrt: waits up to {left:.0f} s more: {text}")


class _Guest:
    """Any process but 0."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._deadline = _Deadline(meeting.seconds)

    async def join(self) -> None:
        meeting = self._meeting
        while True:
            try:
                reader, writer = await meeting.connect()
            except (OSError, asyncio.TimeoutError) as error:
                problem = f"process 0 does not answer at {meeting.address} ({error or 'no answer'})"
            else:
                try:
                    problem = await self._talk(reader, writer)
                except (OSError, asyncio.TimeoutError):
                    problem = f"lost process 0 at {meeting.address}"
                finally:
                    writer.close()
            if problem is None:
                return
            if self._deadline.over:
                raise NotMetError(
                    f"--mesh.coordinator_address is {meeting.address!r}: process {meeting.index} of {meeting.count} "
                    f"did not meet the others within {meeting.seconds:g} s: {problem}; start process 0 at this "
                    "address, let hosts reach its port, and start all processes at about the same time"
                )
            self._deadline.report(problem)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """Returns None after `go`, else why this did not work."""
        meeting = self._meeting
        _write(writer, meeting.hello())
        while True:
            message = await asyncio.wait_for(_read(reader), _MISSED * INTERVAL_SECONDS)
            if message is None:
                return f"lost process 0 at {meeting.address}"
            if "error" in message:
                raise UsageError(
                    f"--mesh.coordinator_address is {meeting.address!r}: process 0 there rejects process "
                    f"{meeting.index}: {_printable(message['error'])}"
                )
            if message.get("go") is True:
                return None
            missing = message.get("missing")
            if type(missing) is not str:
                return f"another program answers at {meeting.address}, or the run has started without this process"
            problem = f"process(es) {_printable(missing)} are missing"
            if self._deadline.over:
                return problem
            if missing:
                self._deadline.report(problem)
            _write(writer, {"number": message.get("number")})


@dataclass
class _Arrived:
    """A process that has introduced itself."""

    writer: asyncio.StreamWriter
    address: str
    answered: int = 0
    """The last message that it has answered."""


class _Host:
    """Process 0."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._deadline = _Deadline(meeting.seconds)
        self._nonce = secrets.token_hex(16)
        self._arrived: dict[int, _Arrived] = {}
        self._strangers = 0
        self._number = 0  # of the last message
        self._changed = asyncio.Event()
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._rejected = ""
        self._unreachable = ""

    async def hold(self) -> None:
        meeting = self._meeting
        server = await asyncio.start_server(self._serve, sock=meeting.listen(), limit=_LONGEST)
        own = asyncio.create_task(self._check_address())
        try:
            while not await self._all_answer():
                if own.done():
                    own.result()
                if self._deadline.over:
                    raise NotMetError(
                        f"--mesh.num_processes is {meeting.count}: process(es) {self._missing()} did not come to "
                        f"{meeting.address} within {meeting.seconds:g} s{self._hints()}; start them with this "
                        "--mesh.coordinator_address, or set the number of processes that there are"
                    )
                if self._missing():
                    self._deadline.report(f"process(es) {self._missing()} are missing{self._hints()}")
            for each in self._arrived.values():
                _write(each.writer, {"go": True})
            # They close the connections, so that none of this machine's keeps the port.
            end = time.monotonic() + _HELLO_SECONDS
            while self._arrived and time.monotonic() < end:
                await asyncio.sleep(0.01)
        finally:
            own.cancel()
            server.close()
            for task, writer in list(self._talks.items()):
                task.cancel()
                writer.transport.abort()

    def _missing(self) -> str:
        return _ranges(set(range(1, self._meeting.count)) - self._arrived.keys())

    def _hints(self) -> str:
        return "".join(f"; {hint}" for hint in (self._rejected, self._unreachable) if hint)

    async def _all_answer(self) -> bool:
        """Sends who is missing. Returns whether all are there and have answered that none is missing."""
        missing = self._missing()
        self._number += 1
        self._changed.clear()
        for each in list(self._arrived.values()):
            if each.answered < self._number - _MISSED:
                each.writer.transport.abort()
            else:
                _write(each.writer, {"missing": missing, "number": self._number})
        end = time.monotonic() + INTERVAL_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                break
            self._changed.clear()
            answered = all(each.answered == self._number for each in self._arrived.values())
            if answered and not self._missing():
                return not missing  # else all have just come: tell them
        return False

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts to talk. asyncio would log tasks of its own for connections that the end of the meeting cancels."""
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talks[task] = writer
        task.add_done_callback(lambda done: self._talks.pop(done, None))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _STRANGERS:
            writer.transport.abort()
            return
        address = (writer.get_extra_info("peername") or ("an unknown address",))[0]
        self._strangers += 1
        try:
            hello = await asyncio.wait_for(_read(reader), _HELLO_SECONDS)
            arrived = None if hello is None else await self._admit(hello, writer, address)
        except (OSError, asyncio.TimeoutError):
            arrived = None
        finally:
            self._strangers -= 1
        try:
            while arrived is not None and (message := await _read(reader)) is not None:
                if type(number := message.get("number")) is int:
                    arrived.answered = number
                    self._changed.set()
        except OSError:
            pass
        finally:
            if arrived is not None and self._arrived.get(hello["process"]) is arrived:
                del self._arrived[hello["process"]]
                self._changed.set()
            writer.close()

    async def _admit(self, hello: Message, writer: asyncio.StreamWriter, address: str) -> _Arrived | None:
        """Returns the entry of a process; answers others and returns None."""
        problem = self._meeting.problem(hello)
        index = hello.get("process")
        if problem is None and index == 0:
            if hello.get("nonce") == self._nonce:
                _write(writer, {"missing": "", "nonce": self._nonce})
                return None
            problem = "process 0 is there already; give each process another --mesh.process_id"
        if problem is None and index in self._arrived:
            before, number = self._arrived[index], self._number
            # It may be the same process, started again after its host died.
            await asyncio.sleep(2 * INTERVAL_SECONDS)
            if self._arrived.get(index) is before and before.answered > number:
                problem = (
                    f"process {index} is there already, from {before.address}; give each process another "
                    "--mesh.process_id"
                )
        if problem is not None:
            self._rejected = f"rejected a process from {address}: {problem}"
            _write(writer, {"error": problem})
            return None
        arrived = self._arrived[index] = _Arrived(writer, address, answered=self._number)
        self._changed.set()
        return arrived

    async def _check_address(self) -> None:
        """Checks that the address leads to this process.

        Raises:
            UsageError: If it leads to another process 0.
        """
        meeting = self._meeting
        while True:
            try:
                reader, writer = await meeting.connect()
                _write(writer, meeting.hello(nonce=self._nonce))
                found = await asyncio.wait_for(_read(reader), _HELLO_SECONDS)
                writer.close()
            except (OSError, asyncio.TimeoutError) as error:
                self._unreachable = f"process 0 does not reach itself there ({error or 'no answer'})"
            else:
                if found is not None and found.get("nonce") == self._nonce:
                    self._unreachable = ""
                    return
                if found is not None and "error" in found:
                    raise UsageError(
                        f"--mesh.coordinator_address is {meeting.address!r}: another process 0 is there "
                        f"({_printable(found['error'])})"
                    )
                self._unreachable = "another program answers there, not this process 0"
            await asyncio.sleep(_RETRY_SECONDS)


def _write(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def _read(reader: asyncio.StreamReader) -> Message | None:
    """Returns the next message, which is empty if it is something else; None at the end of the connection."""
    try:
        line = await reader.readline()
    except ValueError:  # too long
        return {}
    if not line:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _printable(text: Any) -> str:
    """Returns a text of another program without what would control the terminal."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[: 10 * _SHOWN])


def _ranges(numbers: Iterable[int]) -> str:
    """{1, 2, 3, 7} → "1-3, 7"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)
