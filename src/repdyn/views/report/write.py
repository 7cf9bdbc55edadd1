"""Write the report: the content of stores as one page, with the data of its script as a tree of
plain dictionaries.
"""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from repdyn.metrics import METRICS, metric_info
from repdyn.metrics.names import settings_in_words
from repdyn.store import Store, StoreLike, stores_of
from repdyn.store.schema import LOSS
from repdyn.utils.files import write_atomically
from repdyn.views.charts import on_plotly
from repdyn.views.charts.axes import shared_axis, training_axes
from repdyn.views.charts.description import Panel
from repdyn.views.charts.lines import other_cloud
from repdyn.views.charts.on_plotly import PlotlyDict
from repdyn.views.judging import DescribedRun, DescribedRuns, described_runs
from repdyn.views.judging.findings import JUDGED
from repdyn.views.report import plots, sections
from repdyn.views.report.markup import Markup, asset, joined, policy
from repdyn.views.tables.frames import CLOUDS
from repdyn.views.tables.runs import differences
from repdyn.views.tables.seeds import SeedGroup
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import (
    by_family,
    metric_title,
    short_subset_title,
    subset_title,
    title_among,
)


def page_tree(data: DescribedRuns) -> PlotlyDict:
    """Return the figures of every run, metric and subset, axes, themes and names; arrays as they
    are.
    """
    runs = data.runs
    keys = list(chain.from_iterable(run.series for run in runs))
    metrics = list(dict.fromkeys(metric for metric, _ in keys))
    subsets = {subset for _, subset in keys}
    of = runs[0].vectors_of if len({run.vectors_of for run in runs}) == 1 else "tokens"
    return {
        "start": sections.first_run(data),
        "runs": [_run_tree(run) for run in runs],
        "comparisons": _comparisons(runs, data.seeds) if len(runs) > 1 else {},
        "losses": plots.losses_plot(runs, data.seeds),
        "axes": _axes_tree(runs),
        "metrics": {metric: _metric_tree(metric) for metric in metrics},
        "subsets": {
            name: [subset_title(name, of), short_subset_title(name, of)] for name in sorted(subsets)
        },
        # names of the clouds of a dimension in a chart of two
        "clouds": {name: title_among(name, CLOUDS, subset_title(name, of)) for name in CLOUDS},
        "families": list(by_family(metrics).items()),
        "alerts": any(run.alerts for run in runs),
        "diverging": on_plotly.DIVERGING_SCALE,
        "pointed": on_plotly.POINTED,
        "themes": {"light": on_plotly.LIGHT, "dark": on_plotly.DARK},
        "dark_colours": plots.dark_colours(runs, data.seeds),
    }


def _axes_tree(runs: Sequence[DescribedRun]) -> PlotlyDict:
    """Return the axes of steps and of tokens that all runs fit on."""
    steps: set[int] = set()
    tokens: set[float] = set()
    for run in runs:
        tokens.update(run.tokens)
        if not run.finished:
            steps.update(map(int, run.steps))
            steps.update(map(int, run.loss(LOSS).index))
    axes = training_axes(sorted(steps), sorted(tokens))
    return {
        name: {"layout": on_plotly.plotly_axis(axis), "floor": axis.floor}
        for name, axis in axes.items()
    }


def _metric_tree(metric: str) -> PlotlyDict:
    return {"title": metric_title(metric), "meaning": _meaning(metric)}


def _run_tree(run: DescribedRun) -> PlotlyDict:
    metrics: dict[str, PlotlyDict] = {}
    losses = plots.loss_row(run)
    for (metric, subset), series in run.series.items():
        metrics.setdefault(metric, {})[subset] = _series_tree(run, series, losses)
    return {
        "label": run.label,
        "start": sections.opening(run),
        "finished": run.finished,
        "tokens": run.tokens.to_dict() or None,
        "metrics": metrics,
    }


def _series_tree(run: DescribedRun, series: MetricSeries, losses: Sequence[Panel]) -> PlotlyDict:
    is_trained = len(series.steps) > 1 and not run.finished
    means = series.layer_mean
    other = other_cloud(series, run.series)
    band = run.bands.get(series.key)
    # the published metrics below it, on the same subset where they were measured
    keys = [
        (name, series.subset if (name, series.subset) in run.series else "all") for name in JUDGED
    ]
    others = [run.series[key] for key in keys if key in run.series and key[0] != series.metric]
    return {
        "layers": series.layers,
        "depths": series.depths,
        "steps": series.steps,
        "values": series.values,
        "lows": series.lows,
        "highs": series.highs,
        "reasons": series.reasons,
        "floor": shared_axis(series, run.series).floor,
        "interval": series.interval,
        "profile": plots.profile_plot(run, series),
        "beside": None if other is None else other.subset,
        "baselines": None if band is None else {"name": band.name, **band.limits._asdict()},
        "heatmap": plots.heatmap_plot(run, series) if is_trained else None,
        "course": plots.course_plot(run, series, others, losses) if is_trained else None,
        "lines": plots.layers_plot(run, series) if is_trained else None,
        "mean": {
            "steps": means.mean.index.tolist(),
            "values": means.mean.to_numpy(float),
            "lows": means.low.to_numpy(float),
            "highs": means.high.to_numpy(float),
        },
        "heads": plots.heads_plot(series),
        "by_head": series.by_head,
    }


def _comparisons(runs: Sequence[DescribedRun], seeds: Sequence[SeedGroup]) -> dict[str, PlotlyDict]:
    """Return the comparisons of each metric and subset that several runs have."""
    colours = plots.compared_colours(runs, seeds)
    why = differences(runs)
    warning = f" They do not all compare: {why}." if why else ""
    comparisons: dict[str, PlotlyDict] = {}
    for metric, subset in dict.fromkeys(key for run in runs for key in run.series):
        members = plots.compared_with(runs, (), (metric, subset))
        if len(members) < 2:
            continue
        compared = plots.compared_with(runs, seeds, (metric, subset))
        heatmaps = plots.heatmaps_plot(members)
        heatmaps_note = "; grey: no value"
        if heatmaps is not None and len(heatmaps["data"]) == plots.MAX_PANELS:
            heatmaps_note += f"; the first {plots.MAX_PANELS} runs"
        # there are no bands among too many lines
        bands = (
            {member.series.interval for member in compared} - {""}
            if len(compared) <= plots.MAX_BANDS
            else ()
        )
        about = "; ".join(
            [
                f"{len(members)} of {len(runs)} runs",
                "a hue for each class of models",
                *sorted(bands),
            ]
        )
        comparisons.setdefault(metric, {})[subset] = {
            "note": f"{about}.{warning}",
            "profiles": plots.profiles_plot(compared, colours),
            "training": plots.training_plot(compared, colours),
            "heatmaps": heatmaps,
            "heatmaps_note": heatmaps_note,
        }
    return comparisons


def _meaning(metric: str) -> str:
    info = metric_info(metric)
    settings = settings_in_words(metric)
    if info.name not in METRICS:
        return info.meaning or "a metric of your own"
    low, high = info.range
    settings = f", with {settings}" if settings else ""
    return f"{info.meaning}{settings}; from {low:g} to {high:g}".replace("inf", "\u221e")


_OF_CHARTS = (
    "drawing",
    "step",
    "playing",
    "charts",
    "sparkline",
    "multiples",
    "comparison",
    "download",
)
SCRIPTS = (
    "numbers",
    "data",
    "state",
    *_OF_CHARTS,
    "controls",
    "printing",
    "stream",
    "live",
    "start",
)
"""The parts of the page's script, in the order in which they run."""


_PARTS: dict[str, Callable[[DescribedRuns], Markup]] = {
    "glance": sections.glance,
    "alerts_and_findings": sections.alerts_and_findings,
    "correlation_with_loss": sections.course_of_training,
    "measured": sections.measured,
    "failed": sections.failed_checkpoints,
    "without_value": sections.without_value,
    "citation": sections.citation,
}
"""What the page shows as HTML."""
STALE_AFTER = 1800.0
"""Seconds after which a live page is shown as no longer live, unless it is refreshed less often
than that.
"""


class Reloading(NamedTuple):
    """A page on a disk follows its training by reloading itself."""

    written: float
    """Seconds since 1970."""
    every: float
    """Seconds between two loads."""
    stale: float
    """Seconds after it was written, from which on it is no longer called live."""

    @classmethod
    def since_now(cls, every: float) -> Self:
        """Return what a page that is written now says."""
        stale = max(STALE_AFTER, 3 * every)
        return cls(written=datetime.now(UTC).timestamp(), every=every, stale=stale)


class Followed(NamedTuple):
    """The page of a server hears of new measurements, and fetches what it then shows."""

    events: str
    """Address of the events."""
    data: str
    """Address of the content, as :func:`page_data` returns it."""
    versions: Mapping[str, int]
    """Of the runs that it shows, by their keys."""


Live: TypeAlias = Reloading | Followed
"""How the page of a running training gets new content."""


def write_report(
    stores: StoreLike | Iterable[StoreLike],
    path: Path,
    *,
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    title: str | None = None,
    refresh_seconds: float | None = None,
    seeds: Sequence[str] | None = None,
    data: DescribedRuns | None = None,
) -> Path:
    """Write one page about what stores hold: no network, opens from disk, written whole or not at
    all.

    Args:
        stores: one or several with measurements, or the folders they are in; duplicates are
            ignored.
        path: of the page; a missing folder is created.
        runs: names; all runs unless given.
        probe: hash, or the beginning of one, of the only probe to show. Without it a run that was
            measured on several is there once for each.
        title: heading of the page; by default, the names of the runs.
        refresh_seconds: for a running training: interval at which the page reloads itself. The
            reader's selection is kept.
        seeds: patterns of runs that are seeds of one model, such as ``["lab/model-x*"]``. By
            default they are runs whose names differ in the number behind "seed" alone, or
            whose stored settings differ in the seed alone; an empty sequence shows each run on its
            own.
        data: what the page shows, if it has been read already.

    Returns:
        ``path``.

    Raises:
        ValueError: no store; nothing is stored; no such run or probe; no run with a measurement;
            ``seeds`` that differ in more than their seed; a time to refresh that is not positive.
    """
    if refresh_seconds is not None and not refresh_seconds > 0:
        raise ValueError(
            f"expected refresh_seconds > 0, got {refresh_seconds}; leave it out for a page that "
            "stays"
        )
    chosen = stores_of(stores)
    data = described_runs(chosen, runs, probe, seeds) if data is None else data
    live = None if refresh_seconds is None else Reloading.since_now(refresh_seconds)
    text = page(data, title or page_title(data), page_sources(chosen), live=live)
    # a name may contain what cannot be encoded
    content = text.encode(errors="backslashreplace")
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))
    return Path(path)


def page(
    data: DescribedRuns,
    title: str,
    sources: str,
    *,
    live: Live | None = None,
    links: str = "",
) -> str:
    """Return the page of some data, under its title and with the names of its stores and links to
    other pages.
    """
    texts = {"title": title, "sources": sources, "version": version("repdyn")}
    content = page_data(data, live)
    scripts = dict(_scripts())
    if isinstance(live, Followed):
        scripts["policy"] += "; connect-src 'self'"
    every = f' data-every="{live.every}"' if isinstance(live, Reloading) else ""
    return Template(asset("page.html")).substitute(
        **{name: joined([text]) for name, text in texts.items()},
        **content["packed"],
        **content["parts"],
        links=joined([links]),
        **scripts,
        every=Markup(every),
        style=asset("page.css"),
    )


def page_data(data: DescribedRuns, live: Live | None = None) -> dict[str, dict[str, str]]:
    """Return the content of a page: the ``packed`` data of its script, and HTML of the ``parts``
    below its charts.
    """
    tree, numbers = packed(page_tree(data))
    written = joined([f"Written {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC."])
    parts = {name: content(data) for name, content in _PARTS.items()}
    return {
        "packed": {"tree": as_text({**tree, "live": live and live._asdict()}), "numbers": numbers},
        "parts": {"written": written, **parts},
    }


def page_title(data: DescribedRuns) -> str:
    """Return the heading of a page: the names of its runs."""
    labels = [run.label for run in data.runs]
    named = " and ".join(labels) if len(labels) < 3 else f"{labels[0]} to {labels[-1]}"
    return named if len(labels) == 1 else f"{len(labels)} runs: {named}"


def page_sources(stores: Sequence[Store]) -> str:
    """Return the names of stores, as a page ends with them."""
    # the folder that the tracker of a run makes by default says nothing
    folders = (
        path.parent if path.name == "repdyn" else path
        for path in (store.path.resolve() for store in stores)
    )
    names = [folder.name or str(folder) for folder in folders]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more stores" if len(names) > 3 else "")


@cache
def _scripts() -> dict[str, str]:
    """Return the scripts of the page as its template names them, and the security policy that
    allows them alone.
    """
    # half a second, which tracking without a report should not pay
    from plotly.offline import (
        get_plotlyjs,
    )

    # as a browser reads it
    library = get_plotlyjs().replace("\r\n", "\n")
    early = asset("early.js")
    # one function, since a page opened from disk cannot import modules
    body = "".join(asset(f"{name}.js") for name in SCRIPTS)
    script = Markup(f'"use strict";\n(async () => {{\n{body}}})();\n')
    allowed = f"{policy(early, script, library)}; form-action 'none'"
    return {
        "plotly": _as_text(library.encode()),
        "early": early,
        "script": script,
        "policy": allowed,
    }


BLOCK = "$"
"""Key of a reference to an array: its offset among all numbers, then its shape."""

_LEVEL = 6
_PLAIN = {str, int, float, bool, type(None)}


def packed(tree: Any) -> tuple[Any, str]:
    """Return nested dictionaries and lists with a reference in place of each array, and all arrays
    as text: 32-bit floats, first bytes first, gzip, base64. Equal arrays are stored once."""
    references: dict[tuple[bytes, tuple[int, ...]], list[int]] = {}
    size = 0

    def replaced(node: Any) -> Any:
        nonlocal size
        if isinstance(node, np.ndarray):
            # seven digits are enough for charts; the store has all of them
            key = node.astype("<f4").tobytes(), node.shape
            if key not in references:
                references[key] = [size, *node.shape]
                size += node.size
            return {BLOCK: references[key]}
        if isinstance(node, dict):
            return {key: replaced(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            # most lists contain only names and numbers
            return node if _PLAIN.issuperset(map(type, node)) else [replaced(one) for one in node]
        return node

    whole = replaced(tree)
    # sign and exponent change less from value to value than the last bits do
    shuffled = np.frombuffer(b"".join(block for block, _ in references), np.uint8).reshape(-1, 4).T
    return whole, _as_text(shuffled.tobytes())


def as_text(tree: Any) -> str:
    """Return nested dictionaries and lists as text: JSON, gzip, base64."""
    text = json.dumps(tree, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # a name may contain what cannot be encoded
    return _as_text(text.encode(errors="backslashreplace"))


def _as_text(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _LEVEL, mtime=0)).decode()
