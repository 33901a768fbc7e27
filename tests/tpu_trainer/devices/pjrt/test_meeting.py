"""The meeting of processes: who is missing, twice there, of another run, a stranger, or dies."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.tpu_trainer.ports import free_ports
from tpu_trainer.devices.pjrt import meeting
from tpu_trainer.devices.pjrt.meeting import Meeting
from tpu_trainer.support.errors import ExitStatus, NotMetError, TrainerError, UsageError

RUN = {"--output_dir": "run", "jax": "0.10.2"}
LONG = 60.0


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "INTERVAL_SECONDS", 0.3)
    monkeypatch.setattr(meeting, "_RETRY_SECONDS", 0.05)


class Processes:
    """Processes that meet at a free port, each a thread."""

    def __init__(self, count: int) -> None:
        (self.port,) = free_ports(1)
        self.count = count
        self._pool = ThreadPoolExecutor(max_workers=count + 4)

    def start(self, index: int, *, seconds: float = LONG, **other: Any) -> Future[None]:
        values = {"address": f"127.0.0.1:{self.port}", "count": self.count, "run": RUN} | other
        return self._pool.submit(Meeting(index=index, seconds=seconds, **values).hold)

    def connect(self) -> socket.socket:
        """Connects as soon as process 0 listens."""
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=LONG)
            except OSError:
                time.sleep(0.02)


def error(future: Future[None]) -> TrainerError:
    found = future.exception(timeout=LONG)
    assert isinstance(found, TrainerError), found
    return found


def hello(index: int) -> bytes:
    return json.dumps({"process": index, "count": 3, "run": RUN}).encode() + b"\n"


def test_processes_meet_in_any_order_and_free_the_port() -> None:
    processes = Processes(3)
    others = [processes.start(2), processes.start(1)]
    time.sleep(0.3)  # they come first
    for each in (*others, processes.start(0)):
        each.result(timeout=LONG)
    # As JAX's service and a run that is started again do.
    again = [processes.start(index) for index in range(3)]
    for each in again:
        each.result(timeout=LONG)


def test_missing_processes_are_named_after_a_limited_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    processes = Processes(6)
    first, third = processes.start(0, seconds=4.0), processes.start(3, seconds=4.0)
    found = error(first)
    assert found.status == ExitStatus.INTERRUPTED
    assert re.search(
        r"num_processes is 6: process\(es\) 1-2, 4-5 did not come to 127.0.0.1:\d+ within 4 s", str(found)
    )
    assert "process 3 of 6 did not meet the others within 4 s" in str(error(third))
    assert "process(es) 1-2, 4-5 are missing" in caplog.text


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{port}", "does not answer at 127.0.0.1"),
        ("no-such-host.invalid:{port}", "does not answer at no-such-host.invalid"),
        ("{long}:{port}", "does not answer at"),
    ],
)
def test_an_unreachable_address_is_an_error_after_a_limited_time(address: str, reason: str) -> None:
    processes = Processes(2)
    address = address.format(port=processes.port, long="x" * 70)
    found = error(processes.start(1, seconds=0.3, address=address))
    assert isinstance(found, NotMetError)
    assert reason in str(found)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"count": 4}, r"--mesh.num_processes is 3 in process 0 and 4 in process 2"),
        (
            {"run": RUN | {"jax": "0.11"}},
            r"jax is '0.10.2' in process 0 and '0.11' in process 2; start all",
        ),
        ({"run": {}}, r"--output_dir is 'run' in process 0 and None in process 2"),
        (
            {"run": RUN | {"jax": "\x1b[2J" * 999}},
            r"jax is '0.10.2' in process 0 and '\\x1b\[2J.{,200}… in process 2",
        ),
        ({"index": 7, "count": 3}, r"--mesh.process_id is 7: must be less than --mesh.num_processes, 3"),
        (
            {"index": 1},
            r"process 1 is there already, from .*127.0.0.1; give each process another --mesh.process_id",
        ),
        ({"index": 10**9}, "this is a meeting of processes of tokenmill-trainer"),
        ({"run": {"x": "y" * 99_999}}, "this is a meeting of processes of tokenmill-trainer"),
    ],
)
def test_a_process_that_does_not_match_is_rejected_and_the_others_still_meet(
    other: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    processes = Processes(3)
    others = [processes.start(0), processes.start(1)]
    time.sleep(0.5)
    found = error(processes.start(**({"index": 2} | other)))
    assert isinstance(found, UsageError)
    assert re.search(message, str(found)), found
    for each in (*others, processes.start(2)):
        each.result(timeout=LONG)


def test_a_second_process_0_does_not_listen() -> None:
    processes = Processes(2)
    first = processes.start(0)
    processes.connect().close()
    found = error(processes.start(0))
    assert re.search(r"process 0 cannot listen on port \d+ \(.*in use", str(found)), found
    # One on another host, whose port is free, finds the first at the address.
    (port,) = free_ports(1)
    second = Meeting(address=f"127.0.0.1:{processes.port}", count=2, index=0, run=RUN, seconds=LONG)
    elsewhere = Meeting(address=f"127.0.0.1:{port}", count=2, index=0, run=RUN, seconds=LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Meeting, "listen", lambda self: socket.create_server(elsewhere._host_and_port))
        with pytest.raises(UsageError, match="another process 0 is there"):
            second.hold()
    processes.start(1).result(timeout=LONG)
    first.result(timeout=LONG)


def test_strangers_do_not_disturb_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_STRANGERS", 8)
    monkeypatch.setattr(meeting, "_HELLO_SECONDS", 1.0)
    processes = Processes(3)
    first = processes.start(0)
    silent = [processes.connect() for _ in range(20)]  # more than may be silent at a time
    texts = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff" * 9999,
        b"[" * 9999 + b"\n",
        b"null\n",
        b'{"process": true}\n',
        b"x" * 99_999,
    ]
    for text in texts:
        stranger = processes.connect()
        try:
            stranger.sendall(text)
            stranger.settimeout(0.2)
            stranger.recv(99)
        except OSError:
            pass
        silent.append(stranger)
    for each in (processes.start(1), processes.start(2), first):
        each.result(timeout=LONG)
    for each in silent:
        each.close()


def test_processes_that_die_or_hang_at_the_meeting_can_come_again() -> None:
    processes = Processes(3)
    first = processes.start(0)
    dead, hung = processes.connect(), processes.connect()
    dead.sendall(hello(1))
    dead.recv(99)
    dead.close()
    hung.sendall(hello(2))  # and never answers
    time.sleep(0.5)
    for each in (processes.start(1), processes.start(2), first):
        each.result(timeout=LONG)
    hung.close()


def test_a_process_0_that_dies_or_is_another_program_can_come_again() -> None:
    processes = Processes(2)
    other = processes.start(1)
    for answer in (
        b"",
        b"SSH-2.0-x\r\n",
        b'{"missing": "", "number": 1}\n',
        b"\x00\x00\x06\x04",
        b'{"missing": 3}\n',
    ):
        with socket.create_server(("127.0.0.1", processes.port)) as server:
            connection, _ = server.accept()
            connection.sendall(answer)
            connection.recv(999)
            connection.close()
    first = processes.start(0)
    for each in (first, other):
        each.result(timeout=LONG)


def test_a_process_that_comes_late_finds_another_program() -> None:
    processes = Processes(2)
    with socket.create_server(("127.0.0.1", processes.port)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"\x00\x00\x06\x04\x00\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        found = error(processes.start(1, seconds=0.5))
        assert found.status == ExitStatus.INTERRUPTED
        assert "another program answers" in str(found) or "lost process 0" in str(found)
        server.shutdown(socket.SHUT_RDWR)
