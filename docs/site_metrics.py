"""The table of all metrics: meaning, range, settings, subsets and what each needs."""

from collections.abc import Iterable

from repdyn.metrics import DEFAULT_METRICS, METRICS, Metric
from repdyn.metrics.names import written
from repdyn.metrics.request import requested
from repdyn.views.console.metric_list import range_text
from repdyn.views.tables.style import by_family

_CAPTURES = {
    "following": "next layer",
    "last": "last layer",
    "previous_checkpoint": "previous checkpoint",
    "embeddings": "input embeddings",
    "output_head": "output head",
    "after_attention": "states after attention",
    "attention_weights": "attention weights",
    "queries_and_keys": "queries and keys",
    "whole_windows": "whole windows",
}
_HEADING = """# All metrics

This page lists every metric with its range, its settings and what it needs. Two commands print the
same list:

    repdyn metrics          # in the terminal
    repdyn metrics --json   # with unit and source

[What is measured](metrics.md) has the formulas, their sources, and how to read the values. By
default {default} are measured; `all` is every metric that the probe supports. A name may change the
settings and the tokens of a metric, as in `two_nn[discard=0.8]@no_sink`. The subsets are `all`
(which is meant where none is given), `no_sink`, `no_massive`, `gaussian`, [token
views](metrics.md#how-the-vectors-are-chosen) such as `last_token`, and classes of the probe, such
as `rare`.

**Warning.** `two_nn`, `gride_2`, `gride_4`, `levina_bickel` and `local_dimension` need independent
points: dense windows make them several times too small in early training. [The default design
avoids this](sampling.md).
"""
_COLUMNS = ("metric", "meaning", "range", "settings, subsets, where, needs")


def markdown() -> str:
    """Return the whole table as Markdown, a section for each family."""
    parts = [_HEADING.format(default=" and ".join(f"`{name}`" for name in DEFAULT_METRICS))]
    for title, names in by_family(METRICS).items():
        rows = [_cells(METRICS[name]) for name in names]
        lines = [_line(_COLUMNS), _line("---" for _ in _COLUMNS), *map(_line, rows)]
        parts.append("\n".join([f"## {title}", "", *lines, ""]))
    return "\n".join(parts)


def _cells(metric: Metric) -> list[str]:
    settings = ", ".join(f"`{name}={written(value)}`" for name, value in metric.settings.items())
    subsets = (
        "" if metric.subsets == ("all",) else " ".join(f"`@{subset}`" for subset in metric.subsets)
    )
    position = {"layers": "", "blocks": "from layer 1 on", "between": "between layers"}[
        metric.position
    ]
    by_head = "each head" if metric.per_head else ""
    where = ", ".join(filter(None, [position, by_head]))
    # in addition to the layer's states
    needed = [text for capture, text in _CAPTURES.items() if capture in metric.captures]
    needed += sorted(metric.captures - _CAPTURES.keys())
    if metric.probe_requires == "topics":
        needed.append("topics")
    if metric.whole_spectrum:
        needed.append("spectrum")
    if metric.neighbours:
        needed.append(f"{requested(metric, 'all', {}).n_neighbours} neighbours")
    notes = "; ".join(filter(None, [settings, subsets, where, ", ".join(needed)]))
    return [f"`{metric.name}`", metric.meaning, range_text(metric), notes]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
