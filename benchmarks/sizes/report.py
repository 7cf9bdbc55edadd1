"""What is written of the study: tables in Markdown, all numbers as CSV, two figures."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from repdyn.views.drawing import save
from repdyn.views.style import styled
from sizes import figures
from sizes.study import QUANTITIES, USUAL, Plan, Row

_DIGITS = {"anisotropy": 4}
_TITLES = {"two_nn": ("TwoNN", "drift"), "anisotropy": ("anisotropy", "bias")}


def notes(repeats: int) -> dict[str, str]:
    """How to read the tables."""
    return {
        "draws": f"{repeats} of each plan; ± is the standard deviation over them, itself known to "
        f"{1 / math.sqrt(2 * (repeats - 1)):.0%}. Disjoint as far as the vectors suffice; draws that overlap vary less "
        "than independent ones, down to sqrt(1 - drawn / vectors) of it",
        "drift": "of TwoNN, from its value at the largest n. TwoNN looks at the distance to the nearest neighbours, "
        "which shrinks as n grows: that it depends on n is a matter of scale, not an error",
        "bias": "of anisotropy, from its value at the largest n: an error proper, of a share that does not depend on n",
        "distinct": "different vectors in the batch that has fewest; TwoNN sees these alone",
        "cost": f"of the kernels, in one process, the forward pass left out; a batch of {USUAL}, or the largest below, "
        "is 1",
        "cubes": "uniform, in 64 coordinates; ± over independent clouds",
    }


def study_tables(rows: Sequence[Row], single: Sequence[Plan], equal: Sequence[Plan]) -> str:
    """Two tables of one layer: by the size of one batch, and by the number of batches of the same vectors."""
    first = rows[0]
    where = f"{first.cloud} of {first.model}"
    pool = f"{first.n_vectors:,} vectors, {first.n_distinct:,} distinct, {first.coordinates} coordinates"
    total = equal[0].batches * equal[0].n
    return "\n".join(
        [
            f"### {where}: {pool}\n",
            _markdown([{"n": str(plan.n)} | _cells(rows, plan) for plan in single]),
            f"### {where}: {total:,} vectors in batches\n",
            _markdown([{"plan": f"{plan.batches} x {plan.n}"} | _cells(rows, plan) for plan in equal]),
        ]
    )


def cube_table(rows: Sequence[Row]) -> str:
    """A line for each dimension and size, a column for each estimator."""
    lines: dict[tuple[int | None, int], dict[str, str]] = {}
    for row in rows:
        start = {"dimension": str(row.dimension), "n": str(row.n)}
        lines.setdefault((row.dimension, row.n), start)[figures.short_name(row.quantity)] = _value(row)
    return "### Uniform cubes\n\n" + _markdown(list(lines.values()))


def write(folder: Path, facts: Mapping[str, str], tables: Sequence[str], rows: Sequence[Row]) -> list[Path]:
    """Write ``probe_size.md``, ``probe_size.csv`` and the figures; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(folder, facts, rows)
    shown = [f"![{path.stem}]({path.name})" for path in pictures if path.suffix == ".png"]
    listed = [f"- {name}: {fact}" for name, fact in facts.items()]
    markdown, numbers = folder / "probe_size.md", folder / "probe_size.csv"
    markdown.write_text("\n".join(["# How many vectors a probe needs", "", *listed, "", *shown, "", *tables]))
    with numbers.open("w", newline="") as file:
        file.writelines(f"# {name}: {fact}\n" for name, fact in facts.items())
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return [markdown, numbers, *pictures]


@styled
def _pictures(folder: Path, facts: Mapping[str, str], rows: Sequence[Row]) -> list[Path]:
    caption = f"{facts['date']}; {facts['versions']}"
    states, cubes = [row for row in rows if row.model], [row for row in rows if not row.model]
    drawn = {}
    if any(row.mean is not None for row in states):
        drawn["drift"] = figures.drift([row for row in states if row.batches == 1], caption)
    if cubes:
        drawn["cubes"] = figures.cubes(cubes, caption)
    return save(drawn, folder)


def _cells(rows: Sequence[Row], plan: Plan) -> dict[str, str]:
    """Of one line: each quantity with its deviation, then what both share."""
    own = {row.quantity: row for row in rows if (row.batches, row.n) == (plan.batches, plan.n)}
    cells = {}
    for quantity in QUANTITIES:
        name, deviation = _TITLES[quantity]
        row = own[quantity]
        cells[name] = _value(row)
        cells[deviation] = "" if row.deviation is None else f"{row.deviation:+.1%}"
    first = own["two_nn"]
    drawn = [row for row in own.values() if row.seconds is not None]
    seconds = sum(row.seconds or 0 for row in drawn)
    usual = sum(row.seconds / row.cost for row in drawn if row.seconds and row.cost)
    return cells | {
        "draws": "" if not first.draws else f"{first.draws} overlapping" if first.overlapping else str(first.draws),
        "distinct": "" if first.fewest_distinct is None else str(first.fewest_distinct),
        "seconds": f"{seconds:.3g}" if drawn else "",
        "cost": f"{seconds / usual:.2f}" if usual else "",
        "note": "; ".join(dict.fromkeys(row.note for row in own.values() if row.note)),
    }


def _value(row: Row) -> str:
    if row.mean is None:
        return ""
    digits = _DIGITS.get(row.quantity, 2)
    spread = "" if row.sd is None else f" ± {row.sd:.{digits}f}"
    return f"{row.mean:.{digits}f}{spread}"


def _markdown(lines: Sequence[Mapping[str, str]]) -> str:
    """Legible as it stands; a column that nobody fills is left out."""
    columns = [[name, *(line[name] for line in lines)] for name in lines[0] if any(line[name] for line in lines)]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    found = ["| " + " | ".join(line) + " |" for line in zip(*padded, strict=True)]
    found.insert(1, "|" + "|".join("-" * (len(column[0]) + 2) for column in padded) + "|")
    return "\n".join([*found, ""])
