"""Tables of commands in the terminal: plans and audits of checkpoints, runs, results of queries."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repdyn.cli.flags import in_flags
from repdyn.utils.addresses import is_loopback
from repdyn.utils.console import PrintableConsole, plain_records, wide_console
from repdyn.utils.numbers import short_value
from repdyn.utils.printing import gigabytes, plural, shorten_list
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    import pandas as pd

_SEVERITIES = {"fault": "red", "remark": "dim"}


def say(text: str, style: str | None = None) -> None:
    """Print a line to standard error with flags in place of arguments, and otherwise as it is,
    without markup, colours of numbers or secrets.
    """
    PrintableConsole(stderr=True).print(
        redacted(in_flags(text)), style=style, markup=False, highlight=False, soft_wrap=True
    )


def warn(text: str) -> None:
    """Print a line of something that is not as it should be to standard error, in yellow."""
    say(text, "yellow")


def warn_of_others(host: str, what: str) -> None:
    """Say who else can use what is served at an address other than this computer's own."""
    if not is_loopback(host):
        say(
            f"warning: those who can connect to {host} can {what}; leave out --host to serve this "
            "computer only, and use ssh -L from elsewhere"
        )


def print_table(rows: Iterable[Mapping[str, str | Text]], n_texts: int) -> None:
    """Print rows with the same columns, of which those after the first ``n_texts`` are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        if not table.columns:
            for number, name in enumerate(row):
                table.add_column(Text(name), justify="left" if number < n_texts else "right")
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row.values()))
    wide_console().print(table)


def print_plans(plans: Sequence[Mapping[str, Any]]) -> None:
    """Print what a sweep would do: a line for each model, totals, and what would fail."""
    if not plans:
        return
    rows = [
        {
            "model": plan["model"],
            "checkpoints": shorten_list(plan["checkpoints"]),
            "done": str(plan["done"]),
            "failed before": str(plan["failed_before"]),
            "to do": str(len(plan["waiting"])),
            "download": gigabytes(plan["download_bytes"]),
            "largest": gigabytes(plan["largest_bytes"]),
            "time": f"{plan['minutes']:.2g} min" if plan["minutes"] else "",
        }
        for plan in plans
    ]
    print_table(rows, n_texts=2)
    total = gigabytes(sum(plan["download_bytes"] for plan in plans))
    lines = [
        f"{total} to download in total; at most the two largest on disk at a time, or as "
        "--max-disk allows"
    ]
    for field, what in (
        ("same_as", "copies of another checkpoint"),
        ("mixed_with", "mixtures of two checkpoints"),
    ):
        if n := sum(len(plan[field]) for plan in plans):
            lines.append(f"{what}, which are not downloaded: {n}")
    problems = [
        Text(f"would fail: {in_flags(problem)}", "yellow")
        for plan in plans
        for problem in plan["would_fail"]
    ]
    for line in (*lines, *problems):
        wide_console().print(line, soft_wrap=True)


def print_suites(suites: Sequence[Mapping[str, Any]]) -> None:
    """Print suites with the names of their models, and what is not verified of these."""
    out = PrintableConsole()
    for suite in suites:
        out.print(Text.assemble((suite["name"], "bold"), f"  {suite['title']}"), soft_wrap=True)
        out.print(Padding(Text(", ".join(suite["models"])), (0, 0, 0, 4)))
        for what in dict.fromkeys(suite["unverified"].values()):
            names = [name for name, reason in suite["unverified"].items() if reason == what]
            which = "all" if names == suite["models"] else shorten_list(names)
            out.print(Padding(Text(f"not verified, {what}: {which}", "yellow"), (0, 0, 0, 4)))


def print_audits(histories: Iterable[Mapping[str, Any]]) -> None:
    """Print findings, as ``audit --json`` has them, under a line with the counts of each history,
    in any width.
    """
    out = PrintableConsole()
    for history in histories:
        out.print(Text.assemble((f"{history['run']}: ", "bold"), _counts(history)))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for finding in history["findings"]:
            severity = finding["severity"]
            table.add_row(Text(severity, _SEVERITIES[severity]), Text(finding["sentence"]))
        if history["findings"]:
            out.print(Padding(table, (0, 0, 0, 2)))


def _counts(history: Mapping[str, Any]) -> str:
    """Return how many checkpoints, copies and faults there are in an audited history."""
    n_checkpoints = len(history["checkpoints"])
    n_copies = len(history["copies"])
    n_faults = history["faults"]
    counts = ["nothing to compare"]
    if n_checkpoints:
        counts = [f"{n_checkpoints} {plural(n_checkpoints, 'checkpoint')}"]
    if n_copies:
        counts.append(f"{n_copies} with the weights of another")
    counts.append(f"{n_faults} {plural(n_faults, 'fault')}" if n_faults else "no fault")
    return ", ".join(counts)


def print_runs(summaries: Iterable[Mapping[str, Any]]) -> None:
    """Print a line for each run as :mod:`repdyn.views.watch` describes it: how far it is, its loss,
    means over layers.
    """
    from repdyn.views.console.runs import STATUS_STYLES  # with pandas, which plans do without

    rows = []
    for run in summaries:
        values = {name: run[name] for name in ("loss", "two_nn", "anisotropy")}
        rows.append(
            {
                "run": run["label"],
                "status": Text(run["status"], STATUS_STYLES[run["status"]]),
                "step": _progress(run),
                **{
                    name: "" if value is None else short_value(value)
                    for name, value in values.items()
                },
            }
        )
    print_table(rows, n_texts=2)


def _progress(run: Mapping[str, Any]) -> str:
    """Return how far a run is: "500 of 4,000"."""
    if run["finished"]:
        return "finished model"
    if run["step"] is None:
        return ""
    total = f" of {run['total']:,}" if run["total"] else ""
    return f"{run['step']:,}{total}"


def print_csv(frame: pd.DataFrame) -> None:
    """Print the rows of a data frame as CSV: lists as JSON, nothing where a value is missing."""
    # the module ends lines as DOS does unless told otherwise
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(frame.columns)
    for record in plain_records(frame):
        writer.writerow(
            json.dumps(value) if isinstance(value, list | dict) else value
            for value in record.values()
        )
