"""Lines for the terminal of a training that draws a progress bar."""

from __future__ import annotations

import sys


def print_above_bars(text: str) -> None:
    """Print a line to standard error, above the bars of tqdm that are drawn there or on standard output.

    Printed directly, it would go on where a bar ends, on the same line. While rich draws, it has a stream of its own in
    the place of standard error, which does the same for its bars.
    """
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # nobody draws a bar of what is not imported
    if tqdm is not None and len(tqdm._instances) > 0:
        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr)
