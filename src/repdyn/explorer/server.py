"""Load the explorer's checkpoints, and serve its page until it is stopped."""

from __future__ import annotations

import argparse
import socket
import sys
from threading import Event

from gradio import Blocks
from gradio.themes import Default
from starlette.middleware import Middleware

from repdyn.explorer.addresses import LOCAL, announcement, is_loopback
from repdyn.explorer.app import build
from repdyn.explorer.checkpoints import choose_checkpoints
from repdyn.explorer.guard import Guard
from repdyn.explorer.session import Session
from repdyn.explorer.theme import CSS, FONTS, HEAD, MONOSPACED
from repdyn.hub.errors import CheckpointError, SweepStoppedError
from repdyn.studies.models import load_models

_PORTS = 100


def serve(options: argparse.Namespace) -> None:
    """Load the checkpoints, serve the page, and wait.

    Raises:
        ValueError: an invalid option, or a model that does not load.
        OSError: no free port.
        KeyboardInterrupt: after Ctrl-C; the page is closed.
    """
    options.revisions, notes = choose_checkpoints(options.models, options.revisions)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    try:
        loaded = list(load_models(options, release=False))
    except (CheckpointError, SweepStoppedError) as error:
        raise ValueError(str(error)) from error
    session = Session(loaded, layers=options.layers, nearest=options.nearest, max_tokens=options.max_tokens)
    blocks = build(session, options.sentence, options.second)
    try:
        address = launch(blocks, host=options.host, port=options.port, open_browser=options.open)
        print(announcement(options.host, address, options.port), flush=True)
        Event().wait()
    finally:
        blocks.close(verbose=False)


def launch(blocks: Blocks, *, host: str, port: int, open_browser: bool = False) -> str:
    """Serve a page from a thread of its own, and return its address.

    Requests that the page does not make are rejected (see :class:`~repdyn.explorer.guard.Guard`).

    Args:
        blocks: the page.
        host: address to bind to.
        port: the first port to try, see :func:`free_port`.
        open_browser: open the page in a browser.
    """
    hosts = LOCAL | {host} if is_loopback(host) else None
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
        css=CSS,
        head=HEAD,
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,
        app_kwargs={"middleware": [Middleware(Guard, hosts=hosts)]},
    )
    return address


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
