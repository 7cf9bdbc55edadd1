"""The command ``repdyn compact``: the files of a run as few."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from repdyn.utils.addresses import path_or_url
from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.names import in_one_line
from repdyn.utils.records import add_record_options, print_records, wants_records

if TYPE_CHECKING:
    from repdyn.store import Store
    from repdyn.store.run_files import Compaction

UPLOAD_SECONDS = 600.0
"""How long the command waits for the uploads to a remote store."""
_EXAMPLES = """examples:
  repdyn compact runs/quickstart/TIME
  repdyn compact sweeps --run EleutherAI/pythia-70m

A run writes a file for each checkpoint; a thousand of them are slow to list, to copy and to upload. Trainings and
sweeps with many checkpoints do this when they end. Nothing that is read of a store changes, and a process killed
meanwhile loses nothing.
"""


def main(arguments: Sequence[str], prog: str = "repdyn compact") -> None:
    """Join the files of the runs of stores, and print what became of them.

    Raises:
        ValueError: no stores, an unknown run, or a damaged file.
        OSError: another process does this at the moment, or the disk is full.
        SystemExit: with status 1 if files could not be read.
    """
    options = build_parser(prog).parse_args(arguments)
    from repdyn.store import find_stores

    stores = [store for path in options.stores for store in find_stores(path, options.run)]
    if not stores:
        raise ValueError(f"expected stores with measurements, found none in {', '.join(map(str, options.stores))}")
    runs = [(store, run) for store in stores for run in store.runs() if options.run is None or run in options.run]
    if unknown := sorted({*(options.run or ())}.difference(run for _, run in runs)):
        known = ", ".join(sorted({run for store in stores for run in store.runs()}))
        raise ValueError(f"expected a run of these stores ({known}), got {unknown[0]!r}")
    records = []
    for store, run in runs:
        done = _compact(store, run)
        records.append({"store": store.location, "run": run, **_fields(done)})
        if not wants_records(options):
            _print(run, done)
    if wants_records(options):
        print_records(records, options)
    if any(record["unreadable"] for record in records):
        raise SystemExit(1)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Join the files of runs into few; nothing that is read of a store changes.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "stores", nargs="+", type=path_or_url, metavar="RUN", help="folders of runs, stores, or folders above them"
    )
    parser.add_argument("--run", nargs="+", metavar="NAME", help="runs to make compact (default: all)")
    add_record_options(parser)
    return parser


def _compact(store: Store, run: str) -> Compaction | None:
    """Make a run compact, with a progress bar on a terminal."""
    from tqdm import tqdm

    with tqdm(desc=in_one_line(run), unit="file", disable=None, leave=False) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        done = store.compact(run, advance)
    if problem := store.drain(UPLOAD_SECONDS):
        raise OSError(problem)
    return done


def _print(run: str, done: Compaction | None) -> None:
    if done is None:
        print(in_one_line(f"{run}: nothing to join"))
        return
    sizes = f"{done.bytes_before / 1e6:.1f} MB, now {done.bytes_after / 1e6:.1f} MB"
    print(in_one_line(f"{run}: {done.files_before} files of {sizes} in {done.files_after}"))
    for reason in done.unreadable:
        print(in_one_line(f"left as it is: {reason}"))


def _fields(done: Compaction | None) -> dict[str, Any]:
    if done is None:
        counts = dict.fromkeys(("files_before", "files_after", "bytes_before", "bytes_after"))
        return {"joined": False, **counts, "unreadable": []}
    return {"joined": True, **asdict(done)}
