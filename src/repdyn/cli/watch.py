"""The command ``repdyn watch``: all runs in a table and the report of each, live, in the browser."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from repdyn.utils.addresses import is_loopback, path_or_url, port_number
from repdyn.utils.arguments import SuggestingParser

HOST = "127.0.0.1"
PORT = 8765
INTERVAL = 2.0
_PACKAGES = {"starlette", "uvicorn"}

_EXAMPLES = """examples:
  repdyn watch runs                            every run below a folder, now and later
  repdyn watch runs/mine other/store --open    in a browser
  repdyn watch runs --interval 30              look every half minute
  repdyn watch runs --port 0                   any free port

On another machine: run it there, forward its port with "ssh -L 8765:localhost:8765 MACHINE", and open the printed
address here.

The pages are served to this computer only, unless --host is given, and to those who have the token of the address.
"""


def main(arguments: Sequence[str], prog: str = "repdyn watch") -> None:
    """Serve the pages until Ctrl-C.

    Raises:
        ValueError, OSError: a missing package, or no free port.
        KeyboardInterrupt: after Ctrl-C; the server is closed.
        SystemExit: after --help or an invalid option.
    """
    options = build_parser(prog).parse_args(arguments)
    try:
        from repdyn.watch.server import serve
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise ValueError(
            f"expected the package {package!r}, which repdyn watch needs, found none; pip install 'repdyn[watch]'"
        ) from error
    if not is_loopback(options.host):
        who = "anyone who can connect" if options.no_token else "anyone who can read the traffic"
        print(
            f"warning: {who} to {options.host} can see the runs; leave out --host, and use ssh -L from elsewhere",
            file=sys.stderr,
        )
    serve(
        options.runs,
        host=options.host,
        port=options.port,
        interval=options.interval,
        token=options.token,
        needs_token=not options.no_token,
        open_browser=options.open,
    )


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Watch runs in a browser, live: all of them in a table, and the report of each.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=path_or_url,
        metavar="RUN",
        help="store, folder of a run, or folder above any number of them; it may appear later",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=INTERVAL,
        metavar="SECONDS",
        help="time between two looks for new measurements (default: %(default)g)",
    )
    parser.add_argument("--host", default=HOST, help="address it is served at (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=PORT, help="or the next free one, 0 for any (default: %(default)s)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--token", type=_token, metavar="TEXT", help="that requests need (default: a new random one)")
    group.add_argument("--no-token", action="store_true", help="answer all requests of this computer")
    parser.add_argument("--open", action="store_true", help="open a browser")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.1 to 86400, got {text!r}")
    return seconds


def _token(text: str) -> str:
    if not (text.isascii() and text.replace("-", "").replace("_", "").isalnum() and len(text) >= 8):
        raise argparse.ArgumentTypeError("expected at least 8 letters, digits, - or _")
    return text
