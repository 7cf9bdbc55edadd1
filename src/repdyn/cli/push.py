"""The command ``repdyn push``: a store sent to a place that others read."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from repdyn.utils.addresses import is_url, path_or_url
from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.names import printable
from repdyn.utils.records import add_record_options, print_records, wants_records
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from repdyn.publish.sharing import Pushed

_EXAMPLES = """examples:
  repdyn push sweeps hf://datasets/ORG/NAME --dry-run     what would be sent
  repdyn push sweeps hf://datasets/ORG/NAME --license cc-by-4.0
  repdyn push runs/quickstart/TIME s3://bucket/quickstart --author "A. Name"

Rows, probes and a certificate are sent; alert rules, logs, states, figures and locks are not. Local paths are shortened
to their last component, secrets removed. A push that was interrupted goes on where it was.
"""
_MAX_LISTED = 20


def main(arguments: Sequence[str], prog: str = "repdyn push") -> None:
    """Upload a store and print what was sent.

    Raises:
        ValueError, OSError: no store, or no access.
        SystemExit: after --help or an invalid option.
    """
    options = build_parser(prog).parse_args(arguments)
    if not is_url(options.url):
        raise ValueError(f"expected a URL such as hf://datasets/ORG/NAME or s3://bucket/prefix, got {options.url}")
    from repdyn.publish.sharing import push
    from repdyn.store import find_store

    store = find_store(options.store)
    pushed = push(
        store, options.url, author=options.author, dry_run=options.dry_run, licence=options.license, card=options.card
    )
    if wants_records(options):
        print_records([_fields(pushed, options.dry_run)], options)
        return
    for line in _lines(pushed, options.dry_run):
        print(printable(redacted(line)))


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog, description="Upload a store to where others can read it.", epilog=_EXAMPLES, allow_abbrev=False
    )
    parser.add_argument("store", type=path_or_url, metavar="RUN", help="store, its URL, or folder of a run")
    parser.add_argument("url", metavar="URL", help="hf://datasets/ORG/NAME, s3://bucket/prefix, or another of fsspec")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent, and exit")
    parser.add_argument("--author", metavar="NAME", help="who measured, for the certificate (default: nobody is named)")
    parser.add_argument("--license", metavar="ID", help="licence for the dataset card, such as cc-by-4.0")
    parser.add_argument(
        "--card",
        action=argparse.BooleanOptionalAction,
        help="write README.md with a figure, made from the rows (default: for hf://)",
    )
    add_record_options(parser)
    return parser


def _fields(pushed: Pushed, dry_run: bool) -> dict[str, Any]:
    return {
        "url": pushed.url,
        "sent": not dry_run,
        "files": pushed.files,
        "bytes": pushed.n_bytes,
        "current": pushed.n_current,
        "deleted": pushed.deleted,
        "shortened": [redacted(path) for path in pushed.paths],
    }


def _lines(pushed: Pushed, dry_run: bool) -> list[str]:
    listed = pushed.files[:_MAX_LISTED]
    more = len(pushed.files) - len(listed)
    lines = [f"  {name}" for name in listed] + [f"  and {more} more"] * bool(more) if dry_run else []
    lines += [f"shortened: {path}" for path in pushed.paths[:_MAX_LISTED]]
    if pushed.deleted:
        lines.append(
            f"{'would delete' if dry_run else 'deleted'} {len(pushed.deleted)} files whose rows are in others now"
        )
    verb, size = "would send" if dry_run else "sent", f"{pushed.n_bytes / 1e6:.1f} MB"
    return [
        *lines,
        f"{pushed.url}: {verb} {len(pushed.files)} files ({size}), {pushed.n_current} are there",
    ]
