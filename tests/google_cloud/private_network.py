"""A private network of this process and its children, in which Google's hosts are addresses of this machine.

The namespaces are those of `unshare --mount --net`. Nothing outside of them can be reached. Standard library only,
since both programs' environments import it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path


def is_private() -> bool:
    """Returns whether the network of this process has no other interface than loopback."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def bring_loopback_up(*addresses: str) -> None:
    """Brings the loopback interface up, which is down in a new namespace, and adds addresses outside of 127.0.0.0/8."""
    get_flags, set_flags, up_flag, layout = 0x8913, 0x8914, 0x1, "16sh14x"  # see netdevice(7)
    set_address, family = 0x8916, struct.pack("=H", socket.AF_INET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, get_flags, struct.pack(layout, b"lo", 0))
        fcntl.ioctl(
            control, set_flags, struct.pack(layout, b"lo", struct.unpack(layout, answer)[1] | up_flag)
        )
        for number, address in enumerate(addresses):
            packed = family + b"\0\0" + ipaddress.IPv4Address(address).packed
            fcntl.ioctl(control, set_address, struct.pack("16s24s", f"lo:{number}".encode(), packed))


def write_hosts(path: Path, addresses: Mapping[str, Iterable[str]]) -> None:
    """Writes a file in the format of /etc/hosts: host names by address."""
    path.write_text("".join(f"{address} {' '.join(names)}\n" for address, names in addresses.items()))


def certificate(folder: Path, hosts: Iterable[str]) -> ssl.SSLContext:
    """Returns a server's TLS context for the hosts.

    Writes the server's key to folder/key.pem, and the certificate, which is its own authority, to folder/ca.pem.
    """
    names = ",".join(f"DNS:{host}" for host in hosts)
    key, path = folder / "key.pem", folder / "ca.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=stand-in"]
    files = ["-keyout", key, "-out", path]
    subprocess.run([*make, "-addext", f"subjectAltName={names}", *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return context
