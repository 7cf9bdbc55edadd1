"""Which metrics and token subsets share a panel of an overview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from repdyn.metrics import metric_info
from repdyn.metrics.names import base_name
from repdyn.tables.frames import NO_CLASSES, defined_subsets, in_order, members_of, of_metric, undefined
from repdyn.tables.style import metric_title, metric_unit, short_subset_title

PAIRS = (("frequent", "rare"), ("function", "content"), ("simple", "complex"))
"""Classes of tokens that are compared with each other."""
_MAX_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Trace:
    """One line: a metric on a token subset, under a label that distinguishes it from the others of the panel."""

    metric: str
    subset: str
    label: str
    layer: int | None = None
    """The layer of a line against step; None for the mean over layers."""


@dataclass(frozen=True, slots=True)
class Pane:
    """One panel of an overview, whose metrics share a scale."""

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


def panes_of(rows: pd.DataFrame, family: str, along: Literal["depth", "step", "runs"]) -> list[Pane]:
    """Return the panels of the metrics of a family that have a value.

    Over depth, metrics on one scale that differ in a number share a panel, and any other metric has one for all tokens
    and one without sinks. Against step these two share one, with the embedding output for metrics that show it. Two
    contrasted classes of tokens share one, and so do all other classes. Of several runs, each metric and subset has a
    panel of its own, except contrasted classes.
    """
    groups: dict[str, list[str]] = {}
    for metric in members_of(rows, family):
        if defined_subsets(rows, metric):
            # a variant with other settings does not belong to the group
            panel = metric_info(metric).panel if metric == base_name(metric) and along != "runs" else ""
            groups.setdefault(panel or metric, []).append(metric)
    panes: list[Pane] = []
    for panel, metrics in groups.items():
        by_metric = {metric: defined_subsets(rows, metric) for metric in metrics}
        subsets = in_order({subset for measured in by_metric.values() for subset in measured})
        if len(metrics) > 1:
            for subset in subsets:
                of_subset = [metric for metric in metrics if subset in by_metric[metric]]
                traces = tuple(Trace(metric, subset, metric_info(metric).line) for metric in of_subset)
                panes.append(Pane(panel, short_subset_title(subset), traces, ordered=True))
            continue
        (metric,) = metrics
        pairs = [pair for pair in PAIRS if set(pair) <= set(subsets)]
        whole = [subset for subset in subsets if subset in NO_CLASSES]
        classes = [name for name in subsets if name not in whole and not any(name in pair for pair in pairs)]
        title = metric_title(metric)
        if along == "step" and whole:
            traces = [Trace(metric, subset, short_subset_title(subset)) for subset in whole]
            panes.append(Pane(title, *_with_embeddings(rows, traces)))
        else:
            alone = [*whole, *classes] if along == "runs" else whole
            panes += [_single(title, metric, subset) for subset in alone]
        panes += [
            Pane(title, " and ".join(pair), tuple(Trace(metric, name, name) for name in pair), pair=True)
            for pair in pairs
        ]
        if along != "runs" and len(classes) == 1:
            panes.append(_single(title, metric, classes[0]))
        elif along != "runs" and classes:
            panes.append(Pane(title, "classes of tokens", tuple(Trace(metric, name, name) for name in classes)))
    if not panes:
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in undefined(rows).items())
        raise ValueError(f"expected a value of the family {family!r} at some layer and step, got none; {reasons}")
    # metrics with fewer panels than fit a row come last if one metric fills a row
    counts = Counter(pane.metric for pane in panes)
    of_one = max(counts.values())
    return sorted(panes, key=lambda pane: counts[pane.metric] < of_one) if 2 < of_one <= _MAX_COLUMNS else panes


def subsets_named(panes: Sequence[Pane]) -> list[str]:
    """Return the token subsets that have a line, in order."""
    return in_order({trace.subset for pane in panes for trace in pane.traces})


def n_columns(panes: Sequence[Pane]) -> int:
    """Return the number of panels in a row, such that those of one metric share a row if possible."""
    counts = set(Counter(pane.metric for pane in panes).values())
    if 2 < max(counts) <= _MAX_COLUMNS:
        return max(counts)
    if counts == {2}:
        return _MAX_COLUMNS if len(panes) > 6 else 2
    if len(panes) in {4, 2, 1}:
        return min(2, len(panes))
    return 3 if len(panes) <= 9 and len(panes) not in {7, 8} else _MAX_COLUMNS


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
