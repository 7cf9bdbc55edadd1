"""A server of the pages, in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from repdyn.utils.addresses import free_port
from repdyn.views.watch.app import Feed, build_app
from repdyn.views.watch.index import Index

TOKEN = "a-token-of-tests"


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve the runs below a folder, with a look ten times a second; returns the address with the
    token.
    """
    servers = []

    def start(path: Path) -> str:
        feed = Feed(Index([path], interval=0.1), interval=0.1)
        port = free_port("127.0.0.1", 0)
        config = uvicorn.Config(
            build_app(feed, host="127.0.0.1", token=TOKEN), port=port, log_level="error", ws="none"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, feed, thread))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{port}/?token={TOKEN}"

    yield start
    for server, feed, thread in servers:
        feed.close()
        server.should_exit = True
        thread.join()
