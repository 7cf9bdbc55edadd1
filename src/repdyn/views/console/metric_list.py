"""The list of metrics in the terminal, and as JSON."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.metrics import DEFAULT_METRICS, METRICS, Metric
from repdyn.utils.console import PrintableConsole
from repdyn.views.display import display_of
from repdyn.views.tables.style import by_family, metric_unit

_EXAMPLE = "'two_nn[discard=0.8]@no_sink'"


def records() -> list[dict[str, Any]]:
    """Return what is known of every metric as ``repdyn metrics --json`` prints it."""
    names = ("name", "meaning", "range", "subsets", "position", "per_head", "source")
    return [
        {
            **{name: getattr(metric, name) for name in names},
            "family": display_of(metric.name).family,
            "unit": metric_unit(metric.name),
            "settings": dict(metric.settings),
            "probe_requires": metric.probe_requires or None,
            "default": metric.name in DEFAULT_METRICS,
        }
        for metric in METRICS.values()
    ]


def print_metrics(console: Console | None = None) -> None:
    """Print name, meaning and range of every metric, by family, and what a probe must know
    for it.
    """
    console = console or PrintableConsole()
    for title, names in by_family(METRICS).items():
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, width=max(map(len, METRICS)))
        table.add_column(overflow="fold", ratio=1)
        table.add_column(
            no_wrap=True, width=max(len(range_text(metric)) for metric in METRICS.values())
        )
        for metric in map(METRICS.__getitem__, names):
            known = " (needs a probe with topics)" if metric.probe_requires == "topics" else ""
            table.add_row(metric.name, f"{metric.meaning}{known}", range_text(metric))
        console.print(Text(title, style="bold"))
        console.print(table, highlight=False)
        console.print()
    console.print(
        f"by default: {', '.join(DEFAULT_METRICS)}; every one that the probe allows: all",
        highlight=False,
    )
    console.print(
        f"with settings, on a subset of the tokens: {_EXAMPLE}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def range_text(metric: Metric) -> str:
    """Return the range of a metric as an interval, closed where it has an end."""
    low, high = metric.range
    opening = "(" if math.isinf(low) else "["
    closing = ")" if math.isinf(high) else "]"
    return f"{opening}{low:.3g}, {high:.3g}{closing}"
