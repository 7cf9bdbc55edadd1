"""Addresses at which the page is served: who can connect to them, and how they are printed."""

# Imports only what loads quickly.
from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this computer can connect to an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def announcement(host: str, address: str, requested_port: int) -> str:
    """Return the message that names the address of the page.

    Args:
        host: address it is bound to.
        address: the page's address on this computer.
        requested_port: of the command line, 0 for any.
    """
    port = urlsplit(address).port
    is_other = requested_port not in {0, port}
    instead = f"port {requested_port} is not free, port {port} is used instead\n" if is_other else ""
    if _is_every_address(host):
        where = f"http://{socket.gethostname()}:{port}/, port {port} of every address of this machine"
    else:
        where = address
    return f"{instead}the explorer is at {where} (Ctrl-C ends it)"


def _is_every_address(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
