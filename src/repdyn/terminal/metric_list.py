"""The table of metrics: in the terminal, as JSON, and as the Markdown of the site's page of all metrics."""

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.metrics import DEFAULT_METRICS, METRICS, Metric
from repdyn.metrics.metric import written
from repdyn.tables.style import by_family
from repdyn.utils.console import PrintableConsole

_CAPTURES = {
    "following": "next layer",
    "last": "last layer",
    "previous_checkpoint": "previous checkpoint",
    "embeddings": "input embeddings",
    "output_head": "output head",
    "after_attention": "states after attention",
    "attention_weights": "attention weights",
    "whole_windows": "whole windows",
}
_HEADING = """# All metrics

    repdyn metrics                  in the terminal
    repdyn metrics --json           with unit and source
    repdyn metrics --markdown       this page

Formulas, sources, interpretation: [what is measured](metrics.md). By default: {default}; `all` is every metric that the
probe supports. `NAME[setting=value]@SUBSET` changes settings and tokens: `two_nn[discard=0.8]@no_sink`. Subsets are
`all` (the default below where none is given), `no_sink`, `no_massive`, `gaussian`,
[token views](metrics.md#how-the-vectors-are-chosen) such as `last_token`, and classes of the probe, such as `rare`.

**Warning.** `two_nn`, `gride_2`, `gride_4`, `levina_bickel` and `local_dimension` need independent points: dense
windows make them several times too small in early training. [The default design avoids this](sampling.md).
"""
_EXAMPLE = "'two_nn[discard=0.8]@no_sink'"
_COLUMNS = ("metric", "meaning", "range", "settings, subsets, where, needs")


def markdown() -> str:
    """Return the whole table as Markdown, a section for each family."""
    parts = [_HEADING.format(default=", ".join(f"`{name}`" for name in DEFAULT_METRICS))]
    for title, names in by_family(METRICS).items():
        rows = [_cells(METRICS[name]) for name in names]
        lines = [_line(_COLUMNS), _line("---" for _ in _COLUMNS), *map(_line, rows)]
        parts.append("\n".join([f"## {title}", "", *lines, ""]))
    return "\n".join(parts)


def records() -> list[dict[str, Any]]:
    """Return what is known of every metric as ``repdyn metrics --json`` prints it."""
    names = ("name", "meaning", "family", "range", "subsets", "position", "per_head", "source")
    return [
        {
            **{name: getattr(metric, name) for name in names},
            "unit": metric.unit or metric.name,
            "settings": dict(metric.settings),
            "probe_requires": metric.probe_requires or None,
            "default": metric.name in DEFAULT_METRICS,
        }
        for metric in METRICS.values()
    ]


def print_metrics(console: Console | None = None) -> None:
    """Print name, meaning and range of every metric, by family, and what a probe must know for it."""
    console = console or PrintableConsole()
    for title, names in by_family(METRICS).items():
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, width=max(map(len, METRICS)))
        table.add_column(overflow="fold", ratio=1)
        table.add_column(no_wrap=True, width=max(len(_range(metric)) for metric in METRICS.values()))
        for metric in map(METRICS.__getitem__, names):
            known = " (needs a probe with topics)" if metric.probe_requires == "topics" else ""
            table.add_row(metric.name, f"{metric.meaning}{known}", _range(metric))
        console.print(Text(title, style="bold"))
        console.print(table, highlight=False)
        console.print()
    console.print(f"by default: {', '.join(DEFAULT_METRICS)}; every one that the probe allows: all", highlight=False)
    console.print(
        f"with settings, on a subset of the tokens: {_EXAMPLE}", highlight=False, markup=False, soft_wrap=True
    )


def _cells(metric: Metric) -> list[str]:
    settings = ", ".join(f"`{name}={written(value)}`" for name, value in metric.settings.items())
    subsets = "" if metric.subsets == ("all",) else " ".join(f"`@{subset}`" for subset in metric.subsets)
    position = {"layers": "", "blocks": "from layer 1 on", "between": "between layers"}[metric.position]
    where = ", ".join(filter(None, [position, "each head" * metric.per_head]))
    # in addition to the layer's states
    needed = [text for capture, text in _CAPTURES.items() if capture in metric.captures]
    needed += sorted(metric.captures - _CAPTURES.keys())
    needed += ["topics"] * (metric.probe_requires == "topics") + ["spectrum"] * metric.whole_spectrum
    needed += [f"{metric.n_neighbours} neighbours"] if metric.neighbours else []
    notes = "; ".join(filter(None, [settings, subsets, where, ", ".join(needed)]))
    return [f"`{metric.name}`", metric.meaning, _range(metric), notes]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _range(metric: Metric) -> str:
    low, high = metric.range
    opening, closing = "(" if math.isinf(low) else "[", ")" if math.isinf(high) else "]"
    return f"{opening}{low:.3g}, {high:.3g}{closing}"
