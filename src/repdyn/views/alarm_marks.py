"""Alarms in the pictures: where they were raised, in a colour that nothing else has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes

from repdyn.alarms import Alarm
from repdyn.views.style import ALARM_COLOUR

MARKED = "marked: alarms"
"""For a caption."""


def alarms_on(alarms: Iterable[Alarm], metric: str, subset: str | None = None) -> list[Alarm]:
    """Those on a metric, on every subset unless one is named."""
    return [
        alarm for alarm in alarms if alarm.metric == metric and (subset is None or (alarm.subset or "all") == subset)
    ]


def mark_cells(axes: Axes, alarms: Sequence[Alarm], layers: Sequence[int], steps: Sequence[int]) -> bool:
    """Ring the cells of a picture by layer and step, a whole profile above its column; whether there were any.

    Args:
        axes: on which a cell lies at its place in ``layers`` and ``steps``.
        alarms: on what is drawn there; those at steps that are not are left out.
        layers, steps: what is drawn, in its order.
    """
    rows, columns = ({number: place for place, number in enumerate(of)} for of in (layers, steps))
    shown = [alarm for alarm in alarms if alarm.step in columns]
    cells = [(columns[alarm.step], rows[alarm.layer]) for alarm in shown if alarm.layer in rows]
    whole = sorted({columns[alarm.step] for alarm in shown if alarm.layer is None})
    if cells:
        across, up = zip(*cells, strict=True)
        axes.plot(across, up, "o", color="none", markeredgecolor="white", markersize=9, markeredgewidth=3.4)
        axes.plot(across, up, "o", color="none", markeredgecolor=ALARM_COLOUR, markersize=9, markeredgewidth=1.8)
    mark_steps(axes, whole)
    return bool(cells or whole)


def mark_steps(axes: Axes, steps: Sequence[int]) -> None:
    """Triangles along the upper edge of a picture, at these places on its x axis."""
    if steps:
        above = axes.get_xaxis_transform()
        axes.plot(
            steps, [1.0] * len(steps), "v", color=ALARM_COLOUR, markersize=8, transform=above, clip_on=False, zorder=5
        )
