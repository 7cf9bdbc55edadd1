"""Alerts in the pictures: where they were raised, in a colour that nothing else has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes

from repdyn.alerts import Alert
from repdyn.tables.style import ALERT_COLOUR

MARKED = "marked: alerts"
"""For a caption."""


def alerts_on(alerts: Iterable[Alert], metric: str, subset: str | None = None) -> list[Alert]:
    """Those on a metric, on every subset unless one is named."""
    return [
        alert for alert in alerts if alert.metric == metric and (subset is None or (alert.subset or "all") == subset)
    ]


def mark_cells(axes: Axes, alerts: Sequence[Alert], layers: Sequence[int], steps: Sequence[int]) -> bool:
    """Ring the cells of a picture by layer and step, a whole profile above its column; whether there were any.

    Args:
        axes: on which a cell lies at its place in ``layers`` and ``steps``.
        alerts: on what is drawn there; those at steps that are not are left out.
        layers, steps: what is drawn, in its order.
    """
    rows, columns = ({number: place for place, number in enumerate(of)} for of in (layers, steps))
    shown = [alert for alert in alerts if alert.step in columns]
    cells = [(columns[alert.step], rows[alert.layer]) for alert in shown if alert.layer in rows]
    whole = sorted({columns[alert.step] for alert in shown if alert.layer is None})
    if cells:
        across, up = zip(*cells, strict=True)
        axes.plot(across, up, "o", color="none", markeredgecolor="white", markersize=9, markeredgewidth=3.4)
        axes.plot(across, up, "o", color="none", markeredgecolor=ALERT_COLOUR, markersize=9, markeredgewidth=1.8)
    mark_steps(axes, whole)
    return bool(cells or whole)


def mark_steps(axes: Axes, steps: Sequence[int]) -> None:
    """Triangles along the upper edge of a picture, at these places on its x axis."""
    if steps:
        above = axes.get_xaxis_transform()
        axes.plot(
            steps, [1.0] * len(steps), "v", color=ALERT_COLOUR, markersize=8, transform=above, clip_on=False, zorder=5
        )
