"""The report of a comparison: tables in Markdown, all numbers as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from machine import facts

from peers.contenders import Contender, Quantity
from peers.rounds import PRODUCT, Row, Timing, memory_method

_COLUMNS = (
    "contender",
    "seconds",
    "time / product (range)",
    "error",
    "error of r1, r2",
    "extra memory, MiB",
    "note",
)


def header(
    device: torch.device,
    threads: Sequence[int],
    repeats: int,
    command: str,
    contenders: Mapping[Quantity, Sequence[Contender]],
) -> dict[str, str]:
    """Return the machine, date, versions and contenders as text."""
    text = facts(command) | {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "threads": ", ".join(map(str, threads)),
        "time": (
            f"median of {_count(repeats, 'round')} after two calls that do not count; "
            "a round is the bare product and each contender once"
        ),
        "error": "relative to float64: differences of coordinates, eigenvalues of the Gram matrix",
        "memory": f"{memory_method(device)} above what was held before the call",
    }
    for quantity, some in contenders.items():
        text[f"{quantity.name}, {PRODUCT}"] = f"{quantity.product_name} in float32"
        text |= {
            f"{quantity.name}, {one.name}": f"{one.version()}, {one.description}" for one in some
        }
    return text


def heading(row: Row) -> str:
    """Return the heading of a row's table or panel."""
    return f"{row.cloud}, {row.rows} x {row.columns}, {_count(row.threads, 'thread')}"


def table(title: str, rows: Sequence[Row]) -> str:
    """Return an aligned Markdown table under its heading, without empty columns."""
    columns = [
        (name, *cells)
        for name, *cells in zip(_COLUMNS, *map(_cells, rows), strict=True)
        if any(cells)
    ]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["| " + " | ".join(line) + " |" for line in zip(*padded, strict=True)]
    rules = ["".ljust(len(column[0]) + 2, "-") for column in padded]
    lines.insert(1, f"|{'|'.join(rules)}|")
    return "\n".join([f"### {title}: {heading(rows[0])}", "", *lines, ""])


def write(
    folder: Path, facts: dict[str, str], tables: Sequence[str], rows: Sequence[Row]
) -> list[Path]:
    """Write ``kernels.md`` and ``kernels.csv``; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown = folder / "kernels.md"
    numbers = folder / "kernels.csv"
    listed = [f"- {name}: {fact}" for name, fact in facts.items()]
    markdown.write_text(
        "\n".join(["# Kernels compared with other packages", "", *listed, "", *tables])
    )
    with numbers.open("w", newline="") as file:
        file.writelines(f"# {name}: {fact}\n" for name, fact in facts.items())
        flat = [_flat(row) for row in rows]
        writer = csv.DictWriter(file, flat[0])
        writer.writeheader()
        writer.writerows(flat)
    return [markdown, numbers]


def _flat(row: Row) -> dict[str, object]:
    """Return one line of the CSV: the fields of the row and of its timing."""
    timing = (
        dict.fromkeys(Timing.__dataclass_fields__) if row.timing is None else asdict(row.timing)
    )
    values = asdict(row)
    at = list(values).index("timing")
    return dict([*list(values.items())[:at], *timing.items(), *list(values.items())[at + 1 :]])


def _cells(row: Row) -> tuple[str, ...]:
    timing = row.timing
    return (
        row.contender,
        "" if timing is None else f"{timing.seconds:.3g}",
        ""
        if timing is None
        else f"{_ratio(timing.ratio)} ({_ratio(timing.ratio_low)} to {_ratio(timing.ratio_high)})",
        _error(row.error),
        _error(row.error_distances),
        "" if row.extra_mib is None else f"{row.extra_mib:.0f}",
        row.note,
    )


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.0e}" if error else "0"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
