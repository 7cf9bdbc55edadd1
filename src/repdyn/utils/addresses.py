"""Addresses at which pages are served: who can connect to them, free ports, and what is said of them."""

import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

_PORTS = 100


def is_loopback(host: str) -> bool:
    """Return whether only this computer can connect to an address."""
    return host == "localhost" or bool((ip := _ip(host)) and ip.is_loopback)


def allowed_hosts(host: str) -> list[str]:
    """Return the names that requests to a server bound to ``host`` may have, for Starlette's TrustedHostMiddleware.

    A server for this computer only rejects other names: after DNS rebinding, those of other sites lead to it.
    """
    return ["localhost", "127.0.0.1", host] if is_loopback(host) and ":" not in host else ["*"]


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
