"""Probes of servers that answer, hang or do not exist."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tpu_trainer.devices import hosts
from tpu_trainer.support.errors import CloudError, ExitStatus, UsageError

# A SETTINGS frame without settings.
_ANSWER = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Server:
    """A listening socket whose connections are answered with `answer`, or never if that is None."""

    def __init__(self, answer: bytes | None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        if answer is not None:
            threading.Thread(target=self._serve, args=(answer,), daemon=True).start()

    def _serve(self, answer: bytes) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with connection:
                connection.recv(100)
                connection.sendall(answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PROBE_SECONDS", 0.2)


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    found = {"serves": Server(_ANSWER), "hangs": Server(None), "other": Server(b"SSH-2.0-OpenSSH_9.2")}
    yield found
    for server in found.values():
        server.close()


def test_only_a_grpc_server_that_answers_counts(servers: dict[str, Server]) -> None:
    gone = Server(_ANSWER)
    gone.close()
    addresses = [*(server.address for server in servers.values()), gone.address]
    assert hosts.silent(addresses) == [1, 2, 3]
    hosts.wait_for_hosts([servers["serves"].address] * 2, minutes=0.001)
    with pytest.raises(CloudError) as raised:
        hosts.wait_for_hosts(addresses, minutes=0.001)
    assert f"1 ({servers['hangs'].address}), 2 (" in str(raised.value)
    assert "0 (" not in str(raised.value)


def test_errors_without_a_lost_host_propagate(servers: dict[str, Server]) -> None:
    for addresses in ([], [servers["serves"].address]):
        with pytest.raises(ZeroDivisionError), hosts.ends_if_lost(addresses):
            raise ZeroDivisionError
    with pytest.raises(UsageError), hosts.ends_if_lost([servers["hangs"].address]):
        raise UsageError("mine")


@pytest.mark.parametrize(
    "waits",
    ["hosts.watch_hosts(sys.argv[1:]); time.sleep(600)", "with hosts.ends_if_lost(sys.argv[1:]): 1 / 0"],
)
def test_the_loss_of_a_host_ends_a_process_that_waits_for_it(servers: dict[str, Server], waits: str) -> None:
    code = (
        "import sys, time\n"
        "from tpu_trainer.training import hosts\n"
        "hosts.PROBE_SECONDS, hosts.LOST_AFTER_SECONDS = 0.2, 0.5\n" + waits
    )
    addresses = [servers["serves"].address, servers["hangs"].address]
    result = subprocess.run(
        [sys.executable, "-c", code, *addresses], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == ExitStatus.INTERRUPTED
    assert f"lost the TPU's host 1 ({addresses[1]}): it no longer answers" in result.stderr
