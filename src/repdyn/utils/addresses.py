"""Addresses at which pages are served: who can connect to them, free ports, and what is said of
them.
"""

import re
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether only this computer can connect to an address."""
    return re.fullmatch(r"localhost|::1|127(\.\d+){3}", host) is not None


def allowed_hosts(host: str) -> list[str]:
    """Return the names that requests to a server bound to ``host`` may have, for Starlette's
    TrustedHostMiddleware.

    A server for this computer only rejects other names: after DNS rebinding, those of other sites
    lead to it.
    """
    return ["localhost", "127.0.0.1", host] if is_loopback(host) and ":" not in host else ["*"]


def free_port(host: str, port: int) -> int:
    """Return the given port if it is free, and otherwise any free one.

    Raises:
        OSError: the address is not of this machine.
    """
    family = socket.getaddrinfo(host, port)[0][0]
    for candidate in (port, 0):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, candidate))
            return tried.getsockname()[1]
    raise OSError(f"expected an address of this machine for --host, got {host}")


class RootPath:
    """Middleware for an application behind a proxy that serves it below a path.

    Some proxies remove the path before they pass a request on, others keep it: it is removed here
    where it is left.
    """

    def __init__(self, app: Any, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == self.root_path or path.startswith(f"{self.root_path}/"):
            scope = scope | {"path": path.removeprefix(self.root_path) or "/"}
        await self.app(scope, receive, send)


def require_root_path(root_path: str) -> str:
    """Return the path below which a proxy serves a page, without a slash at its end.

    >>> require_root_path("/user/me/proxy/8765/"), require_root_path("")
    ('/user/me/proxy/8765', '')
    """
    if root_path and not re.fullmatch(r"(/[\w.~%@:+-]+)+/?", root_path, re.ASCII):
        raise ValueError(
            "expected --root-path as the path in the browser's address, such as "
            f"/user/me/proxy/8765, got {root_path!r}"
        )
    return root_path.rstrip("/")


def announcement(what: str, host: str, address: str, requested_port: int) -> str:
    """Return the message that names the ``address`` of a page on this computer; a requested port of
    0 is any.
    """
    parts = urlsplit(address)
    is_other = requested_port not in {0, parts.port}
    instead = (
        f"port {requested_port} is not free, port {parts.port} is used instead\n"
        if is_other
        else ""
    )
    if host in {"0.0.0.0", "::"}:
        there = parts._replace(netloc=f"{socket.gethostname()}:{parts.port}").geturl()
        address = f"{there}, port {parts.port} of every address of this machine"
    return f"{instead}{what} is at {address} (Ctrl-C ends it)"
