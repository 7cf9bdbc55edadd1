"""The options that several commands share."""

# Imports only what is quick to import: --help must not wait for torch.
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from repdyn.utils.arguments import Place
from repdyn.utils.records import json_values

Port: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
_RUN = Parameter(
    name="RUN", help="Folder of a run, a store or its URL, or a folder with a single store."
)
Run: TypeAlias = Annotated[Place, _RUN]
Runs: TypeAlias = Annotated[Sequence[Place], _RUN]
Folders: TypeAlias = Annotated[Sequence[Place], Parameter(name="RUN")]
Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", help="Print JSON; docs/cli.md describes its fields.")
]


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
    """Patterns of runs that are seeds of one model (default: names that differ in the number behind
    "seed", such as a-seed1 and a-seed2, and settings that differ in the seed alone; none: each run
    on its own)."""

    def __post_init__(self) -> None:
        if self.seeds == ["none"]:
            object.__setattr__(self, "seeds", [])


def print_json(content: Any) -> None:
    """Print JSON in ASCII; NaN and infinity, which it does not have, become null."""
    print(json.dumps(json_values(content), indent=2, allow_nan=False))
