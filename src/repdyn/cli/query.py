"""The command ``repdyn query``: SQL over stores."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.utils.addresses import is_url, path_or_url
from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.records import add_record_options, print_records, wants_records

if TYPE_CHECKING:
    import pandas as pd

_EXAMPLES = """examples:
  repdyn query "select run, model, last_step from runs" sweeps
  repdyn query "select layer, two_nn from profiles where step = 1000" RUN
  repdyn query "select * from profiles order by step, layer" RUN --csv
  repdyn query "select run, step, reason from rows where value is null" RUN
  repdyn query "describe rows" RUN    the columns of a view

The views are rows (a row for each value, with everything stored about it), runs (a row for each run and probe) and
profiles (a row for each layer and subset of a checkpoint, with a column for each metric). Each has the column store.
An undefined value is NULL.
"""
_FILE_WIDTH = 10_000
_QUERY = re.compile(r"\s*(select|with|from|describe|summarize|show|pivot)\s", re.IGNORECASE)


def main(arguments: Sequence[str], prog: str = "repdyn query") -> None:
    """Print the result of a query.

    Raises:
        ValueError: there is no store with measurements, or the query is wrong.
    """
    options = build_parser(prog).parse_args(arguments)
    _check_order(options.sql, options.stores)
    from repdyn.store import find_stores
    from repdyn.tables.sql import query

    found = {store.path.resolve(): store for path in options.stores for store in find_stores(path)}
    if not found:
        raise ValueError(f"expected stores with measurements, found none in {', '.join(map(str, options.stores))}")
    frame = query(list(found.values()), options.sql)
    if wants_records(options):
        print_records([_plain(record) for record in frame.to_dict("records")], options)
    else:
        _print_table(frame)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Query the measurements of stores in SQL, as DuckDB understands it (pip install 'repdyn[query]').",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("sql", metavar="SQL", help="one statement over the views rows, runs and profiles")
    parser.add_argument(
        "stores",
        nargs="*",
        type=path_or_url,
        default=[Path()],
        metavar="RUN",
        help="folders of runs, stores, or folders above them (default: all below the current folder)",
    )
    add_record_options(parser)
    return parser


def _check_order(sql: str, stores: Sequence[str | Path]) -> None:
    """Check that the query is the first argument.

    Raises:
        ValueError: it is a store, or a store is a query.
    """
    later = next((str(store) for store in stores if _QUERY.match(str(store)) and not Path(store).exists()), None)
    if later or is_url(sql) or Path(sql or "-").exists():
        order = f"{shlex.quote(later or 'select * from runs')} {shlex.quote(sql)}"
        raise ValueError(f"expected the query before the stores, got {sql!r} first; repdyn query {order}")


def _plain(record: dict) -> dict:
    """Return a record with values of JSON: None for what is missing, lists for arrays, ISO 8601 for times."""
    return {str(name): _plain_value(value) for name, value in record.items()}


def _plain_value(value: object) -> object:
    import numpy as np
    import pandas as pd

    if isinstance(value, np.ndarray | list):
        return [_plain_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain_value(each) for name, each in value.items()}
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value is pd.NA or value is pd.NaT or value != value:  # NaN differs from itself
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def _print_table(frame: pd.DataFrame) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from repdyn.utils.console import PrintableConsole
    from repdyn.utils.names import in_one_line

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, column in frame.items():
        table.add_column(Text(in_one_line(str(name))), justify="right" if column.dtype.kind in "iuf" else "left")
    for values in frame.itertuples(index=False):
        table.add_row(*(Text(in_one_line(_cell(_plain_value(value)))) for value in values))
    PrintableConsole(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
