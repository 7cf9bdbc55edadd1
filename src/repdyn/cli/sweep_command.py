"""The command ``repdyn sweep`` and analyze_checkpoints.py: options first, since --help must not wait for models."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from repdyn.sweep.options import parser as build_parser
from repdyn.utils.console import PrintableConsole
from repdyn.utils.records import print_records, wants_records

__all__ = ["build_parser", "main"]


def main(arguments: Sequence[str] | None = None, prog: str = "analyze_checkpoints.py") -> None:
    """Measure checkpoints, then write figures and a report; a repeated call measures the remaining checkpoints.

    The exit status is explained in --help.
    """
    options = build_parser(prog).parse_args(arguments)
    if options.list_suites:
        _list_suites(options)
        return
    from repdyn.cli.sweep import leave, run

    leave(run(options))


def _list_suites(options: Namespace) -> None:
    from repdyn.sweep.suite_list import print_suites, suite_fields

    print_records(suite_fields(), options) if wants_records(options) else print_suites(PrintableConsole())
