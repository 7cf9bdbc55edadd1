"""The command ``repdyn report``: a web page that shows what stores contain."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import time
import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.utils.arguments import SuggestingParser, add_seeds_option, add_store_options, given_seeds
from repdyn.utils.names import printable

if TYPE_CHECKING:
    from repdyn.tables.runs import MeasuredRun

_EXAMPLES = """examples:
  repdyn report runs/quickstart/TIME
  repdyn report RUN OTHER -o report.html --title "Two seeds"
  repdyn report RUN --run EleutherAI/pythia-70m EleutherAI/pythia-160m --open
  repdyn report runs/a-seed1 runs/a-seed2 runs/b    a as a band over its seeds, b as a line
"""
_RUNS_WITH_PROGRESS_BAR = 4


def main(arguments: Sequence[str], prog: str = "repdyn report") -> None:
    """Write the page and print its path, its size and the time it took.

    Raises:
        ValueError, OSError: an empty store, an unknown run or probe, or a page that cannot be written.
        SystemExit: after --help or an invalid option.
    """
    options = build_parser(prog).parse_args(arguments)
    from repdyn.report import PAGE, write_report
    from repdyn.store import find_store

    started = time.perf_counter()
    stores = [find_store(store) for store in options.store]
    path = write_report(
        stores,
        options.output or stores[0].output / PAGE,
        runs=options.run,
        probe=options.probe,
        title=options.title,
        seeds=given_seeds(options),
        progress=_progress,
    )
    seconds, size_mb = time.perf_counter() - started, path.stat().st_size / 1e6
    print(printable(f"{path}: {size_mb:.1f} MB in {seconds:.1f} s"))
    if options.open:
        webbrowser.open(path.resolve().as_uri())


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Write a self-contained web page that shows what stores contain; it needs no network.",
        epilog=_EXAMPLES,
    )
    add_store_options(parser, nargs="+")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (default: report.html in the store)"
    )
    add_seeds_option(parser)
    parser.add_argument("--title", help="heading of the page (default: the names of the runs)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def _progress(runs: Sequence[MeasuredRun]) -> Iterable[MeasuredRun]:
    from tqdm import tqdm

    return tqdm(runs, unit="run", disable=None if len(runs) >= _RUNS_WITH_PROGRESS_BAR else True, leave=False)
