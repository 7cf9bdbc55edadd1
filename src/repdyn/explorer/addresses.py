"""Addresses at which the page is served: who reaches them, and how they are said."""

# Only what is quick to import stands here.
from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether this computer alone reaches it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def announcement(host: str, address: str, asked: int) -> str:
    """Return the message that names the address of the page.

    Args:
        host: address it is bound to.
        address: under which this computer reaches it.
        asked: the port that was asked for, 0 for any.
    """
    port = urlsplit(address).port
    instead = f"port {asked} is not free, port {port} is used instead\n" if asked not in {0, port} else ""
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
