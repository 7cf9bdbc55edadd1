"""What a sweep would do: for --dry-run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from repdyn.hub.client import Hub, total_bytes
from repdyn.hub.errors import CheckpointError
from repdyn.hub.weights import choose_files
from repdyn.sweep.suites import shipped_suites
from repdyn.sweep.targets import Selection, Target
from repdyn.utils.redaction import redacted

_LOOKUPS = 8
_LISTED = 6


@dataclass(frozen=True)
class Part:
    """One model's share of a sweep."""

    selection: Selection
    waiting: Sequence[Target]
    n_done: int
    n_failed_before: int


def print_plan(parts: Sequence[Part], hub: Hub, console: Console) -> None:
    """A line for each model: how many checkpoints are done, how many are to be measured, and what they weigh."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("model", "checkpoints"):
        table.add_column(column)
    for column in ("done", "failed before", "to do", "to fetch", "largest"):
        table.add_column(column, justify="right")
    total = 0
    problems: list[str] = []
    for part in parts:
        sizes, reasons = _sizes(part.waiting, hub)
        problems += reasons
        total += sum(sizes)
        counts = (part.n_done, part.n_failed_before, len(part.waiting))
        names = listed([target.revision for target in part.selection.targets])
        table.add_row(
            escape(part.selection.run),
            escape(names),
            *map(str, counts),
            gigabytes(sum(sizes)),
            gigabytes(max(sizes, default=0)),
        )
    console.print(table)
    console.print(
        f"in all {gigabytes(total)} to fetch; on disk at a time: at most the two largest, or what --max-disk allows",
        soft_wrap=True,
    )
    for problem in problems:
        console.print(f"would fail: {redacted(problem)}", style="yellow", markup=False, soft_wrap=True)


def print_suites(console: Console) -> None:
    """The suites that come with the package, and their models."""
    for suite in shipped_suites().values():
        console.print(f"[bold]{suite.name}[/bold]  {suite.title}", highlight=False, soft_wrap=True)
        console.print(Padding(", ".join(model.name for model in suite.models), (0, 0, 0, 4)), highlight=False)


def notes(selection: Selection) -> list[str]:
    """What of a repository is not as its description says, in words."""
    lines = []
    if selection.absent:
        steps = listed([str(step) for step in selection.absent])
        lines.append(f"{selection.run}: described, but not on the hub: {steps}")
    if selection.others:
        lines.append(
            f"{selection.run}: not checkpoints by the pattern, or without a step in their names, and left out: "
            f"{listed(selection.others)}"
        )
    return lines


def listed(names: Sequence[str]) -> str:
    """Names with their middle left out where there are many.

    >>> listed(["a", "b"]), listed([str(n) for n in range(20)])
    ('a, b', '0, 1, 2, 3, 4 .. 19 (20)')
    """
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: _LISTED - 1])} .. {names[-1]} ({len(names)})"


def gigabytes(n_bytes: float) -> str:
    """
    >>> gigabytes(0), gigabytes(3_649_400_000_000), gigabytes(21_560_000_000), gigabytes(1_400_000)
    ('0 GB', '3649 GB', '21.6 GB', '0.0014 GB')
    """
    if n_bytes >= 1e12:
        return f"{n_bytes / 1e9:.0f} GB"
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e7 else f"{n_bytes / 1e9:.2g} GB"


def _sizes(targets: Sequence[Target], hub: Hub) -> tuple[list[int], list[str]]:
    def size(target: Target) -> int | str:
        if target.path is not None:
            return 0
        try:
            if target.missing:
                raise CheckpointError(target.missing)
            files = choose_files(hub.files(target.repository, target.commit), target.subfolder)
            return 0 if hub.cached(target.repository, target.commit, files) else total_bytes(files)
        except CheckpointError as error:
            return f"{target.run} {target.revision}: {error}"

    with ThreadPoolExecutor(_LOOKUPS) as pool:
        found = list(pool.map(size, targets))
    return [n for n in found if isinstance(n, int)], [reason for reason in found if isinstance(reason, str)]
