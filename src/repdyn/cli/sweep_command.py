"""The command ``repdyn sweep`` and analyze_checkpoints.py: options first, since --help must not wait for models."""

from __future__ import annotations

from collections.abc import Sequence

from repdyn.sweep.options import parser as build_parser

__all__ = ["build_parser", "main"]


def main(arguments: Sequence[str] | None = None, prog: str = "analyze_checkpoints.py") -> None:
    """Measure checkpoints, then write figures and a report; a repeated call measures the remaining checkpoints.

    The exit status is explained in --help.
    """
    options = build_parser(prog).parse_args(arguments)
    from repdyn.cli.sweep import leave, run

    leave(run(options))
