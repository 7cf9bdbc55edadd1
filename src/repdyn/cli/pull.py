"""The command ``repdyn pull``: a copy of a remote store in a folder."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repdyn.utils.addresses import is_url
from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.names import printable
from repdyn.utils.records import add_record_options, print_records, wants_records

_EXAMPLES = """examples:
  repdyn pull hf://datasets/ORG/NAME sweeps
  repdyn pull s3://bucket/quickstart runs/quickstart

Other commands read a URL without it: repdyn report s3://bucket/quickstart
"""


def main(arguments: Sequence[str], prog: str = "repdyn pull") -> None:
    """Copy a remote store to a folder and print how much is new.

    Raises:
        ValueError, OSError: no store, or no access.
        SystemExit: after --help or an invalid option.
    """
    options = build_parser(prog).parse_args(arguments)
    if not is_url(options.url):
        raise ValueError(f"expected a URL such as hf://datasets/ORG/NAME or s3://bucket/prefix, got {options.url}")
    from repdyn.publish.sharing import pull

    pulled = pull(options.url, options.folder)
    if wants_records(options):
        print_records([{"folder": str(options.folder), "files": pulled.files, "deleted": pulled.deleted}], options)
        return
    joined = f", {len(pulled.deleted)} deleted, whose rows are in others now" if pulled.deleted else ""
    print(printable(f"{options.folder}: {len(pulled.files)} new or changed files{joined}"))


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog, description="Copy a remote store to a folder.", epilog=_EXAMPLES, allow_abbrev=False
    )
    parser.add_argument("url", metavar="URL", help="hf://datasets/ORG/NAME, s3://bucket/prefix, or another of fsspec")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the copy; its own files are kept")
    add_record_options(parser)
    return parser
