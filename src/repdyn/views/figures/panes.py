"""The panels of a figure of several metrics: which metric and tokens stand in which, and how they
are arranged.
"""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle
from typing import Any, Literal, NamedTuple

from repdyn.metrics import METRICS
from repdyn.metrics.names import base_name
from repdyn.views.charts.axes import BEYOND, FAR_ABOVE, axis_of_lines, highest_of, scaled_by_blocks
from repdyn.views.charts.description import Chart, Line, Panel
from repdyn.views.charts.lines import notes
from repdyn.views.display import display_of
from repdyn.views.tables.frames import NO_CLASSES, in_order, in_registry_order
from repdyn.views.tables.style import (
    CLOUD_COLOURS,
    ORDERED,
    SUBSET_COLOURS,
    metric_title,
    metric_unit,
    shades,
    subset_title,
    title_among,
)
from repdyn.views.tables.style import short_subset_title as short

PAIRS = (("frequent", "rare"), ("function", "content"), ("simple", "complex"))
"""Classes of tokens that are compared with each other."""
SMALL = (3.5, 2.35)
"""Size in inches of a panel of many metrics."""
LARGE = (4.6, 3.4)
"""Size of a panel of a single metric."""
WIDE = (6.4, 2.6)
"""Size of a panel across the whole figure."""
APART = "panels that lie far higher have a scale of their own"
_MAX_COLUMNS = 4
_TITLE_WIDTH = {SMALL: 50, LARGE: 50, WIDE: 80}


class Trace(NamedTuple):
    """One line: a metric on a subset, under a label that distinguishes it from the others of the
    panel.
    """

    metric: str
    subset: str
    label: str
    layer: int | None = None
    """The layer of a line against step; None for the mean over layers."""

    @property
    def key(self) -> tuple[str, str]:
        return self.metric, self.subset


@dataclass(frozen=True, slots=True)
class Pane:
    """One panel, whose metrics share a scale."""

    title: str
    tokens: str
    """The tokens as text; empty if the lines are labelled with them."""
    traces: tuple[Trace, ...]
    ordered: bool = False
    """Whether the lines have an order, shown by their colours."""
    pair: bool = False
    """Whether there are two lines with a gap to be shaded."""

    @property
    def metric(self) -> str:
        return self.traces[0].metric

    @property
    def unit(self) -> str:
        return metric_unit(self.metric)

    @property
    def quantity(self) -> str:
        """Return the quantity of the values, on whichever tokens and before or after the
        feed-forward part.

        Panels of one quantity share a scale.
        """
        return self.unit if self.unit == "dimension" else self.metric.removesuffix("_attention")

    @property
    def colours(self) -> tuple[str, ...]:
        """Return a colour for each line; both clouds have theirs in every chart."""
        if self.ordered and len(self.traces) > 1:
            return shades(ORDERED, len(self.traces), 0.05, 0.85)
        if self.pair:
            return SUBSET_COLOURS[0], SUBSET_COLOURS[-1]
        colours: list[str | None] = []
        for trace in self.traces:
            colour = None if trace.layer is not None else CLOUD_COLOURS.get(trace.subset)
            # of two clouds without repeats the first has it
            colours.append(None if colour in colours else colour)
        left = [colour for colour in SUBSET_COLOURS if colour not in colours]
        if any(colours):
            left.sort(key=lambda colour: colour in CLOUD_COLOURS.values())
        others = cycle(left)
        return tuple(colour or next(others) for colour in colours)


def panes_of(
    keys: Iterable[tuple[str, str]],
    along: Literal["depth", "step", "runs"],
    name: Callable[[str], str] = short,
    embeddings: Container[tuple[str, str]] = (),
) -> list[Pane]:
    """Return the panels of metrics, each with a subset on which it has a value; ``name`` names a
    subset.

    Over depth, metrics on one scale that differ in a number share a panel, and any other metric has
    one for all tokens and one without sinks. Against step these two share one, with the embedding
    output for metrics that show it and have a value there, which are among ``embeddings``. Two
    contrasted classes of tokens share one, and so do all other classes. Of several runs, each
    metric and subset has a panel of its own, except contrasted classes.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for metric, subset in keys:
        # a variant with other settings does not belong to the group
        panel = display_of(metric).panel if metric == base_name(metric) and along != "runs" else ""
        groups.setdefault(panel or metric, {}).setdefault(metric, []).append(subset)
    panes: list[Pane] = []
    for panel, members in groups.items():
        subsets = in_order({subset for measured in members.values() for subset in measured})
        if len(members) > 1:
            for subset in subsets:
                of_subset = [metric for metric, measured in members.items() if subset in measured]
                lines = tuple(
                    Trace(metric, subset, display_of(metric).line) for metric in of_subset
                )
                panes.append(Pane(panel, name(subset), lines, ordered=True))
        else:
            (metric,) = members
            panes += _panes(metric, subsets, along, name, embeddings)
    # metrics with fewer panels than fit a row come last if one metric fills a row
    counts = Counter(pane.metric for pane in panes)
    of_one = max(counts.values())
    return (
        sorted(panes, key=lambda pane: counts[pane.metric] < of_one)
        if 2 < of_one <= _MAX_COLUMNS
        else panes
    )


def _panes(
    metric: str,
    subsets: Sequence[str],
    along: str,
    name: Callable[[str], str],
    embeddings: Container[tuple[str, str]],
) -> list[Pane]:
    """Return the panels of one metric that shares none with another.

    Over runs, each subset has a panel, since the lines of a panel are the runs. Over steps, all
    subsets of whole texts share one. Classes of tokens share one in any case, and each pair of
    subsets that are compared has one.
    """
    names = {subset: title_among(subset, subsets, name(subset)) for subset in subsets}

    def pane(subsets: Iterable[str], tokens: str, *, pair: bool = False) -> Pane:
        lines = tuple(Trace(metric, subset, names[subset]) for subset in subsets)
        return Pane(metric_title(metric), tokens, lines, pair=pair)

    whole, classes, pairs = _by_kind(subsets)
    of_pairs = [pane(pair, " and ".join(pair), pair=True) for pair in pairs]
    if along == "runs":
        return [*(pane([subset], names[subset]) for subset in (*whole, *classes)), *of_pairs]
    of_whole = [pane([subset], names[subset]) for subset in whole]
    if along == "step" and whole:
        together = pane(whole, "" if len(whole) > 1 else names[whole[0]])
        of_whole = [_with_embeddings(together, embeddings)]
    of_classes = []
    if classes:
        tokens = names[classes[0]] if len(classes) == 1 else "classes of tokens"
        of_classes = [pane(classes, tokens)]
    return [*of_whole, *of_pairs, *of_classes]


def _by_kind(
    subsets: Sequence[str],
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Return the subsets of whole texts, the classes of tokens, and the pairs that are compared."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(subsets)]
    whole = [subset for subset in subsets if subset in NO_CLASSES]
    elsewhere = {*whole, *chain(*pairs)}
    classes = [subset for subset in subsets if subset not in elsewhere]
    return whole, classes, pairs


def _with_embeddings(pane: Pane, embeddings: Container[tuple[str, str]]) -> Pane:
    """Return a panel of means over layers, with a line of the first of them at layer 0 where that
    is among ``embeddings`` and the metric shows it.
    """
    first = pane.traces[0]
    if first.key not in embeddings or not display_of(first.metric).shows_embeddings:
        return pane
    if len(pane.traces) > 1:
        of_layer_0 = first._replace(label=f"{first.label},\nlayer 0", layer=0)
        return replace(pane, traces=(*pane.traces, of_layer_0))
    mean = first._replace(label="mean over layers")
    return replace(pane, traces=(mean, first._replace(label="layer 0", layer=0)))


def in_panel_order(metrics: Iterable[str]) -> list[str]:
    """Return metrics in the order of panels below each other: the dimension first, whose panel has
    the loss too, and those of the user's own last.

    >>> in_panel_order(["anisotropy", "my_metric", "two_nn"])
    ['two_nn', 'anisotropy', 'my_metric']
    """
    ordered = in_registry_order(metrics)
    registered = [metric for metric in ordered if base_name(metric) in METRICS]
    return [*reversed(registered), *(metric for metric in ordered if metric not in registered)]


@dataclass(frozen=True)
class Board:
    """Panels of one size in rows."""

    panes: Sequence[Pane]
    panel: tuple[float, float] = SMALL
    of: str = "tokens"
    """What the vectors are the states of."""

    @property
    def columns(self) -> int:
        """Return the number of panels in a row, such that those of one metric share a row if
        possible.
        """
        number = len(self.panes)
        counts = set(Counter(pane.metric for pane in self.panes).values())
        if self.panel == WIDE:
            return 1
        if self.panel == LARGE:
            return min(3, number)
        if 2 < max(counts) <= _MAX_COLUMNS:
            return max(counts)
        if counts == {2}:
            return _MAX_COLUMNS if number > 6 else 2
        if number in {4, 2, 1}:
            return min(2, number)
        return 3 if number <= 9 and number not in {7, 8} else _MAX_COLUMNS

    @property
    def subsets(self) -> list[str]:
        """Return the subsets that have a line, in order."""
        return in_order({subset for _, subset in self._keys})

    @property
    def _keys(self) -> set[tuple[str, str]]:
        return {trace.key for pane in self.panes for trace in pane.traces}

    def about_tokens(self) -> str:
        """Return which tokens all small panels show, or the meaning of a short name for tokens."""
        if self.panel == SMALL and len(self.subsets) == 1:
            return subset_title(self.subsets[0], self.of)
        is_short = self.panel == SMALL and "no_sink" in self.subsets
        return f"{short('no_sink')}: {subset_title('no_sink')}" if is_short else ""

    def chart(
        self,
        panels: Sequence[Panel],
        *,
        legend_width: float = 0.0,
        panel_legend_width: float = 0.0,
        is_over_depth: bool = False,
        caption: str = "",
        **texts: Any,
    ) -> Chart:
        """Return the chart of a panel for each pane, here given titles, the scales of
        :meth:`_on_scales`, and labels of the x axis on the lowest, with room in inches for a legend
        of all and for those in a column."""
        on_scales = self._on_scales(panels)
        n_quantities = len({pane.quantity for pane in self.panes})
        if len(set(map(id, on_scales))) > n_quantities:
            caption = notes(caption, APART)
        if is_over_depth:
            by_blocks = [scaled_by_blocks(lines) for lines in on_scales]
            caption = notes(caption, BEYOND if by_blocks != on_scales else "")
            on_scales = by_blocks
        arranged = []
        for number, (panel, pane) in enumerate(zip(panels, self.panes, strict=True)):
            x = panel.x if number + self.columns >= len(panels) else replace(panel.x, label="")
            y = axis_of_lines(pane.metric, on_scales[number], pane.unit)
            if self.panel == LARGE and number % self.columns:
                y = replace(y, label="")
            arranged.append(replace(panel, title=self._title(pane) + panel.title, x=x, y=y))
        named = {
            number % self.columns for number, pane in enumerate(self.panes) if len(pane.traces) > 1
        }
        width, height = self.panel
        width = self.columns * width + len(named) * panel_legend_width + legend_width
        return Chart(
            panels=arranged,
            columns=self.columns,
            size=(max(7.2, width), 1.1 + -(-len(panels) // self.columns) * height),
            is_small=self.panel == SMALL,
            shares_x=self.panel == WIDE,
            caption=caption,
            **texts,
        )

    def _on_scales(self, panels: Sequence[Panel]) -> list[list[Line]]:
        """Return for each panel the lines that share its scale: those of one quantity, but for what
        reaches more than :data:`FAR_ABOVE` times as high, beside which they would lie flat."""
        by_quantity: defaultdict[str, list[int]] = defaultdict(list)
        for number, pane in enumerate(self.panes):
            by_quantity[pane.quantity].append(number)
        on_scales: list[list[Line]] = [[] for _ in panels]
        for numbers in by_quantity.values():
            groups = [numbers]
            if "log" not in display_of(self.panes[numbers[0]].metric).scale:
                groups = _in_reach({number: highest_of(panels[number].lines) for number in numbers})
            for group in groups:
                shared = [line for number in group for line in panels[number].lines]
                for number in group:
                    on_scales[number] = shared
        return on_scales

    def _title(self, pane: Pane) -> str:
        width = _TITLE_WIDTH[self.panel]
        if self.panel == SMALL:
            several = len(self.subsets) > 1
            return textwrap.fill(pane.title, width) + (
                f"\n{pane.tokens}" if several and pane.tokens else ""
            )
        tokens = pane.tokens
        if len(pane.traces) == 1:
            (trace,) = pane.traces
            of_metric = {subset for metric, subset in self._keys if metric == pane.metric}
            title = subset_title(trace.subset, self.of)
            tokens = title_among(trace.subset, of_metric, title)
        has_one_metric = len({pane.metric for pane in self.panes}) == 1
        # the title of the figure names the only metric
        title = "" if has_one_metric and self.panel == LARGE else pane.title
        return textwrap.fill(", ".join(filter(None, [title, tokens])), width)


def _in_reach(highest: Mapping[int, float]) -> list[list[int]]:
    """Return panels in groups, each without those above which its highest lies far, given how high
    each panel reaches.

    >>> _in_reach({0: 5.0, 1: 58.0, 2: 4.0})
    [[1], [0, 2]]
    """
    groups = []
    left = list(highest)
    while left:
        top = max(highest[number] for number in left)
        group = [number for number in left if not top > FAR_ABOVE * highest[number] > 0]
        groups.append(group)
        left = [number for number in left if number not in group]
    return groups
