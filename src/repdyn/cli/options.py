"""The options that several commands share."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from repdyn.utils.arguments import Place
from repdyn.utils.printing import in_one_line
from repdyn.utils.records import json_values

Port: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
_RUN = Parameter(name="RUN", help="Folder of a run, a store or its URL, or a folder with a single store.")
Run: TypeAlias = Annotated[Place, _RUN]
Runs: TypeAlias = Annotated[Sequence[Place], _RUN]
Folders: TypeAlias = Annotated[Sequence[Place], Parameter(name="RUN")]


@Parameter(name="*")
@dataclass(frozen=True)
class Records:
    """The formats that other programs read."""

    json: bool = False
    """Print JSON; docs/cli.md describes its fields."""
    csv: bool = False
    """Print CSV, with the same fields as columns."""

    def __post_init__(self) -> None:
        if self.json and self.csv:
            raise ValueError("expected --json or --csv, got both; leave one of them out")

    def __bool__(self) -> bool:
        return self.json or self.csv

    def print(
        self, records: Sequence[Mapping[str, Any]], print_table: Callable[[], object], each: str | None = None
    ) -> None:
        """Print records, dictionaries of the same fields, as JSON or CSV, or a table where neither is asked for.

        A line of the CSV is a record; with ``each``, a field with a list of records, it is one of these, after the
        plain fields of the record that contains it.
        """
        if self.json:
            print_json(list(records))
        elif self.csv:
            _print_csv([json_values(row) for record in records for row in _rows(record, each)])
        else:
            print_table()


@Parameter(name="*")
@dataclass(frozen=True)
class Rows:
    """The part of a store that is shown."""

    run: Annotated[list[str] | None, Parameter(name="--run")] = None
    """Names of runs to include (default: all)."""
    probe: str | None = None
    """Hash of the probe to include, or its first digits (default: all)."""


@Parameter(name="*")
@dataclass(frozen=True)
class ComparedRows(Rows):
    """The part of one or several stores whose runs are shown side by side."""

    seeds: Annotated[list[str] | None, Parameter(name="--seeds")] = None
    """Patterns of runs that are seeds of one model (default: names that differ in the number behind "seed", such as
    a-seed1 and a-seed2; none: each run on its own)."""

    def __post_init__(self) -> None:
        if self.seeds == ["none"]:
            object.__setattr__(self, "seeds", [])


def print_json(content: Any) -> None:
    """Print JSON in ASCII; NaN and infinity, which it does not have, become null."""
    print(json.dumps(json_values(content), indent=2, allow_nan=False))


def _rows(record: Mapping[str, Any], each: str | None) -> list[dict[str, Any]]:
    if each is None:
        return [dict(record)]
    own = {name: value for name, value in record.items() if not isinstance(value, list | tuple | dict)}
    kind = each.removesuffix("s")
    # a field that both have, such as the stack of a run and of a statement on it, is named after its kind in the latter
    return [
        own | {f"{kind}_{name}" if name in own else name: value for name, value in one.items()} for one in record[each]
    ]


def _print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as CSV with a header; lists and dictionaries as JSON, missing values as empty cells.

    Control and invisible characters are escape sequences, as :func:`in_one_line` writes them.
    """
    writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}
        # a name may hold characters that a terminal would obey
        writer.writerow({name: in_one_line(each) if isinstance(each, str) else each for name, each in values.items()})
