"""All that the page's script draws from, as one tree of plain dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from repdyn.metrics import FAMILIES, METRICS, metric_info
from repdyn.metrics.names import settings_in_words
from repdyn.report.axes import Part, course_axes, value_axis
from repdyn.report.comparison import (
    MAX_BANDS,
    MAX_PANELS,
    Members,
    courses_part,
    members_of,
    panels_part,
    profiles_part,
)
from repdyn.report.entries import Entry, ReportRun, preferred
from repdyn.report.parts import heads_part, heatmap_part, means_part, profile_part
from repdyn.report.series import MetricSeries
from repdyn.report.themes import DARK, DARKENED, LIGHT, TRAIL_COLOURS, run_colours, transparent
from repdyn.tables.families import family_of
from repdyn.tables.runs import differences
from repdyn.tables.style import family_title, metric_title, short_subset_title, subset_title


def tree_of(subject: ReportRun) -> Part:
    """Figures of every run, metric and subset, axes, themes, names; arrays as they are."""
    entries = subject.entries
    metrics = list(dict.fromkeys(metric for entry in entries for metric, _ in entry.courses))
    subsets = {subset for entry in entries for _, subset in entry.courses}
    steps = {step for entry in entries if not entry.finished for step in (*entry.run.steps, *entry.loss.index)}
    tokens = {count for entry in entries for count in entry.tokens.values()}
    return {
        "start": [*preferred(entries), _opened(entries)],
        "entries": [_entry(entry) for entry in entries],
        "compared": _compared(entries, metrics) if len(entries) > 1 else {},
        "axes": course_axes(sorted(map(int, steps)), sorted(tokens)),
        "metrics": {metric: {"title": metric_title(metric), "meaning": _meaning(metric)} for metric in metrics},
        "subsets": {subset: [subset_title(subset), short_subset_title(subset)] for subset in sorted(subsets)},
        "families": _families(metrics),
        "alerts": any(entry.alerts for entry in entries),
        "themes": {"light": LIGHT, "dark": DARK},
        "darkened": _darkened(entries),
    }


def _opened(entries: Sequence[Entry]) -> str:
    """The place of the run that a report opens with: the first that moves."""
    return str(next((place for place, entry in enumerate(entries) if len(entry.run.steps) > 1), 0))


def _entry(entry: Entry) -> Part:
    metrics: dict[str, Part] = {}
    for (metric, subset), course in entry.courses.items():
        metrics.setdefault(metric, {})[subset] = _course(entry, course)
    return {
        "label": entry.label,
        "finished": entry.finished,
        "tokens": entry.tokens or None,
        "metrics": metrics,
    }


def _course(entry: Entry, course: MetricSeries) -> Part:
    several = len(course.steps) > 1 and not entry.finished
    n_layers = len(course.layers)
    used = f"{n_layers} layers" if course.n_used == n_layers else f"{course.n_used} of {n_layers} layers"
    return {
        "layers": course.layers,
        "steps": course.steps,
        "values": course.values,
        "margins": course.margins,
        "reasons": course.reasons,
        "floor": value_axis(course.metric, course.values, course.margins)[1],
        "interval": course.interval,
        "note": "; ".join(filter(None, [f"mean over {used}", course.interval])),
        "profile": profile_part(entry, course),
        "heatmap": heatmap_part(entry, course) if several else None,
        "means": means_part(entry, course) if several else None,
        "heads": heads_part(course),
        "by_head": course.by_head,
    }


def _compared(entries: Sequence[Entry], metrics: Sequence[str]) -> dict[str, Part]:
    colours = run_colours([entry.run for entry in entries])
    why = differences([entry.run for entry in entries])
    warning = f" They do not all compare: {why}." if why else ""
    found: dict[str, Part] = {}
    for key in dict.fromkeys(
        key for metric in metrics for entry in entries for key in entry.courses if key[0] == metric
    ):
        members = members_of(entries, key)
        if len(members) < 2:
            continue
        panels = panels_part(members)
        n_panels = len(panels["data"]) if panels else 0
        found.setdefault(key[0], {})[key[1]] = {
            "note": f"{len(members)} of {len(entries)} runs; decoders blue, encoders orange{_bands(members)}.{warning}",
            "profiles": profiles_part(members, colours),
            "courses": courses_part(members, colours),
            "panels": panels,
            "panels_note": f"one scale of colours{f'; the first {MAX_PANELS} runs' * (n_panels == MAX_PANELS)}",
        }
    return found


def _bands(members: Members) -> str:
    """What to add on the bands of several runs' lines; nothing where there are too many for bands."""
    told = sorted({course.interval for *_, course in members if course.interval})
    return "".join(f"; {one}" for one in told) if len(members) <= MAX_BANDS else ""


def _families(metrics: Sequence[str]) -> list[list[object]]:
    groups = {
        family: [m for m in metrics if family_of(m) == family] for family in [*FAMILIES, *map(family_of, metrics)]
    }
    return [[family_title(family), members] for family, members in groups.items() if members]


def _meaning(metric: str) -> str:
    info, settings = metric_info(metric), settings_in_words(metric)
    if info.base not in METRICS:
        return "a metric of your own"
    low, high = info.range
    settings = f", with {settings}" if settings else ""
    return f"{info.meaning}{settings}; from {low:g} to {high:g}".replace("inf", "\u221e")


def _darkened(entries: Sequence[Entry]) -> dict[str, str]:
    """What stands for each colour, and for its transparent twin, on a dark background."""
    runs = dict(run_colours([entry.run for entry in entries]).values())
    whole = {**TRAIL_COLOURS, **runs, **DARKENED}
    return whole | {transparent(colour): transparent(instead) for colour, instead in whole.items()}
