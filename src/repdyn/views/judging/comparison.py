"""Statements about several runs: in which settings they differ, and in which metrics most, by how
much, in which layers and since when."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import permutation_test

from repdyn.utils.numbers import number_text
from repdyn.views.judging.effects import Effect, change_size
from repdyn.views.judging.insight import Insight, report_link
from repdyn.views.judging.metrics import MIN_CHANGE
from repdyn.views.judging.neighbours import CLOUDS_DIFFER, distinct_of
from repdyn.views.judging.run import chosen_series, ranked
from repdyn.views.judging.settings import settings_statements
from repdyn.views.tables.runs import MeasuredRun, differences
from repdyn.views.tables.seeds import SeedGroup, SeedSeries, with_seeds
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import metric_title, short_subset_title


def comparison_statements(
    described: Sequence[MeasuredRun], seeds: Sequence[SeedGroup]
) -> list[Insight]:
    """Return in which settings runs differ, and in which metrics most, the largest difference
    first; and in which they agree.

    Compared are the means over layers, at the last step that all have or else at the end of each,
    of the two runs with the highest and the lowest one. They differ if the interval of the ratio of
    two independent values leaves out 1, and the ratio exceeds 1 by
    :data:`repdyn.views.judging.metrics.MIN_CHANGE`. A difference of a dimension that all runs have
    on distinct tokens, or on distinct inputs, too is one if both clouds have it, and is otherwise
    said to be of one of them.
    Runs that do not compare, or are one run on two probes, have no statement.

    Args:
        described: the runs.
        seeds: those that are seeds of one model, which count as one run.
    """
    statements = [] if len(described) < 2 else [*settings_statements(described)]
    if len({run.key for run in described}) < max(2, len(described)) or differences(described):
        return statements
    runs = with_seeds(described, seeds)
    if len(runs) < 2:
        return statements
    statements += _metric_statements(runs)
    if any(insight.kind in {*_DIFFERENT, _AGREEMENT} for insight in statements):
        statements += _of_single_seeds(runs)
    return ranked(statements)


def _metric_statements(runs: Sequence[MeasuredRun]) -> Iterator[Insight]:
    """Yield in which metrics runs differ, and in which they agree."""
    agreeing: list[str] = []
    of_runs = [{series.key: series for series in chosen_series(run)} for run in runs]
    for key in of_runs[0]:
        if not all(key in others for others in of_runs):
            continue
        compared = _compared_on_both(runs, [series[key] for series in of_runs])
        if isinstance(compared, Insight):
            yield compared
        elif compared:
            agreeing.append(metric_title(key[0]))
    if agreeing:
        common = set.intersection(*(set(run.steps) for run in runs))
        at = "at the end"
        if common and not any(run.finished for run in runs):
            at = f"at step {max(common):,}"
        what = f"No difference between these runs exceeds {MIN_CHANGE:.0%} and its interval {at}"
        yield Insight("note", _AGREEMENT, f"{what}: {', '.join(agreeing)}.")


_MOST_PERMUTATIONS = 9_999
"""Ways to deal seeds to two configurations that are tried; with fewer ways, each once."""
_DIFFERENT = ("difference", CLOUDS_DIFFER)
"""Kinds of the statements that two runs differ in a metric."""
_AGREEMENT = "agreement"
"""Kind of the statement that they do not."""


def _of_single_seeds(runs: Sequence[MeasuredRun]) -> Iterator[Insight]:
    """Yield that what is said of runs of one seed is not said of their configurations, since their
    intervals leave out what another seed would change.
    """
    single = [run.label for run in runs if not isinstance(run, SeedGroup)]
    if single:
        whose = "One seed each" if len(single) == len(runs) else f"One seed of {', '.join(single)}"
        sentence = (
            f"{whose}: this holds for these runs, not for their configurations, each of which "
            "needs several seeds; such intervals are over probes, not over seeds."
        )
        yield Insight("note", "single seeds", sentence, weight=1.0)


def _compared_on_both(
    runs: Sequence[MeasuredRun], members: Sequence[MetricSeries]
) -> Insight | bool:
    """Compare a metric on its vectors, and on those without repeats where all runs have them."""
    compared = _compared(runs, members)
    beside = [distinct_of(series, run.series) for run, series in zip(runs, members, strict=True)]
    on_distinct = [series for series in beside if series is not None]
    if len(on_distinct) < len(runs) or len({series.subset for series in on_distinct}) > 1:
        return compared
    name = short_subset_title(on_distinct[0].subset)
    return _on_both_clouds(compared, _compared(runs, on_distinct), name)


def _on_both_clouds(
    on_all: Insight | bool, on_distinct: Insight | bool, name: str
) -> Insight | bool:
    """Join what :func:`_compared` says of the dimension of all vectors and of those without
    repeats, which have this name."""
    if isinstance(on_all, Insight) and isinstance(on_distinct, Insight):
        evidence = {f"distinct_{name}": value for name, value in on_distinct.evidence.items()}
        evidence = {**on_all.evidence, **evidence}
        higher, lower = (str(on_distinct.evidence[name]) for name in ("higher", "lower"))
        highest, lowest = (
            number_text(float(on_distinct.evidence[name])) for name in ("highest", "lowest")
        )
        if (higher, lower) == (on_all.evidence["higher"], on_all.evidence["lower"]):
            sentence = f"{on_all.sentence[:-1]}; so it is on {name} ({highest}, {lowest})."
            return replace(on_all, sentence=sentence, evidence=evidence)
        on_distinct_it = f"it is higher in {higher} ({highest}) than in {lower} ({lowest})"
        sentence = f"On all vectors alone: {on_all.sentence[:-1]}; on {name}"
        sentence = f"{sentence} {on_distinct_it}."
        return replace(on_all, kind=CLOUDS_DIFFER, sentence=sentence, evidence=evidence)
    for difference, of, other in (
        (on_all, "all vectors", name),
        (on_distinct, name, "all vectors"),
    ):
        if isinstance(difference, Insight):
            sentence = f"On {of} alone: {difference.sentence[:-1]}; on {other} none is shown."
            return replace(difference, kind=CLOUDS_DIFFER, sentence=sentence)
    return on_all and on_distinct


class _Compared(NamedTuple):
    """A metric of several runs, at the steps and in the layers that are compared."""

    members: Sequence[MetricSeries]
    steps: list[int]
    """The steps that all have; empty where the ends are compared."""
    values: list[np.ndarray]
    """Of each run, of shape (n_layers, n_steps)."""
    means: np.ndarray
    """Over layers, of shape (n_runs, n_steps)."""
    margins: np.ndarray
    layers: list[np.ndarray]
    """Which layers of each run the means are over."""

    @property
    def has_same_layers(self) -> bool:
        return len({series.layers for series in self.members}) == 1

    def since(self, high: int, low: int) -> int:
        """Return the first step from which on the higher run lies beyond both margins."""
        distance = self.means[high] - self.means[low]
        beyond = distance > np.nan_to_num(np.hypot(self.margins[high], self.margins[low]))
        return self.steps[np.flatnonzero(~beyond[:-1]).max(initial=-1) + 1]

    def by_seed(self, run: int) -> np.ndarray | None:
        """Return the mean over layers of each seed of a run at the end; None of a single one."""
        series = self.members[run]
        if not isinstance(series, SeedSeries):
            return None
        column = series.steps.index(self.steps[-1]) if self.steps else -1
        return series.by_seed[:, self.layers[run], column].mean(axis=1)

    def widest_layer(self, high: int, low: int) -> tuple[int, str]:
        """Return the layer in which two runs differ most at the end, and both values as text."""
        ends = self.values[high][:, -1], self.values[low][:, -1]
        widest = int(np.nanargmax(np.abs(ends[0] - ends[1])))
        return self.members[0].layers[widest], " and ".join(
            number_text(values[widest]) for values in ends
        )


def _cells_to_compare(
    runs: Sequence[MeasuredRun], members: Sequence[MetricSeries]
) -> _Compared | None:
    """Return what is compared of a metric; None where a run has no layer with a value."""
    shared = sorted(set.intersection(*(set(series.steps_with_values) for series in members)))
    # a finished model has no steps, so that its end is compared with the ends of the others
    steps = [] if any(run.finished for run in runs) else shared
    of_members: list[np.ndarray] = []
    margins_of_members: list[np.ndarray] = []
    layers: list[np.ndarray] = []
    for series in members:
        columns = [series.steps.index(step) for step in steps] or [-1]
        of_members.append(series.values[:, columns])
        margins_of_members.append(series.margins[:, columns])
        layers.append(~np.isnan(series.values[:, columns[-1]]) & series.in_means)
    if len({series.layers for series in members}) == 1:
        # a layer without a value in one run would shift the mean of the others against it
        in_all = np.logical_and.reduce(layers)
        layers = [in_all for _ in members]
    if not all(of_run.any() for of_run in layers):
        return None
    return _Compared(
        members=members,
        steps=steps,
        values=of_members,
        means=_means_over(layers, of_members),
        margins=_means_over(layers, margins_of_members),
        layers=layers,
    )


def _means_over(layers: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of each grid over some of its layers."""
    pairs = zip(grids, layers, strict=True)
    return np.array([of_run[chosen].mean(axis=0) for of_run, chosen in pairs])


def _compared(runs: Sequence[MeasuredRun], members: Sequence[MetricSeries]) -> Insight | bool:
    """Return the difference of the two runs that differ most, or whether all are known to agree."""
    compared = _cells_to_compare(runs, members)
    if compared is None:
        return False
    high = int(compared.means[:, -1].argmax())
    low = int(compared.means[:, -1].argmin())
    highest = float(compared.means[high, -1])
    lowest = float(compared.means[low, -1])
    # a difference is told as a ratio
    if lowest <= 0:
        return False
    relative = compared.margins[high, -1] / highest, compared.margins[low, -1] / lowest
    effect = Effect(math.log(highest / lowest), math.hypot(*relative))
    if effect.log_ratio <= math.log1p(MIN_CHANGE) or effect.low <= 0:
        return True
    return _difference(runs, compared, high, low, effect)


def _difference(
    runs: Sequence[MeasuredRun], compared: _Compared, high: int, low: int, effect: Effect
) -> Insight:
    """Return the statement that one run is higher than another by an effect."""
    highest = float(compared.means[high, -1])
    lowest = float(compared.means[low, -1])
    at = "at the end"
    steps: list[int] = []
    layers: tuple[int, ...] = ()
    if compared.steps:
        last = compared.steps[-1]
        first = compared.since(high, low)
        at = f"at step {last:,}"
        if first < last:
            at += f", and since step {first:,}"
        steps = list(dict.fromkeys([first, last]))
    if compared.has_same_layers:
        layer, ends = compared.widest_layer(high, low)
        layers = (layer,)
        at += f", most in layer {layer} ({ends})"
    metric, subset = compared.members[0].key
    about = f"mean over layers{'' if subset == 'all' else f', {short_subset_title(subset)}'},"
    size = (
        str(effect)
        if math.isfinite(effect.half_width)
        else f"{change_size(effect.log_ratio)} (no interval is known)"
    )
    of_how_many = f" of {len(runs)} runs" if len(runs) > 2 else ""
    sentence = (
        f"{metric_title(metric)}, {about} is higher in {runs[high].label} ({number_text(highest)}) "
        f"than in {runs[low].label} "
        f"({number_text(lowest)}){of_how_many} by {size} {at}."
    )
    over_seeds = _test_over_seeds(compared.by_seed(high), compared.by_seed(low))
    sentence += over_seeds.sentence
    higher = runs[high]
    shown = higher.members[0] if isinstance(higher, SeedGroup) else higher
    return Insight(
        severity="note",
        kind="difference",
        sentence=sentence,
        metric=metric,
        subset=subset,
        layers=layers,
        steps=tuple(steps),
        evidence={
            "highest": highest,
            "lowest": lowest,
            "log_ratio": effect.log_ratio,
            "half_width": effect.half_width,
            "higher": higher.label,
            "lower": runs[low].label,
            **over_seeds.evidence,
        },
        # the share by which the lower value is below the higher one
        weight=1 - math.exp(-effect.log_ratio),
        link=report_link(
            shown.label, metric=metric, subset=subset, step=steps[-1] if steps else None
        ),
    )


class _SeedTest(NamedTuple):
    """The result of a permutation test of two configurations over their seeds."""

    sentence: str = ""
    evidence: Mapping[str, float] = {}


def _test_over_seeds(high: np.ndarray | None, low: np.ndarray | None) -> _SeedTest:
    """Test whether the means of two configurations differ, from a value of each seed, by
    permutation; the result is empty where one of them is a single run.
    """
    if high is None or low is None:
        return _SeedTest()
    p = float(
        permutation_test(
            (high, low),
            lambda one, other, axis: one.mean(axis) - other.mean(axis),
            vectorized=True,
            n_resamples=_MOST_PERMUTATIONS,
            rng=0,
        ).pvalue
    )
    # twice the share of the ways that are as extreme, of which the observed one is one
    n_ways = math.comb(len(high) + len(low), len(high))
    lowest = 2 / min(n_ways, _MOST_PERMUTATIONS + 1)
    sentence = (
        f" Over {len(high)} against {len(low)} seeds p = {p:.2g} by permutation, which cannot be "
        f"below {lowest:.2g}."
    )
    return _SeedTest(sentence, {"p_of_seeds": p, "lowest_p_of_seeds": lowest})
