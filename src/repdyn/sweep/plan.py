"""Print what a sweep would do, for --dry-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repdyn.hub.client import Hub
from repdyn.sweep.estimate import Assumptions, Estimate, dollars_text, hours_text, sum_of
from repdyn.sweep.planned_files import PlannedFiles, list_files
from repdyn.sweep.targets import Selection, Target
from repdyn.sweep.tasks import ForeignWeights
from repdyn.tables.numbers import gigabytes
from repdyn.utils.names import shorten_list
from repdyn.utils.redaction import redacted


@dataclass(frozen=True)
class ModelPlan:
    """Checkpoints of one model that a sweep would measure, and those already measured."""

    selection: Selection
    waiting: Sequence[Target]
    n_done: int
    n_failed_before: int
    foreign: Mapping[str, ForeignWeights] = field(default_factory=dict)
    """The checkpoints that are not measured because they have weights of another one."""
    design: str | None = None
    """Name of the sampling design, if one was asked for."""

    def owners(self, *, in_part: bool) -> dict[str, str]:
        """Return by checkpoint the one whose weights it has, or whose files alone."""
        return {name: each.owner for name, each in self.foreign.items() if each.in_part == in_part}


def print_plan(parts: Sequence[ModelPlan], hub: Hub, console: Console, assumptions: Assumptions | None = None) -> None:
    """Print for each model how many checkpoints are done, how many remain, and the size of their download; given
    assumptions, also the hours that these would take, the price, and what was assumed."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("model", "checkpoints"):
        table.add_column(column)
    for column in (
        "done",
        "failed before",
        "to do",
        "download",
        "largest",
        *(("time", "price") if assumptions else ()),
    ):
        table.add_column(column, justify="right")
    planned = list_files([part.waiting for part in parts], hub)
    estimates = _estimates(planned, assumptions)
    by_design = len({part.design for part in parts}) > 1
    for part, files, estimate in zip(parts, planned, estimates, strict=True):
        counts = (part.n_done, part.n_failed_before, len(part.waiting))
        names = shorten_list([target.revision for target in part.selection.targets])
        costs = [hours_text(estimate.elapsed), dollars_text(assumptions.dollars(estimate))] if assumptions else []
        table.add_row(
            escape(f"{part.selection.run}, {part.design}" if by_design else part.selection.run),
            escape(names),
            *map(str, counts),
            gigabytes(files.total),
            gigabytes(files.largest),
            *(costs if part.waiting else ()),
        )
    console.print(table)
    total = gigabytes(sum(files.total for files in planned))
    console.print(
        f"{total} to download in total; at most the two largest on disk at a time, or as --max-disk allows",
        soft_wrap=True,
    )
    if assumptions:
        _print_estimate(estimates, assumptions, console)
    for what, in_part in (("copies of another checkpoint", False), ("mixtures of two checkpoints", True)):
        if n := sum(len(part.owners(in_part=in_part)) for part in parts):
            console.print(f"{what}, which are not downloaded: {n}", soft_wrap=True)
    for problem in (problem for files in planned for problem in files.problems):
        console.print(f"would fail: {redacted(problem)}", style="yellow", markup=False, soft_wrap=True)


def _estimates(planned: Sequence[PlannedFiles], assumptions: Assumptions | None) -> list[Estimate]:
    """Return the estimate for each model; zeros without assumptions."""
    if assumptions is None:
        return [Estimate() for _ in planned]
    return assumptions.of([each.files for each in planned])


def _print_estimate(estimates: Sequence[Estimate], assumptions: Assumptions, console: Console) -> None:
    total = sum_of(estimates)
    console.print(
        f"estimated in total: {hours_text(total.elapsed)}, {dollars_text(assumptions.dollars(total))} (download "
        f"{hours_text(total.download)}, measurement {hours_text(total.measurement)}, start, views and what each "
        f"checkpoint takes whatever its size {hours_text(total.fixed)}), assuming",
        highlight=False,
        soft_wrap=True,
    )
    for line in assumptions.lines():
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def plan_fields(parts: Sequence[ModelPlan], hub: Hub, assumptions: Assumptions | None = None) -> list[dict[str, Any]]:
    """Return for each model what :func:`print_plan` prints, as values of JSON; sizes in bytes."""
    fields = []
    planned = list_files([part.waiting for part in parts], hub)
    for part, files, estimate in zip(parts, planned, _estimates(planned, assumptions), strict=True):
        of_model: dict[str, Any] = {
            "model": part.selection.run,
            "design": part.design,
            "checkpoints": [target.revision for target in part.selection.targets],
            "waiting": [target.revision for target in part.waiting],
            "done": part.n_done,
            "failed_before": part.n_failed_before,
            "download_bytes": files.total,
            "largest_bytes": files.largest,
            "same_as": part.owners(in_part=False),
            "mixed_with": part.owners(in_part=True),
            "would_fail": [redacted(problem) for problem in files.problems],
        }
        if assumptions:
            of_model |= {
                "download_hours": estimate.download,
                "load_hours": estimate.load,
                "forward_hours": estimate.forward,
                "kernels_hours": estimate.kernels,
                "measurement_hours": estimate.measurement,
                "fixed_hours": estimate.fixed,
                "hours": estimate.elapsed,
                "dollars": assumptions.dollars(estimate),
                "assumptions": assumptions.lines(),
            }
        fields.append(of_model)
    return fields


def selection_notes(selection: Selection) -> list[str]:
    """Describe how a repository differs from its description."""
    lines = []
    if selection.unverified:
        lines.append(f"{selection.run}: not verified, since no page of the publisher states it: {selection.unverified}")
    if selection.superseded:
        lines.append(
            f"{selection.run}: ignored, because a newer commit has the same step: {shorten_list(selection.superseded)}"
        )
    if selection.missing_steps:
        steps = shorten_list([str(step) for step in selection.missing_steps])
        lines.append(f"{selection.run}: described, but not on the hub: {steps}")
    if selection.unmatched:
        lines.append(
            f"{selection.run}: ignored, because they do not match the pattern or have no step in their names: "
            f"{shorten_list(selection.unmatched)}"
        )
    return lines
