"""Load the explorer's checkpoints, and serve its page, to its own requests alone, until it is stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from gradio import Blocks
from gradio.themes import Default
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from repdyn.explorer.app import asset, build
from repdyn.explorer.session import Session
from repdyn.reading import CheckpointError, SweepStoppedError, checkpoints_of_run, load_models
from repdyn.utils.addresses import accepted_hosts, announcement, free_port, host_refusal

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
"""Fonts of the reader's system: the page loads nothing from other hosts."""
MONOSPACED = ("ui-monospace", "Menlo", "Consolas", "monospace")


def serve(options: Any) -> None:
    """Load the checkpoints, serve the page, and wait."""
    options.revisions, notes = choose_checkpoints(options.models, options.revisions)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    try:
        loaded = list(load_models(options, release=False, with_heads=True))
    except (CheckpointError, SweepStoppedError) as error:
        raise ValueError(str(error)) from error
    session = Session(loaded, layers=options.layers, nearest=options.nearest, max_tokens=options.max_tokens)
    blocks = build(session, options.sentence, options.second)
    try:
        address = launch(blocks, host=options.host, port=options.port, open_browser=options.open)
        print(announcement("the explorer", options.host, address, options.port), flush=True)
        Event().wait()
    finally:
        blocks.close(verbose=False)


def launch(blocks: Blocks, *, host: str, port: int, open_browser: bool = False) -> str:
    """Serve a page from a thread of its own, and return its address.

    Requests that the page does not make are rejected (see :class:`~repdyn.explorer.server.Guard`).
    """
    _, address, _ = blocks.launch(
        server_name=f"[{host}]" if ":" in host else host,
        server_port=free_port(host, port),
        inbrowser=open_browser,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        footer_links=[],
        ssr_mode=False,
        theme=Default(font=[*FONTS], font_mono=[*MONOSPACED]),
        css=asset("page.css"),
        head=f"<script>\n{asset('page.js')}</script>",
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,
        app_kwargs={"middleware": [Middleware(Guard, hosts=accepted_hosts(host))]},
    )
    return address


_STEP = re.compile(r"step([0-9]+)", re.ASCII)


def choose_checkpoints(models: Sequence[str], revisions: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Choose the first, middle and last step of a run, or the steps nearest to those that are requested.

    Nothing is chosen unless ``models`` is the folder of one run with checkpoints ``stepN``. A revision ``stepN`` that
    the run does not have becomes the nearest one, the earlier of two equally near.

    Returns:
        The names to load, and a note for each choice.
    """
    folder = Path(models[0])
    is_run = len(models) == 1 and folder.is_dir() and not (folder / "config.json").is_file()
    found = map(_STEP.fullmatch, checkpoints_of_run(folder) if is_run else ())
    steps = sorted((int(match[1]), match[0]) for match in found if match)
    if not steps:
        return tuple(revisions), []
    if not revisions:
        chosen = tuple(dict.fromkeys(steps[place][1] for place in (0, (len(steps) - 1) // 2, -1)))
        return chosen, [f"{', '.join(chosen)} of {len(steps)} checkpoints; choose others with --revisions"]
    nearest = {name: name for name in revisions}
    for wanted in filter(None, map(_STEP.fullmatch, revisions)):
        nearest[wanted[0]] = min(steps, key=lambda each, step=int(wanted[1]): abs(each[0] - step))[1]
    notes = [f"no checkpoint {name}: the nearest one is {near}" for name, near in nearest.items() if name != near]
    return tuple(dict.fromkeys(nearest.values())), notes


_INTERFACE = "/gradio_api/"
_READ = ("queue/data", "heartbeat/", "startup-events")
_WRITTEN = ("queue/join", "cancel", "reset")
"""What the page uses of gradio's interface, which has more, such as uploads."""


class Guard:
    """Middleware that rejects, unread, requests that the page itself does not make.

    Any site that a reader visits can send requests to this computer. The browser adds the site (``Origin``) and the
    host name of the request (``Host``), which is not one of this computer's after DNS rebinding.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._refusal(scope) if scope["type"] == "http" else None
        answer = self.app if reason is None else PlainTextResponse(reason, status_code=403)
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers, path = Headers(scope=scope), scope["path"]
        host, origin = headers.get("host", ""), headers.get("origin")
        reads = scope["method"] in {"GET", "HEAD"}
        if refusal := host_refusal(host, self.hosts):
            return refusal
        if not reads and origin is not None and origin.partition("://")[2] != host:
            return f"expected a request from the page at {host}, got one from {origin!r}"
        if path.startswith(_INTERFACE):
            is_made = path.removeprefix(_INTERFACE).startswith(_READ if reads else _WRITTEN)
        else:
            is_made = reads and not path.startswith("/monitoring")
        return None if is_made else f"expected a request that the page makes, got {scope['method']} {path!r}"
