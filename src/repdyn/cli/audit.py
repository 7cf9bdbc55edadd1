"""The command ``repdyn audit``: what is wrong with published checkpoints, before anything is downloaded."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repdyn.utils.arguments import SuggestingParser, at_least
from repdyn.utils.names import printable
from repdyn.utils.records import add_record_options, print_records, wants_records
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from repdyn.checkpoints.audit import Finding, History
    from repdyn.checkpoints.hub import Hub
    from repdyn.checkpoints.targets import Selection

FAULTY, STOPPED = 1, 3
_STYLES = {"fault": "red", "remark": "dim"}

_EXAMPLES = """examples:
  repdyn audit pythia-2.8b                       a model of a suite
  repdyn audit pythia bloom my_suite.yaml        all models of suites
  repdyn audit EleutherAI/pythia-12b             a repository, or its address
  repdyn audit olmo2-7b --revisions log          some of its checkpoints
  repdyn audit pythia-70m --json | jq '.[].findings[].sentence'

It reads names, checksums, sizes and dates, in one request for each checkpoint. Exit status: 0 no fault; 1 a fault, or
a repository that cannot be listed; 2 invalid arguments; 3 no network; 130 interrupted.
"""


def main(arguments: Sequence[str], prog: str = "repdyn audit") -> None:
    """Print what is wrong with the histories.

    Raises:
        ValueError: an unknown name, or revisions that do not exist.
        SystemExit: with the status that --help explains.
    """
    options = build_parser(prog).parse_args(arguments)
    from repdyn.checkpoints.audit import audit
    from repdyn.checkpoints.errors import SweepStoppedError
    from repdyn.checkpoints.hub import Hub
    from repdyn.utils.console import PrintableConsole

    hub = Hub(timeout_seconds=options.timeout)
    try:
        selections, problems = _select(options, hub)
        histories = _list(selections, hub)
    except SweepStoppedError as error:
        print(printable(redacted(f"stopped: {error}")), file=sys.stderr)
        raise SystemExit(STOPPED) from error
    audited: list[tuple[History, list[Finding]]] = [(history, audit(history)) for history in histories]
    if wants_records(options):
        print_records([_audit_fields(*each) for each in audited], options, each="findings")
    else:
        for each in audited:
            _print_audit(*each, PrintableConsole())
    for problem in problems:
        print(printable(redacted(f"not audited: {problem}")), file=sys.stderr)
    is_faulty = any(finding.severity == "fault" for _, findings in audited for finding in findings)
    if is_faulty or problems:
        raise SystemExit(FAULTY)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Find copies, mixed files and missing weights among published checkpoints, without downloading "
        "them.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="suite, model of one, pattern, YAML file, hub repository, or its address",
    )
    parser.add_argument(
        "--revisions",
        default="all",
        help="all, log (closest to powers of two), every:10, or names or steps separated by commas (default: all)",
    )
    parser.add_argument(
        "--timeout", type=at_least(1), default=600, metavar="SECONDS", help="limit of one request (default: 600)"
    )
    add_record_options(parser)
    return parser


def _select(options: argparse.Namespace, hub: Hub) -> tuple[list[Selection], list[str]]:
    """Return the checkpoints of each model, and the reasons why models cannot be listed."""
    from repdyn.checkpoints.audit import models_to_audit
    from repdyn.checkpoints.errors import CheckpointError
    from repdyn.checkpoints.targets import select_targets

    models = dict.fromkeys(model for name in options.names for model in models_to_audit(name, hub.endpoint))
    selections, problems, invalid = [], [], []
    for model in models:
        try:
            selections.append(select_targets(model, hub, options.revisions))
        except CheckpointError as error:
            problems.append(f"{model.name}: {error}")
        except ValueError as error:
            invalid.append(error)
            problems.append(f"{model.name}: {error}")
    if invalid and len(invalid) == len(models):
        raise invalid[0]
    return selections, problems


def _list(selections: Sequence[Selection], hub: Hub) -> list[History]:
    """List all files, with a progress bar on a terminal."""
    from repdyn.checkpoints.audit import count_listings, list_histories

    with _bar("listing files", count_listings(selections)) as advance:
        return list_histories(selections, hub, with_dates=True, listed=advance)


@contextmanager
def _bar(text: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal; yield a function that advances it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from repdyn.utils.console import PrintableConsole

    console = PrintableConsole(stderr=True)
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=total)
        yield lambda: bars.advance(task)


def _print_audit(history: History, findings: Sequence[Finding], console: Console) -> None:
    """Print a history's findings under a line with its counts; it fits any width."""
    console.print(Text(f"{history.run}: ", "bold").append(_counts(history, findings), "not bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for finding in findings:
        text = Text("\n".join([_capitalised(finding.sentence), *(f"reported: {report}" for report in finding.reports)]))
        table.add_row(Text(finding.severity, _STYLES[finding.severity]), text)
    if findings:
        console.print(Padding(table, (0, 0, 0, 2)))


def _audit_fields(history: History, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what the command prints as values of JSON."""
    from repdyn.checkpoints.audit import find_copies

    return {
        "run": history.run,
        "checkpoints": [checkpoint.revision for checkpoint in history.checkpoints],
        "copies": {copy.revision: group.same_as for group in find_copies(history) for copy in group.copies},
        "faults": _n_of(findings, "fault"),
        "remarks": _n_of(findings, "remark"),
        "findings": [asdict(finding) for finding in findings],
    }


def _counts(history: History, findings: Sequence[Finding]) -> str:
    from repdyn.checkpoints.audit import find_copies

    n = len(history.checkpoints)
    n_copies = sum(len(group.copies) for group in find_copies(history))
    n_faults = _n_of(findings, "fault")
    parts = [f"{n} checkpoint{'s' * (n != 1)}" if n else "nothing to compare"]
    if n_copies:
        parts.append(f"{n_copies} with the weights of another")
    parts.append(f"{n_faults} fault{'s' * (n_faults != 1)}" if n_faults else "no fault")
    return ", ".join(parts)


def _n_of(findings: Iterable[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)


def _capitalised(sentence: str) -> str:
    """Return a sentence with a capital, unless it begins with the name of a revision or file."""
    first = sentence.split(" ", 1)[0]
    return sentence[:1].upper() + sentence[1:] if first.isalpha() else sentence
