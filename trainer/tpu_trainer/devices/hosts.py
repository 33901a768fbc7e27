"""Probes the hosts of a TPU slice from the process that trains.

TensorFlow waits forever for a missing host, and for a host that dies without closing its connections.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NoReturn

from tpu_trainer.support.errors import CloudError, ExitStatus, TrainerError
from tpu_trainer.support.streams import write_to_stderr

PROBE_SECONDS = 5.0
"""Interval between probes of a host, and a probe's timeout."""
LOST_AFTER_SECONDS = 60.0
"""A host that answers no probe for this long is lost."""

# An HTTP/2 client first sends its preface and an empty SETTINGS frame. The server answers with a SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_TYPE, _FRAME_HEADER = 4, 9


def answers(address: str) -> bool:
    """Whether a gRPC server answers at HOST:PORT. A hung process accepts connections but does not answer."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS) as connection:
            connection.sendall(_PREFACE)
            header = b""
            while len(header) < _FRAME_HEADER:
                received = connection.recv(_FRAME_HEADER - len(header))
                if not received:
                    return False
                header += received
    except OSError:
        return False
    return header[3] == _SETTINGS_TYPE


def silent(addresses: Sequence[str]) -> list[int]:
    """Returns the numbers of the hosts that do not answer now."""
    with ThreadPoolExecutor(max_workers=len(addresses)) as pool:
        found = list(pool.map(answers, addresses))
    return [number for number, answered in enumerate(found) if not answered]


def _named(numbers: Sequence[int], addresses: Sequence[str]) -> str:
    return ", ".join(f"{number} ({addresses[number]})" for number in numbers)


def wait_for_hosts(addresses: Sequence[str], *, minutes: float) -> None:
    """Waits until each host has answered once.

    Raises:
        CloudError: If a host does not answer within `minutes`.
    """
    waited_for, end = list(range(len(addresses))), time.monotonic() + 60 * minutes
    while True:
        missing = silent([addresses[number] for number in waited_for])
        waited_for = [waited_for[index] for index in missing]
        if not waited_for:
            return
        if time.monotonic() >= end:
            raise CloudError(
                f"of {len(addresses)} hosts of the TPU, these did not serve their chips within {minutes:g} minutes "
                f"(--tpu.connect_minutes): {_named(waited_for, addresses)}. If `launch` started them, the report of "
                "each is in the run's folder, in launch/, under its number"
            )
        time.sleep(min(PROBE_SECONDS, max(end - time.monotonic(), 0)))


def watch_hosts(addresses: Sequence[str]) -> None:
    """Starts a thread that ends this process if a host is lost: TensorFlow may wait for it forever."""
    threading.Thread(target=_watch, args=(tuple(addresses),), name="hosts", daemon=True).start()


def _watch(addresses: tuple[str, ...]) -> None:
    answered = [time.monotonic()] * len(addresses)
    while True:
        missing = silent(addresses)
        now = time.monotonic()
        answered = [answered[n] if n in missing else now for n in range(len(addresses))]
        lost = [n for n in missing if now - answered[n] >= LOST_AFTER_SECONDS]
        if lost:
            _end(lost, addresses)
        time.sleep(PROBE_SECONDS)


def _end(lost: Sequence[int], addresses: Sequence[str]) -> NoReturn:
    # In a regular exit of the interpreter, TensorFlow waits for the lost host.
    text = (
        f"tpu_trainer: error: lost the TPU's host {_named(lost, addresses)}: it no longer answers; the same command on "
        "a new TPU continues from the last checkpoint\n"
    )
    write_to_stderr(text)
    os._exit(ExitStatus.INTERRUPTED)


@contextmanager
def ends_if_lost(addresses: Sequence[str]) -> Iterator[None]:
    """Ends this process if the context raises an error while a host does not answer; other errors propagate."""
    try:
        yield
    except TrainerError:
        raise
    except Exception:
        lost = silent(addresses) if addresses else []
        if lost:
            _end(lost, addresses)
        raise
