"""The pages, who may see them, and the server: the table of all runs, the report of one or several,
and events.
"""

import asyncio
import hashlib
import json
import secrets
import socket
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from repdyn.store import Store
from repdyn.utils.addresses import RootPath, allowed_hosts, announcement, free_port
from repdyn.views.judging import DescribedRuns, described_rows
from repdyn.views.report.markup import Markup, asset, joined, policy, tag
from repdyn.views.report.write import Followed, page, page_data, page_sources, page_title
from repdyn.views.watch.index import Index

TOKEN = "token"
"""Parameter of an address with the token."""


class Guard:
    """Middleware that answers only requests that have the token.

    The token of an address becomes a cookie, and the address is opened again without it, so that it
    does not stay in the browser's history.
    """

    def __init__(self, app: ASGIApp, token: str, root_path: str) -> None:
        self.app = app
        self.token = token
        self.root_path = root_path
        # browsers send cookies to all ports of a host: each server has a name of its own
        self._cookie = f"repdyn_{hashlib.sha256(token.encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._own_answer(HTTPConnection(scope)) if scope["type"] == "http" else None
        await (answer or self.app)(scope, receive, send)

    def _own_answer(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request that the application does not get, or None."""
        if self._is_token(request.query_params.get(TOKEN)):
            # relative, since a proxy may serve this below a path that is not known here
            query = urlsplit(str(request.url.remove_query_params(TOKEN))).query
            place = request.url.path.rpartition("/")[2]
            answer = RedirectResponse(f"{place}?{query}")
            # not for all of a host that others use too: without a path, a browser takes the folder
            # of the address that it knows
            is_top = request.url.path.count("/") == 1
            path = self.root_path or (None if is_top else "/")
            answer.set_cookie(self._cookie, self.token, path=path, httponly=True, samesite="lax")
            return answer
        if self._is_token(request.cookies.get(self._cookie)):
            return None
        return PlainTextResponse(
            "expected the token of this server, got none that fits; open the address it printed",
            401,
        )

    def _is_token(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())


_SLICE = 0.5
"""Seconds that the index works at a time."""
_KEEP_ALIVE = 15.0
"""Seconds after which a stream of events without any sends a comment: proxies close silent
connections.
"""


class Feed:
    """Polls an index every ``interval`` seconds, and tells readers what has changed since they were
    last told.
    """

    def __init__(self, index: Index, interval: float) -> None:
        self.index = index
        self.problem = ""
        """Why the last poll failed."""
        self._interval = interval
        self._changed = asyncio.Event()
        self._closed = False

    async def poll(self) -> None:
        """Poll until cancelled."""
        while True:
            before, self.problem = self.index.summaries, ""
            try:
                left = await asyncio.to_thread(self.index.poll, _SLICE)
            except Exception as error:  # a failed look must not end all later ones
                left, self.problem = False, f"{type(error).__name__}: {error}"
            if self.problem or self.index.summaries != before:
                self._notify()
            await asyncio.sleep(0.01 if left else self._interval)

    async def events(self, keys: Collection[str] | None) -> AsyncIterator[str]:
        """Yield server-sent events with the runs that changed, of all or of some keys; the first
        one has all of them."""
        told: dict[str, dict[str, Any]] = {}
        is_first = True
        while not self._closed:
            changed = self._changed
            every = self.index.summaries
            now = {key: every[key] for key in (every if keys is None else keys) if key in every}
            news = [summary for key, summary in now.items() if told.get(key) is not summary]
            gone = sorted(told.keys() - now.keys())
            if news or gone or is_first or self.problem:
                content = {
                    "now": time.time(),
                    "runs": news,
                    "gone": gone,
                    "whole": is_first,
                    "problem": self.problem,
                }
                yield f"event: runs\ndata: {json.dumps(content, allow_nan=False)}\n\n"
            else:
                yield ": nothing new\n\n"
            told, is_first = now, False
            try:
                await asyncio.wait_for(changed.wait(), _KEEP_ALIVE)
            except TimeoutError:
                continue

    def close(self) -> None:
        """End all streams of events."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def build_app(feed: Feed, *, host: str, token: str | None, root_path: str = "") -> Starlette:
    """Return the application that is served at ``host``, which polls the feed while it runs; for
    requests that have the token, or all.

    ``root_path`` is that of a proxy that keeps it in its requests. All links are relative.
    """
    index = feed.index

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(feed.poll())
        yield
        feed.close()
        polling.cancel()

    # functions that are not coroutines run in threads

    def table(_: Request) -> Response:
        return HTMLResponse(table_page([str(path) for path in index.paths]))

    def report(request: Request) -> Response:
        return report_page(index, [request.path_params["key"]], root="../")

    def comparison(request: Request) -> Response:
        return report_page(index, request.query_params.getlist("run"), root="")

    def data(request: Request) -> Response:
        root = "../" if request.query_params.get("below") else ""
        return report_data(index, request.query_params.getlist("run"), root)

    async def events(request: Request) -> Response:
        keys = request.query_params.getlist("run") or None
        return StreamingResponse(feed.events(keys), media_type="text/event-stream")

    routes = [
        Route("/", table),
        Route("/run/{key}", report),
        Route("/compare", comparison),
        Route("/data", data),
        Route("/events", events),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts(host))]
    if token is not None:
        middleware.append(Middleware(Guard, token=token, root_path=root_path))
    if root_path:
        middleware.insert(0, Middleware(RootPath, root_path=root_path))
    return Starlette(routes=routes, lifespan=lifespan, middleware=middleware)


def table_page(paths: Sequence[str]) -> str:
    """Return the page with the table of runs, which its script fills."""
    shared = ("numbers", "sparkline", "stream")
    body = "".join(asset(f"{name}.js") for name in shared) + asset("table.js", "repdyn.views.watch")
    script = Markup(f'"use strict";\n(() => {{\n{body}}})();\n')
    return Template(asset("table.html", "repdyn.views.watch")).substitute(
        policy=f"{policy(script)}; connect-src 'self'; form-action 'self'",
        style=asset("page.css") + asset("table.css", "repdyn.views.watch"),
        script=script,
        paths=joined((tag("code", path) for path in paths), ", "),
    )


class ReportContent(NamedTuple):
    """Holds the data that the report of some runs shows, and how it follows them."""

    stores: list[Store]
    data: DescribedRuns
    live: Followed


def report_page(index: Index, keys: Sequence[str], root: str) -> Response:
    """Return the page of the runs with these keys; ``root`` leads from it to the table."""
    shown = _shown(index, keys, root)
    if isinstance(shown, Response):
        return shown
    text = page(
        shown.data,
        page_title(shown.data),
        page_sources(shown.stores),
        live=shown.live,
        links=tag("a", "All runs", href=root or "./"),
    )
    # a name may contain what cannot be encoded
    return HTMLResponse(text.encode(errors="backslashreplace"))


def report_data(index: Index, keys: Sequence[str], root: str) -> Response:
    """Return the data of such a page alone."""
    shown = _shown(index, keys, root)
    return shown if isinstance(shown, Response) else JSONResponse(page_data(shown.data, shown.live))


def _shown(index: Index, keys: Sequence[str], root: str) -> ReportContent | Response:
    """Return what a page of runs shows, or the answer that there is nothing to show."""
    if not keys:
        return PlainTextResponse("expected runs, got none; check some in the table", 400)
    try:
        rows, versions = index.rows(keys)
        data = described_rows(rows)
    except KeyError as error:
        return PlainTextResponse(
            f"expected a run of the table, got {error}; its files may be deleted", 404
        )
    except ValueError as error:
        return PlainTextResponse(str(error), 422)
    query = urlencode([("run", key) for key in keys])
    below = "&below=1" if root else ""
    live = Followed(
        events=f"{root}events?{query}", data=f"{root}data?{query}{below}", versions=versions
    )
    return ReportContent(
        stores=list(dict.fromkeys(store for store, *_ in rows)), data=data, live=live
    )


def serve(
    paths: Sequence[str | Path],
    *,
    host: str,
    port: int,
    interval: float,
    token: str | None = None,
    needs_token: bool = True,
    open_browser: bool = False,
    root_path: str = "",
) -> None:
    """Serve the pages of the runs below some paths, print their address, and wait.

    The port is the first free one from the given one on; requests need the token, a random one
    unless given. An OSError says that no port is free, a KeyboardInterrupt is raised after Ctrl-C,
    with the server closed.
    """
    token = (token or secrets.token_urlsafe(24)) if needs_token else None
    index = Index(paths, interval)
    feed = Feed(index, interval)
    n_stores = index.find_stores()
    app = build_app(feed, host=host, token=token, root_path=root_path)
    chosen = free_port(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{chosen}/" + (
        f"?{urlencode({TOKEN: token})}" if token else ""
    )

    def started() -> None:
        print(announcement("the table of runs", host, address, port), flush=True)
        if root_path:
            there = f"{root_path}/?{urlencode({TOKEN: token})}" if token else f"{root_path}/"
            print(f"behind the proxy it is at {there}", flush=True)
        if not n_stores:
            where = ", ".join(map(str, paths))
            print(f"no measurement in {where} yet; the page shows them as they appear", flush=True)
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
    """A server that says when it has started, and that does not wait for its streams of events at
    the end.
    """

    def __init__(
        self, config: uvicorn.Config, feed: Feed, when_started: Callable[[], None]
    ) -> None:
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
