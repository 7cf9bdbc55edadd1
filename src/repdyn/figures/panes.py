"""The panels of an overview: which metrics and token subsets share one, and the labels of its lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from repdyn.metrics import metric_info
from repdyn.metrics.names import base_name
from repdyn.tables.families import defined_subsets, members_of
from repdyn.tables.frames import NO_CLASSES, in_order, of_metric
from repdyn.tables.style import metric_title, metric_unit, short_subset_title

PAIRS = (("frequent", "rare"), ("function", "content"), ("simple", "complex"))
"""Classes of tokens that are compared with each other."""

_MAX_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Trace:
    """One line: a metric on a token subset."""

    metric: str
    subset: str
    label: str
    """Label that distinguishes it from the other lines of the panel."""
    layer: int | None = None
    """The layer of a line against step; None for the mean over layers."""


@dataclass(frozen=True, slots=True)
class Pane:
    """One panel of an overview."""

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
        """The first metric of the panel: all metrics of a panel share a scale."""
        return self.traces[0].metric

    @property
    def unit(self) -> str:
        return metric_unit(self.metric)


def depth_panes(rows: pd.DataFrame, family: str) -> list[Pane]:
    """Return panels over depth: one for each metric on all tokens and without sinks, and panels of the classes of
    tokens.

    Metrics on one scale that differ in a number share a panel. Metrics without any value are left out.

    Raises:
        ValueError: no metric of the family was measured.
    """
    return _family_panes(
        rows, family, lambda title, metric, subsets: [_single(title, metric, subset) for subset in subsets]
    )


def step_panes(rows: pd.DataFrame, family: str) -> list[Pane]:
    """Return panels against step: all tokens and those without sinks share one, with the embedding output for metrics
    that show it.

    Raises:
        ValueError: no metric of the family was measured.
    """

    def in_one(title: str, metric: str, subsets: Sequence[str]) -> list[Pane]:
        traces = [Trace(metric, subset, short_subset_title(subset)) for subset in subsets]
        return [Pane(title, *_with_embeddings(rows, traces))] if traces else []

    return _family_panes(rows, family, in_one)


def single_panes(rows: pd.DataFrame, family: str) -> list[Pane]:
    """Return one panel for each metric and subset; two contrasted classes of tokens share one.

    Raises:
        ValueError: no metric of the family was measured.
    """
    panes = []
    for metric in members_of(rows, family):
        subsets, title = in_order(defined_subsets(rows, metric)), metric_title(metric)
        pairs = _pairs(subsets)
        unpaired = [subset for subset in subsets if not any(subset in pair for pair in pairs)]
        panes += [_single(title, metric, subset) for subset in unpaired]
        panes += [_pair(title, metric, pair) for pair in pairs]
    return _in_rows(panes)


def subsets_named(panes: Sequence[Pane]) -> list[str]:
    """Return the token subsets that have a line, in order."""
    return in_order({trace.subset for pane in panes for trace in pane.traces})


def n_columns(panes: Sequence[Pane]) -> int:
    """Return the number of panels in a row, such that those of one metric share a row if possible."""
    counts = set(_n_panels(panes).values())
    of_one = max(counts)
    if 2 < of_one <= _MAX_COLUMNS:
        return of_one
    if counts == {2}:
        return _MAX_COLUMNS if len(panes) > 6 else 2
    if len(panes) in {4, 2, 1}:
        return min(2, len(panes))
    return 3 if len(panes) <= 9 and len(panes) not in {7, 8} else _MAX_COLUMNS


def _family_panes(
    rows: pd.DataFrame, family: str, of_all: Callable[[str, str, Sequence[str]], list[Pane]]
) -> list[Pane]:
    """Return the panels of each metric, or group of metrics that share a panel.

    Args:
        rows, family: what was measured.
        of_all: the panels of a metric, by title and name, on those of its subsets that are no class of tokens.
    """
    panes = []
    for title, group, subsets in _groups(rows, family):
        if len(group) > 1:
            panes += _by_subset(title, group, subsets)
            continue
        ((metric, _),) = group.items()
        panes += of_all(title, metric, [subset for subset in subsets if subset in NO_CLASSES])
        panes += _of_classes(title, metric, subsets)
    return _in_rows(panes)


def _in_rows(panes: list[Pane]) -> list[Pane]:
    """Return the panels in order; metrics with fewer panels than fit a row come last if one metric fills a row."""
    counts = _n_panels(panes)
    of_one = max(counts.values(), default=0)
    return sorted(panes, key=lambda pane: counts[pane.metric] < of_one) if 2 < of_one <= _MAX_COLUMNS else panes


def _n_panels(panes: Sequence[Pane]) -> Counter[str]:
    """Count the panels by metric, or by the first metric of those that share panels."""
    return Counter(pane.metric for pane in panes)


def _groups(rows: pd.DataFrame, family: str) -> list[tuple[str, dict[str, list[str]], list[str]]]:
    """Return title, subsets by metric, and all subsets, of each metric or group that shares a panel and has a value."""
    groups: dict[str, dict[str, list[str]]] = {}
    for metric in members_of(rows, family):
        if subsets := defined_subsets(rows, metric):
            # a variant with other settings does not belong to the group
            panel = metric_info(metric).panel if metric == base_name(metric) else ""
            groups.setdefault(panel or metric, {})[metric] = subsets
    found = []
    for panel, group in groups.items():
        subsets = in_order({subset for measured in group.values() for subset in measured})
        # a group of one is an ordinary metric
        found.append((panel if len(group) > 1 else metric_title(next(iter(group))), group, subsets))
    return found


def _by_subset(title: str, group: Mapping[str, Sequence[str]], subsets: Sequence[str]) -> list[Pane]:
    panes = []
    for subset in subsets:
        lines = ((name, metric_info(name).line) for name, measured in group.items() if subset in measured)
        traces = tuple(Trace(name, subset, label) for name, label in lines)
        panes.append(Pane(title, short_subset_title(subset), traces, ordered=True))
    return panes


def _of_classes(title: str, metric: str, subsets: Sequence[str]) -> list[Pane]:
    """Return a panel for each pair of contrasted classes, and one for the other classes."""
    classes = [subset for subset in subsets if subset not in NO_CLASSES]
    pairs = _pairs(classes)
    rest = [name for name in classes if not any(name in pair for pair in pairs)]
    panes = [_pair(title, metric, pair) for pair in pairs]
    if len(rest) == 1:
        panes.append(_single(title, metric, rest[0]))
    elif rest:
        panes.append(Pane(title, "classes of tokens", tuple(Trace(metric, name, name) for name in rest)))
    return panes


def _with_embeddings(rows: pd.DataFrame, traces: Sequence[Trace]) -> tuple[str, tuple[Trace, ...]]:
    """Return the common tokens of the lines, and the lines, with the embedding output if the metric shows it."""
    first, tokens = traces[0], traces[0].label if len(traces) == 1 else ""
    embeddings = rows.loc[rows["layer"] == 0, ["metric", "subset", "value"]]
    there = bool(of_metric(embeddings, first.metric, first.subset)["value"].notna().any())
    if not metric_info(first.metric).shows_embeddings or not there:
        return tokens, tuple(traces)
    if tokens:
        return tokens, (replace(first, label="mean over layers"), replace(first, label="layer 0", layer=0))
    return tokens, (*traces, replace(first, label=f"{first.label},\nlayer 0", layer=0))


def _single(title: str, metric: str, subset: str) -> Pane:
    return Pane(title, short_subset_title(subset), (Trace(metric, subset, short_subset_title(subset)),))


def _pair(title: str, metric: str, pair: tuple[str, str]) -> Pane:
    return Pane(title, " and ".join(pair), tuple(Trace(metric, name, name) for name in pair), pair=True)


def _pairs(subsets: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for pair in PAIRS if set(pair) <= set(subsets)]
