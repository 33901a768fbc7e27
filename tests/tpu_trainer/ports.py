"""Free ports."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
