"""Addresses at which pages are served: what may connect to them, free ports, and what is said of them."""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = 100


def is_loopback(host: str) -> bool:
    """Return whether only this computer can connect to an address."""
    return host == "localhost" or bool((ip := _ip(host)) and ip.is_loopback)


def accepted_hosts(host: str) -> frozenset[str] | None:
    """Return the host names that requests to a server bound to ``host`` may have; None for any.

    A server for this computer only must reject other names: after DNS rebinding, those of other sites lead to it.
    """
    return LOCAL | {host} if is_loopback(host) else None


def host_refusal(header: str, accepted: Collection[str] | None) -> str | None:
    """Return why a request with this ``Host`` header is rejected, or None.

    >>> host_refusal("localhost:7860", {"localhost"}) is None
    True
    >>> host_refusal("evil.example", {"localhost"})
    "expected a request to localhost, got one to 'evil.example'"
    """
    if accepted is None:
        return None
    with suppress(ValueError):  # an invalid header
        if urlsplit(f"//{header}").hostname in accepted:
            return None
    return f"expected a request to {' or '.join(sorted(accepted))}, got one to {header!r}"


def free_port(host: str, port: int) -> int:
    """Return the first free port from the given one on, or any free port for 0.

    Raises:
        OSError: none of 100 is free, or the address is not of this machine.
    """
    family = socket.getaddrinfo(host, port)[0][0]
    last, reason = min(port + _PORTS, 1 << 16) if port else 1, ""
    for candidate in range(port, last):
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((host, candidate))
                return tried.getsockname()[1]
            except OSError as error:
                reason = str(error)
    raise OSError(
        f"expected a free port from {port} to {last - 1} at {host}, found none: {reason}; choose another --port"
    )


def announcement(what: str, host: str, address: str, requested_port: int) -> str:
    """Return the message that names the ``address`` of a page on this computer; a requested port of 0 is any."""
    parts = urlsplit(address)
    is_other = requested_port not in {0, parts.port}
    instead = f"port {requested_port} is not free, port {parts.port} is used instead\n" if is_other else ""
    if (ip := _ip(host)) and ip.is_unspecified:
        there = parts._replace(netloc=f"{socket.gethostname()}:{parts.port}").geturl()
        address = f"{there}, port {parts.port} of every address of this machine"
    return f"{instead}{what} is at {address} (Ctrl-C ends it)"


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(host)
    return None
