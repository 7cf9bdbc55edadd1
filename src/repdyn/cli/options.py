"""The options that several commands share."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from repdyn.utils.arguments import Place
from repdyn.utils.records import print_records

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
        """Print records as :func:`repdyn.utils.records.print_records`, or a table where no format is asked for."""
        if self:
            print_records(records, as_csv=self.csv, each=each)
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
