"""Serve the pages until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from urllib.parse import urlencode

import uvicorn

from repdyn.utils.addresses import accepted_hosts, announcement, free_port
from repdyn.utils.printing import printable
from repdyn.watch.app import Feed, build_app
from repdyn.watch.guard import TOKEN
from repdyn.watch.index import Index


def serve(
    paths: Sequence[str | Path],
    *,
    host: str,
    port: int,
    interval: float,
    token: str | None = None,
    needs_token: bool = True,
    open_browser: bool = False,
) -> None:
    """Serve the pages, print their address, and wait.

    Args:
        paths: stores or their URLs, folders of runs, or folders above any number of them; they may appear later.
        host: address to bind to.
        port: the first port to try, see :func:`~repdyn.utils.addresses.free_port`.
        interval: seconds between two looks for new measurements.
        token: that requests must have; a new random one by default.
        needs_token: False to answer requests without a token.
        open_browser: open the table in a browser.

    Raises:
        OSError: no free port.
        KeyboardInterrupt: after Ctrl-C; the server is closed.
    """
    token = (token or secrets.token_urlsafe(24)) if needs_token else None
    index = Index(paths, interval)
    feed, n_stores = Feed(index, interval), index.find_stores()
    app = build_app(feed, hosts=accepted_hosts(host), token=token)
    chosen = free_port(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{chosen}/" + (
        f"?{urlencode({TOKEN: token})}" if token else ""
    )

    def started() -> None:
        print(printable(announcement("the table of runs", host, address, port)), flush=True)
        if not n_stores:
            where = ", ".join(map(str, paths))
            print(printable(f"no measurement in {where} yet; the page shows them as they appear"), flush=True)
        if open_browser:
            webbrowser.open(address)

    config = uvicorn.Config(
        app,
        host,
        chosen,
        loop="asyncio",
        http="h11",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    _Server(config, feed, started).run()


class _Server(uvicorn.Server):
    """A server that says when it has started, and that does not wait for its streams of events at the end."""

    def __init__(self, config: uvicorn.Config, feed: Feed, when_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._feed = feed
        self._when_started = when_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._feed.close()
