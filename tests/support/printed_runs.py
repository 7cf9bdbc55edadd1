"""What the console prints of a run, as lines."""

import io
from pathlib import Path

from rich.console import Console
from synthetic_runs import measured_runs

from repdyn.views.console.runs import print_comparison, print_summary
from repdyn.views.judging import stacks_of_run


def printed(frame, *, width=80, terminal=False, **options):
    stream = io.StringIO()
    (run,) = stacks_of_run(frame, ())
    print_summary(
        run, console=Console(file=stream, width=width, force_terminal=terminal), **options
    )
    return stream.getvalue()


def table_lines(lines):
    """Those of the layers."""
    start = next(at for at, line in enumerate(lines) if line.startswith("layer ")) + 1
    return lines[start : lines.index("", start)]


EVERYTHING = {
    "figures": [Path("runs/first/figures/a.png"), Path("runs/first/figures/a.svg")],
    "tracking_seconds": 8.1,
    "total_seconds": 810.0,
}


def printed_of_terminal_comparison(frame, *, width=100, terminal=False):
    stream = io.StringIO()
    print_comparison(
        measured_runs(frame), console=Console(file=stream, width=width, force_terminal=terminal)
    )
    return stream.getvalue()


def lines_of(frame, **given):
    return [line.rstrip() for line in printed_of_terminal_comparison(frame, **given).splitlines()]
