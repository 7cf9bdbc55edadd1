"""The pages: the table of all runs, the report of one or several, and events for both."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from string import Template
from typing import Any, TypeAlias
from urllib.parse import urlencode

import pandas as pd
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from repdyn.report.markup import Markup, asset, joined, policy, tag
from repdyn.report.runs import RunKey, data_of_rows
from repdyn.report.write import page, page_data, page_sources, page_title
from repdyn.watch.guard import Guard
from repdyn.watch.index import Index

_Rows: TypeAlias = Mapping[RunKey, pd.DataFrame]
_Live: TypeAlias = Mapping[str, object]

_SLICE = 0.5
"""Seconds that the index works at a time."""
_KEEP_ALIVE = 15.0
"""Seconds after which a stream of events without any sends a comment: proxies close silent connections."""


class Feed:
    """Polls an index, and tells readers what has changed since they were last told.

    Args:
        index: of the runs.
        interval: seconds between two polls.
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
        """Yield server-sent events with the runs that changed; the first one has all of them.

        Args:
            keys: of the runs to tell of; None for all.
        """
        told: dict[str, dict[str, Any]] = {}
        is_first = True
        while not self._closed:
            changed = self._changed
            every = self.index.summaries
            now = {key: every[key] for key in (every if keys is None else keys) if key in every}
            news = [summary for key, summary in now.items() if told.get(key) is not summary]
            gone = sorted(told.keys() - now.keys())
            if news or gone or is_first or self.problem:
                content = {"now": time.time(), "runs": news, "gone": gone, "whole": is_first, "problem": self.problem}
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


def build_app(feed: Feed, *, hosts: Collection[str] | None, token: str | None) -> Starlette:
    """Return the application.

    Args:
        feed: of the runs; polled while the application runs.
        hosts: host names and addresses that requests may have; None for any.
        token: that requests must have; None to answer without.
    """
    index = feed.index

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(feed.poll())
        yield
        feed.close()
        polling.cancel()

    def table(_: Request) -> Response:
        return HTMLResponse(table_page([str(path) for path in index.paths]))

    async def report(request: Request) -> Response:
        keys = [request.path_params["key"]] if "key" in request.path_params else request.query_params.getlist("run")
        return await _answer(index, keys, _report_page)

    async def data(request: Request) -> Response:
        return await _answer(index, request.query_params.getlist("run"), _report_data)

    async def events(request: Request) -> Response:
        keys = request.query_params.getlist("run") or None
        return StreamingResponse(feed.events(keys), media_type="text/event-stream")

    routes = [
        Route("/", table),
        Route("/run/{key}", report),
        Route("/compare", report),
        Route("/data", data),
        Route("/events", events),
    ]
    return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, hosts=hosts, token=token)])


def table_page(paths: Sequence[str]) -> str:
    """Return the page with the table of runs, which its script fills."""
    script = _table_script()
    return Template(asset("table.html", "repdyn.watch")).substitute(
        policy=f"{policy(script)}; connect-src 'self'; form-action 'self'",
        style=asset("page.css") + asset("table.css", "repdyn.watch"),
        script=script,
        paths=joined((tag("code", path) for path in paths), ", "),
    )


def _table_script() -> Markup:
    body = asset("sparkline.js") + asset("stream.js") + asset("table.js", "repdyn.watch")
    return Markup(f'"use strict";\n(() => {{\n{body}}})();\n')


async def _answer(index: Index, keys: Sequence[str], respond: Callable[[_Rows, _Live], Response]) -> Response:
    """Answer with what ``respond`` makes of the rows of the runs with these keys."""
    if not keys:
        return PlainTextResponse("expected runs, got none; check some in the table", 400)
    query = urlencode([("run", key) for key in keys])
    try:
        rows, versions = await run_in_threadpool(index.rows, keys)
        live = {"events": f"/events?{query}", "data": f"/data?{query}", "versions": versions}
        return await run_in_threadpool(respond, rows, live)
    except KeyError as error:
        return PlainTextResponse(f"expected a run of the table, got {error}; its files may be deleted", 404)
    except ValueError as error:
        return PlainTextResponse(str(error), 422)


def _report_page(rows: _Rows, live: _Live) -> Response:
    data = data_of_rows(rows)
    sources = page_sources(list(dict.fromkeys(store for store, *_ in rows)))
    text = page(data, page_title(data), sources, live=live, links=tag("a", "All runs", href="/"))
    # a name may contain what cannot be encoded
    return HTMLResponse(text.encode(errors="backslashreplace"))


def _report_data(rows: _Rows, live: _Live) -> Response:
    return JSONResponse(page_data(data_of_rows(rows), live))
