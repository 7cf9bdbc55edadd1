"""The command ``repdyn demo``: the report of a finished run, before anything is trained."""

# Imports only what is quick to import: the page must be there within two seconds.
from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import tempfile
import webbrowser
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.names import printable

PAGE = "demo.html.gz"
"""The report as it comes with the package, with marks in place of the chart library, which Plotly's package has."""
LIBRARY, LIBRARY_HASH = "@@chart-library@@", "@@chart-library-hash@@"
FILE = "repdyn_demo.html"

_EXAMPLES = """examples:
  repdyn demo                           open the page in a browser
  repdyn demo --no-browser -o FOLDER    write it there
"""


def main(arguments: Sequence[str], prog: str = "repdyn demo") -> None:
    """Write the page, print its path and open it.

    Raises:
        OSError: the page cannot be written.
        SystemExit: after --help or an invalid option.
    """
    options = build_parser(prog).parse_args(arguments)
    folder = options.output or Path(tempfile.mkdtemp(prefix="repdyn_demo_"))
    path = write_demo(folder)
    print("a decoder of 6 layers, measured 51 times in 4,000 steps of training on Wikipedia text")
    print(printable(f"report: {path}"))
    print("next: python train.py, in a copy of the repository, for a run of your own")
    if not options.no_browser:
        webbrowser.open(path.resolve().as_uri())


def write_demo(folder: Path) -> Path:
    """Write the page into a folder, which is created if it is missing, and return its path."""
    page = gzip.decompress((files("repdyn.cli") / PAGE).read_bytes()).decode()
    library = chart_library()
    content = base64.b64encode(gzip.compress(library, 1, mtime=0)).decode()
    page = page.replace(LIBRARY, content).replace(LIBRARY_HASH, library_hash(library))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(page, encoding="utf-8")
    return path


def chart_library() -> bytes:
    """Return Plotly's script as browsers read it."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes().replace(b"\r\n", b"\n")


def library_hash(library: bytes) -> str:
    """Return the hash by which the security policy of a page allows the script."""
    return base64.b64encode(hashlib.sha256(library).digest()).decode()


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Open the report of a finished run that comes with repdyn; nothing is trained or downloaded.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder for the page (default: a temporary one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open it")
    return parser
