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


@Parameter(name="*")
@dataclass(frozen=True)
class Baselines:
    """Earlier runs that a run is compared with."""

    against: Annotated[list[Place] | None, Parameter(consume_multiple=True)] = None
    """Stores with earlier sound runs of the same recipe, three or more: their band is drawn behind
    the curves, and it is said whether the run is unlike them, and how often a sound one would be.
    """
    against_run: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None
    """Names of these runs, with * for any characters (default: all)."""

    def yardstick(self, stores: Sequence[Place]) -> Any:
        """Return the baselines, which may be in the same stores as the runs; None without any."""
        if not self.against and not self.against_run:
            return None
        from repdyn.views.judging import Yardstick

        return Yardstick(self.against or stores, self.against_run)


def print_json(content: Any) -> None:
    """Print JSON in ASCII; NaN and infinity, which it does not have, become null."""
    print(json.dumps(json_values(content), indent=2, allow_nan=False))
