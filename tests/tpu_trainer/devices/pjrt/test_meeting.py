"""The meeting of processes: missing, duplicate and dying ones, those of another run, and strangers."""

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
from tpu_trainer.support.errors import NotMetError, TrainerError, UsageError

RUN = {"--output_dir": "run", "jax": "0.10.2"}
LONG = 60.0


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(meeting, "LOST_SECONDS", 2.0)


class Processes:
    """Processes that meet at a free port, each a thread."""

    def __init__(self, count: int) -> None:
        (self.port,) = free_ports(1)
        self.count = count
        self._pool = ThreadPoolExecutor(max_workers=count + 4)

    def start(self, index: int, *, seconds: float = LONG, **changes: Any) -> Future[None]:
        values = {"address": f"127.0.0.1:{self.port}", "count": self.count, "run": RUN} | changes
        return self._pool.submit(meeting.meet, index=index, seconds=seconds, **values)

    def send(self, data: bytes) -> socket.socket:
        """Connects as soon as process 0 listens, and sends it bytes."""
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=LONG)
            except OSError:
                time.sleep(0.02)
            else:
                connection.sendall(data)
                return connection


def error(future: Future[None]) -> TrainerError:
    exception = future.exception(timeout=LONG)
    assert isinstance(exception, TrainerError), exception
    return exception


def test_processes_meet_in_any_order_and_free_the_port() -> None:
    processes = Processes(3)
    first = [processes.start(2), processes.start(1)]
    time.sleep(0.3)  # they come before process 0
    for each in (*first, processes.start(0)):
        each.result(timeout=LONG)
    # JAX's service and a restarted run do this.
    for each in [processes.start(index) for index in range(3)]:
        each.result(timeout=LONG)


def test_missing_processes_are_named_after_a_limited_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    processes = Processes(5)
    for index, future in [(index, processes.start(index, seconds=3.0)) for index in (0, 3)]:
        failure = error(future)
        assert isinstance(failure, NotMetError)
        assert f"process {index} did not meet the others within 3 s" in str(failure)
    assert "waits up to 3 s: process(es) 1, 2, 4 are missing" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "x" * 70])
def test_an_unreachable_address_is_an_error_after_a_limited_time(host: str) -> None:
    processes = Processes(2)
    failure = error(processes.start(1, seconds=0.3, address=f"{host}:{processes.port}"))
    assert isinstance(failure, NotMetError)
    assert f"process 0 does not answer at {host}" in str(failure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 4}, r"--mesh.num_processes is '3' in process 0 and '4' in process 2"),
        (
            {"run": RUN | {"jax": "\x1b[2J" * 999}},
            r"jax is '0.10.2' in process 0 and '\\x1b\[2J.{,200} in process 2; start all",
        ),
        ({"run": {}}, r"--output_dir is 'run' in process 0 and None in process 2"),
        ({"index": 7}, r"--mesh.process_id is 7: must be less than --mesh.num_processes, 3"),
    ],
)
def test_a_process_that_does_not_match_is_rejected_and_the_others_still_meet(
    changes: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    processes = Processes(3)
    matching = [processes.start(0), processes.start(1)]
    time.sleep(0.5)
    failure = error(processes.start(**({"index": 2} | changes)))
    assert isinstance(failure, UsageError)
    assert re.search(message, str(failure)), failure
    time.sleep(0.2)
    assert "are missing; rejected a process from" in caplog.text  # in the other processes
    for each in (*matching, processes.start(2)):
        each.result(timeout=LONG)


def test_of_two_processes_with_a_number_the_second_is_rejected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    processes = Processes(3)
    first_two = [processes.start(0), processes.start(1)]
    # Until both are there: else a second one may be the first.
    while "process(es) 2 are missing" not in caplog.text:
        time.sleep(0.02)
    failure = error(processes.start(0))
    assert re.search(r"process 0 cannot listen on port \d+ \(.*in use", str(failure)), failure
    # A process 0 on another host, whose port is free, comes to the first at the address.
    listen, (port,) = socket.create_server, free_ports(1)
    monkeypatch.setattr(socket, "create_server", lambda _, **options: listen(("", port), **options))
    for index, second in [(index, processes.start(index)) for index in (0, 1)]:
        failure = error(second)
        assert isinstance(failure, UsageError)
        assert re.search(f"process {index} is there already, from .*127.0.0.1; give each", str(failure)), (
            failure
        )
    for each in (*first_two, processes.start(2)):
        each.result(timeout=LONG)


def test_strangers_do_not_disturb_the_meeting() -> None:
    processes = Processes(3)
    first = processes.start(0)
    data = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff" * 9999,
        b"[" * 99_999 + b"\n",
        b"null\n",
        b'{"process": true}\n',
        b'{"process": 1, "run": 2}\n',
        b"x" * 3_000_000,
    ]
    strangers = [processes.send(each) for each in data * 4]
    for each in (processes.start(1), processes.start(2), first):
        each.result(timeout=LONG)
    for each in strangers:
        each.close()


def test_a_process_that_dies_at_the_meeting_can_come_again() -> None:
    processes = Processes(3)
    first = processes.start(0)
    run = RUN | {"--mesh.num_processes": "3"}
    dying_process = processes.send(
        json.dumps({"process": 1, "run": run, "nonce": "of a dead process"}).encode() + b"\n"
    )
    assert b"2 are missing" in dying_process.recv(999)
    for each in (processes.start(1), processes.start(2), first):
        each.result(timeout=LONG)


def test_another_program_at_the_port_is_not_process_0() -> None:
    """Process 0 may come later. If it came before, JAX's service is at the port."""
    processes = Processes(2)
    process_1 = processes.start(1)
    with socket.create_server(("127.0.0.1", processes.port)) as server:

        def answer() -> None:
            while True:
                for data in (b"", b"SSH-2.0-x\r\n", b'{"missing": 3}\n', b"\x00\x00\x06\x04\x00\n"):
                    try:
                        connection, _ = server.accept()
                    except OSError:  # the test is over
                        return
                    with connection:
                        connection.recv(999)
                        connection.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        assert "another program is at" in str(error(processes.start(1, seconds=0.5)))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for each in (processes.start(0), process_1):
        each.result(timeout=LONG)
