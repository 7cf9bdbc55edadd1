"""Load the explorer's checkpoints, and serve its page until it is stopped."""

from __future__ import annotations

import argparse
import sys
from threading import Event

from gradio import Blocks
from gradio.themes import Default
from starlette.middleware import Middleware

from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.explorer.app import build
from repdyn.explorer.checkpoints import choose_checkpoints
from repdyn.explorer.guard import Guard
from repdyn.explorer.session import Session
from repdyn.explorer.theme import CSS, FONTS, HEAD, MONOSPACED
from repdyn.studies.models import load_models
from repdyn.utils.addresses import accepted_hosts, announcement, free_port


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

    Requests that the page does not make are rejected (see :class:`~repdyn.explorer.guard.Guard`).

    Args:
        blocks: the page.
        host: address to bind to.
        port: the first port to try, see :func:`~repdyn.utils.addresses.free_port`.
        open_browser: open the page in a browser.
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
        css=CSS,
        head=HEAD,
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,
        app_kwargs={"middleware": [Middleware(Guard, hosts=accepted_hosts(host))]},
    )
    return address
