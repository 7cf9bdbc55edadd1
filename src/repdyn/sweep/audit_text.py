"""Show what an audit found: a table for each history, lines for a sweep, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repdyn.sweep.audit import Finding, History, find_copies

if TYPE_CHECKING:
    from repdyn.sweep.embedding_audit import EmbeddingStatistics

_STYLES = {"fault": "red", "remark": "dim"}


def print_audit(history: History, findings: Sequence[Finding], console: Console) -> None:
    """Print a history's findings under a line with its counts; it fits any width."""
    console.print(Text(f"{history.run}: ", "bold").append(_counts(history, findings), "not bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for finding in findings:
        text = Text("\n".join([_capitalised(finding.sentence), *(f"reported: {report}" for report in finding.reports)]))
        table.add_row(Text(finding.severity, _STYLES[finding.severity]), text)
    if findings:
        console.print(Padding(table, (0, 0, 0, 2)))


def audit_fields(
    history: History, findings: Sequence[Finding], statistics: Sequence[EmbeddingStatistics] = ()
) -> dict[str, Any]:
    """Return what :func:`print_audit` prints, and the statistics of the input embeddings, as values of JSON."""
    from repdyn.sweep.embedding_audit import statistics_fields  # with torch, which the lines of a sweep do without

    return {
        "run": history.run,
        "checkpoints": [checkpoint.revision for checkpoint in history.checkpoints],
        "copies": {copy.revision: group.same_as for group in find_copies(history) for copy in group.copies},
        "faults": _number(findings, "fault"),
        "remarks": _number(findings, "remark"),
        "findings": [finding.as_dict() for finding in findings],
        "embeddings": statistics_fields(statistics),
    }


def fault_lines(history: History, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each fault of a history that a sweep does not run into by itself, as into missing weights, and
    for each report of users that its files do not show."""
    for finding in findings:
        is_met = finding.kind in {"missing weights", "missing step"}
        if (finding.severity == "fault" and not is_met) or finding.kind == "reported":
            reports = f" ({', '.join(finding.reports)})" if finding.reports else ""
            yield f"{history.run}: {finding.sentence}{reports}"


def _counts(history: History, findings: Sequence[Finding]) -> str:
    n = len(history.checkpoints)
    n_copies = sum(len(group.copies) for group in find_copies(history))
    n_faults = _number(findings, "fault")
    parts = [f"{n} checkpoint{'s' * (n != 1)}" if n else "nothing to compare"]
    if n_copies:
        parts.append(f"{n_copies} with the weights of another")
    parts.append(f"{n_faults} fault{'s' * (n_faults != 1)}" if n_faults else "no fault")
    return ", ".join(parts)


def _number(findings: Iterable[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)


def _capitalised(sentence: str) -> str:
    """Return a sentence with a capital, unless it begins with the name of a revision or file."""
    first = sentence.split(" ", 1)[0]
    return sentence[:1].upper() + sentence[1:] if first.isalpha() else sentence
