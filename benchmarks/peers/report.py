"""The report of a comparison: tables in Markdown, all numbers as CSV, a figure for each quantity."""

from __future__ import annotations

import csv
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from machine import facts
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from peers.contenders import QUANTITIES, Contender, Quantity
from peers.rounds import PRODUCT, Row, Timing, memory_method
from repdyn.figures.drawing import entitle
from repdyn.figures.files import save
from repdyn.tables.style import SUBSET_COLOURS, styled

OURS = "repdyn"
_COLUMNS = ("contender", "seconds", "time / product (range)", "error", "error of r1, r2", "extra memory, MiB", "note")
_ACROSS = 3
_TITLE_WIDTH = 44
_OTHER = "0.35"
# error from which on the figure tells it: a time alone would praise who is fast and wrong
_TELL = 1e-3


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
        "time": f"median of {_count(repeats, 'round')} after two calls that do not count; a round is the bare product "
        "and each contender once",
        "error": "relative to float64: differences of coordinates, eigenvalues of the Gram matrix",
        "memory": f"{memory_method(device)} above what was held before the call",
    }
    for quantity, some in contenders.items():
        text[f"{quantity.name}, {PRODUCT}"] = f"{quantity.product_name} in float32"
        text |= {f"{quantity.name}, {one.name}": f"{one.version()}, {one.description}" for one in some}
    return text


def heading(row: Row) -> str:
    """Return the heading of a row's table or panel."""
    return f"{row.cloud}, {row.rows} x {row.columns}, {_count(row.threads, 'thread')}"


def table(title: str, rows: Sequence[Row]) -> str:
    """Return an aligned Markdown table under its heading, without empty columns."""
    columns = [(name, *cells) for name, *cells in zip(_COLUMNS, *map(_cells, rows), strict=True) if any(cells)]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["| " + " | ".join(line) + " |" for line in zip(*padded, strict=True)]
    lines.insert(1, "|" + "|".join("-" * (len(column[0]) + 2) for column in padded) + "|")
    return "\n".join([f"### {title}: {heading(rows[0])}", "", *lines, ""])


def write(folder: Path, facts: dict[str, str], tables: Sequence[str], rows: Sequence[Row]) -> list[Path]:
    """Write ``kernels.md``, ``kernels.csv`` and a figure of each quantity; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    by_quantity = {quantity.name: [row for row in rows if row.quantity == quantity.name] for quantity in QUANTITIES}
    written = _figures(folder, {name: some for name, some in by_quantity.items() if some}, facts)
    images = [f"![time relative to the bare product]({path.name})" for path in written if path.suffix == ".png"]
    markdown, numbers = folder / "kernels.md", folder / "kernels.csv"
    listed = [f"- {name}: {fact}" for name, fact in facts.items()]
    markdown.write_text("\n".join(["# Kernels compared with other packages", "", *listed, "", *images, "", *tables]))
    with numbers.open("w", newline="") as file:
        file.writelines(f"# {name}: {fact}\n" for name, fact in facts.items())
        flat = [_flat(row) for row in rows]
        writer = csv.DictWriter(file, flat[0])
        writer.writeheader()
        writer.writerows(flat)
    return [markdown, numbers, *written]


def _flat(row: Row) -> dict[str, object]:
    """Return one line of the CSV: the fields of the row and of its timing."""
    timing = dict.fromkeys(Timing.__dataclass_fields__) if row.timing is None else asdict(row.timing)
    values = asdict(row)
    at = list(values).index("timing")
    return dict([*list(values.items())[:at], *timing.items(), *list(values.items())[at + 1 :]])


@styled
def _figures(folder: Path, by_quantity: dict[str, list[Row]], facts: dict[str, str]) -> list[Path]:
    titles = {quantity.name: quantity for quantity in QUANTITIES}
    return save({name: _figure(titles[name], rows, facts) for name, rows in by_quantity.items()}, folder)


def _figure(quantity: Quantity, rows: Sequence[Row], facts: dict[str, str]) -> Figure:
    """Draw median and range of the ratio of each contender, one panel for each cloud and number of threads."""
    panes: dict[str, list[Row]] = {}
    for row in rows:
        if row.contender != PRODUCT:
            panes.setdefault(heading(row), []).append(row)
    names = list(dict.fromkeys(row.contender for pane in panes.values() for row in pane))
    across = min(_ACROSS, len(panes))
    down = math.ceil(len(panes) / across)
    figure = Figure(figsize=(2.2 + 3.6 * across, 1.7 + down * (0.9 + 0.3 * len(names))))
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flatten()
    for panel, (title, pane) in zip(panels, panes.items(), strict=False):
        panel.set_title(textwrap.fill(title, _TITLE_WIDTH), loc="left")
        _draw(panel, pane)
    for panel in panels[len(panes) :]:
        panel.set_visible(False)
    first = panels[0]
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.5, -0.5)
    first.set_xscale("log")
    first.set_xlim(*_limits(rows))
    first.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    first.xaxis.set_minor_formatter(NullFormatter())
    for panel in panels[max(0, len(panes) - across) : len(panes)]:
        panel.set_xlabel("time relative to the bare product")
        panel.tick_params(labelbottom=True)
    device = facts["machine"] if facts["device"] == "CPU" else facts["device"]
    caption = (
        f"median and range; 1 is {quantity.product_name} in float32\n{device}; {facts['date']}; {facts['versions']}"
    )
    entitle(figure, f"{quantity.title}: time relative to a bare matrix product", caption)
    return figure


def _draw(panel: Axes, pane: Sequence[Row]) -> None:
    panel.axvline(1, color="0.6", linewidth=1)
    for place, row in enumerate(pane):
        colour, marker = (SUBSET_COLOURS[0], "D") if row.contender == OURS else (_OTHER, "o")
        if row.timing is None:
            transform = panel.get_yaxis_transform()
            panel.text(0.98, place, row.note, color=_OTHER, fontsize=8, va="center", ha="right", transform=transform)
            continue
        ratio = row.timing.ratio
        panel.plot([row.timing.ratio_low, row.timing.ratio_high], [place, place], color=colour, linewidth=2)
        panel.plot(ratio, place, marker, color=colour, markersize=6)
        above = {"xytext": (0, 6), "textcoords": "offset points"}
        wrong = f", error {row.error:.0e}" if row.error is not None and not row.error < _TELL else ""
        panel.annotate(_ratio(ratio) + wrong, (ratio, place), **above, color=colour, fontsize=8, ha="center")


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Return axis limits with room for all ranges, 1, and the numbers next to them."""
    timings = [row.timing for row in rows if row.timing]
    return min(one.ratio_low for one in timings) / 1.5, 1.5 * max(one.ratio_high for one in timings)


def _cells(row: Row) -> tuple[str, ...]:
    timing = row.timing
    return (
        row.contender,
        "" if timing is None else f"{timing.seconds:.3g}",
        "" if timing is None else f"{_ratio(timing.ratio)} ({_ratio(timing.ratio_low)} to {_ratio(timing.ratio_high)})",
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
    return f"{number} {what}{'s' * (number != 1)}"
