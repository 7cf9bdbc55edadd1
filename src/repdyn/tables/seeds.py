"""Groups of runs that are seeds of one model: the mean of a metric over them, shown in place of the single runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from repdyn.tables.effects import CONFIDENCE
from repdyn.tables.frames import LayerMean, by_stack
from repdyn.tables.runs import Key, MeasuredRun, differences, in_comparison_order, listed, spans
from repdyn.tables.series import MetricSeries
from repdyn.tables.texts import concatenated

INTERVAL = "95 % interval over seeds"
"""What a band of seeds means."""


def mean_over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over seeds and half of its 95 % interval, by Student's t with n - 1 degrees of freedom.

    Args:
        values: shape (n_seeds, ...), with at least two seeds.

    Returns:
        Two arrays of shape (...); NaN where a seed has no value.

    Raises:
        ValueError: fewer than two seeds.
    """
    n_seeds = len(values)
    if n_seeds < 2:
        raise ValueError(f"expected at least 2 seeds, got {n_seeds}; one run has no spread over seeds")
    quantile = float(stdtrit(n_seeds - 1, (1 + CONFIDENCE) / 2))
    return values.mean(axis=0), quantile * values.std(axis=0, ddof=1) / np.sqrt(n_seeds)


@dataclass(frozen=True, eq=False)
class SeedSeries:
    """One metric on one token subset over the seeds of one model, at the steps at which all of them have it.

    It is drawn like a :class:`~repdyn.tables.series.MetricSeries`: its values are means over seeds, and its margins
    halves of their intervals. A value that one seed lacks is missing.
    """

    members: tuple[MetricSeries, ...]
    """Of each seed, with the same layers."""

    @property
    def metric(self) -> str:
        return self.members[0].metric

    @property
    def subset(self) -> str:
        return self.members[0].subset

    @property
    def layers(self) -> tuple[int, ...]:
        return self.members[0].layers

    @property
    def places(self) -> np.ndarray:
        return self.members[0].places

    @property
    def depths(self) -> np.ndarray:
        return self.members[0].depths

    @cached_property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(set.intersection(*(set(member.steps) for member in self.members))))

    @cached_property
    def by_seed(self) -> np.ndarray:
        """Shape (n_seeds, n_layers, n_steps)."""
        chosen = [[member.steps.index(step) for step in self.steps] for member in self.members]
        return np.stack([member.values[:, columns] for member, columns in zip(self.members, chosen, strict=True)])

    @property
    def values(self) -> np.ndarray:
        """Shape (n_layers, n_steps): means over seeds."""
        return mean_over_seeds(self.by_seed)[0]

    @property
    def margins(self) -> np.ndarray:
        """Shape (n_layers, n_steps): halves of the 95 % intervals of the means over seeds."""
        return mean_over_seeds(self.by_seed)[1]

    @cached_property
    def _complete(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the layers and of the steps at which every seed has a value.

        They are chosen as in :func:`repdyn.tables.frames.layer_mean`: first the steps at which every seed has some
        value, then the layers without a gap at these.
        """
        missing = np.isnan(self.by_seed)
        steps = np.flatnonzero(~missing.all(axis=1).any(axis=0))
        layers = np.flatnonzero(~missing[:, :, steps].any(axis=(0, 2)) & (steps.size > 0))
        return layers, steps if layers.size else layers

    @cached_property
    def means_by_seed(self) -> pd.DataFrame:
        """Means over layers by seed (index) and step (columns), over the same layers in all seeds at all steps."""
        layers, steps = self._complete
        values = self.by_seed[:, layers][:, :, steps]
        return pd.DataFrame(values.sum(axis=1) / max(1, len(layers)), columns=np.asarray(self.steps)[steps])

    @cached_property
    def layer_mean(self) -> LayerMean:
        """The mean over seeds of their means over layers; the margin is half of its interval over seeds."""
        steps = self.means_by_seed.columns
        mean, margin = (pd.Series(found, steps) for found in mean_over_seeds(self.means_by_seed.to_numpy(float)))
        return LayerMean(mean, margin, len(self._complete[0]), len(self.layers))

    @property
    def interval(self) -> str:
        """Describe what a band means."""
        return f"band of seeds: {INTERVAL}, each a thin line"


_SEED = re.compile(r"(?:(?P<model>.+)[-_])?seed[-_]?\d+(?P<ending> \(.*\))?", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d+)?")
_UNNAMED = "seed*"
# what must be the same in all seeds, and what it is called
_SAME = {
    "model": "model classes",
    "causal": "kinds of attention",
    "parameters": "numbers of parameters",
    "layers": "selections of layers",
    "probe": "probes",
    "dim": "dimensions",
    "dtype": "precisions",
}


def model_of(run: str) -> str | None:
    """Return the name of the model that a run is one seed of, as the run's name tells; None if it names no seed.

    One part of the name, between slashes, ends with ``seed`` and a number. Parts that are a time, which tell the
    trainings of one configuration apart, are left out, and the brackets that a view puts behind a name stay.

    >>> model_of("EleutherAI/pythia-70m-seed3"), model_of("google/multiberts-seed_0"), model_of("lab/model")
    ('EleutherAI/pythia-70m', 'google/multiberts', None)
    >>> model_of("tiny-seed1/2026-11-23_09-03-01"), model_of("seed1/decoder"), model_of("t5-seed2 (encoder)")
    ('tiny', 'decoder', 't5 (encoder)')
    """
    parts = [part for part in run.split("/") if not _TIME.fullmatch(part)]
    seeds = [(place, found) for place, part in enumerate(parts) if (found := _SEED.fullmatch(part))]
    if not seeds:
        return None
    place, found = seeds[-1]
    named = [*parts[:place], *filter(None, [found["model"]]), *parts[place + 1 :]]
    return ("/".join(named) or _UNNAMED) + (found["ending"] or "")


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs of one model that differ in their seed alone; a view shows them like one run with a band."""

    name: str
    label: str
    """Short name, with the number of seeds."""
    members: tuple[MeasuredRun, ...]

    @property
    def stack(self) -> str | None:
        return self.members[0].stack

    @property
    def key(self) -> Key:
        """The key that identifies the group in a comparison."""
        return self.name, self.stack

    @property
    def causal(self) -> bool | None:
        return self.members[0].causal

    @property
    def parameters(self) -> int | None:
        return self.members[0].parameters

    @property
    def finished(self) -> bool:
        return self.members[0].finished

    @cached_property
    def steps(self) -> list[int]:
        """The steps that all seeds have."""
        return sorted(set.intersection(*(set(member.steps) for member in self.members)))

    @property
    def tokens(self) -> pd.Series:
        """Training tokens at these steps; empty unless every row of every seed knows them, and seeds agree."""
        counts = [member.tokens for member in self.members]
        if any(found.empty for found in counts):
            return counts[0].iloc[:0]
        first, *others = (found.loc[self.steps] for found in counts)
        return first if all(first.equals(other) for other in others) else first.iloc[:0]

    @cached_property
    def series(self) -> dict[tuple[str, str], SeedSeries]:
        """The series of each metric and token subset that all seeds have at a common step."""
        first, *others = (member.series for member in self.members)
        shared = [key for key in first if all(key in other for other in others)]
        found = {key: SeedSeries(tuple(member.series[key] for member in self.members)) for key in shared}
        return {key: series for key, series in found.items() if series.steps}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of all seeds at their common steps, from which a view takes design and sizes."""
        rows = concatenated([member.rows for member in self.members], ignore_index=True)
        shared = pd.Series(list(zip(rows["metric"], rows["subset"], strict=True)), rows.index).isin([*self.series])
        return rows.loc[shared & rows["step"].isin(self.steps)]

    def frames(self, frame: pd.DataFrame) -> list[pd.DataFrame]:
        """Return the rows of each seed among those of all runs, scalars and failures among them."""
        return [by_stack(frame.loc[frame["run"] == member.name])[self.stack] for member in self.members]

    @property
    def n_failed(self) -> int:
        """Number of checkpoints that could not be measured, over all seeds."""
        return sum(member.n_failed for member in self.members)

    def at_end(self) -> pd.DataFrame:
        """Return the rows of each metric at the last step that all seeds have."""
        ends = {key: series.steps[-1] for key, series in self.series.items()}
        last = [ends[key] for key in zip(self.rows["metric"], self.rows["subset"], strict=True)]
        return self.rows.loc[self.rows["step"] == last]


Compared: TypeAlias = MeasuredRun | SeedGroup
"""A line of a comparison: a run or a group of seeds."""


def seed_groups(runs: Sequence[MeasuredRun], patterns: Sequence[str] | None = None) -> list[SeedGroup]:
    """Return the groups of runs that are seeds of one model, each with at least two.

    Args:
        runs: as :func:`repdyn.tables.runs.measured_runs` returns them.
        patterns: shell patterns of names, such as ``"lab/*-gpt2-x*"``: the runs that match one are seeds of one model.
            None finds them by :func:`model_of`; none at all if it is empty.

    Raises:
        ValueError: seeds that differ in more than their seed, or have no step in common; a pattern with fewer than two
            runs; a run that two patterns match.
    """
    by_name: dict[tuple[str, str | None], list[MeasuredRun]] = {}
    for run in runs:
        if (model := model_of(run.name) if patterns is None else _matched(run.name, patterns)) is not None:
            by_name.setdefault((model, run.stack), []).append(run)
    for pattern in patterns or ():
        if (number := max((len(found) for (name, _), found in by_name.items() if name == pattern), default=0)) < 2:
            names = ", ".join(dict.fromkeys(run.name for run in runs))
            raise ValueError(f"expected a pattern of at least 2 runs as seeds, got {pattern!r} of {number} of {names}")
    return [_group(name, found, patterns) for (name, _), found in by_name.items() if len(found) > 1]


def groups_or_reason(
    runs: Sequence[MeasuredRun], patterns: Sequence[str] | None = None
) -> tuple[list[SeedGroup], str | None]:
    """Return the groups of :func:`seed_groups`, and why runs that are named like seeds are not shown as such.

    Raises:
        ValueError: as :func:`seed_groups` for seeds that the user named by patterns.
    """
    try:
        return seed_groups(runs, patterns), None
    except ValueError as error:
        if patterns is not None:
            raise
        return [], str(error)


def with_seeds(runs: Sequence[MeasuredRun], groups: Sequence[SeedGroup]) -> list[Compared]:
    """Return what a comparison shows, in its order: the groups, and the runs that are in none."""
    grouped = {member.key for group in groups for member in group.members}
    return in_comparison_order([*groups, *(run for run in runs if run.key not in grouped)])


def seed_table(groups: Sequence[SeedGroup]) -> pd.DataFrame:
    """Return the means over seeds as a table: a row for each metric, token subset, common step and layer.

    Columns:
        seeds, stack, metric, subset, step; ``layer``, empty for the mean over layers; ``n_seeds``; ``mean``, ``std`` (n
        - 1) over seeds, and ``low`` and ``high``, the ends of the 95 % interval of the mean.
    """
    columns = ["seeds", "stack", "metric", "subset", "step", "layer", "n_seeds", "mean", "std", "low", "high"]
    rows: list[tuple[object, ...]] = []
    for group in groups:
        for (metric, subset), series in group.series.items():
            cells = [(layer, series.by_seed[:, place], series.steps) for place, layer in enumerate(series.layers)]
            means = series.means_by_seed
            for layer, values, steps in [*cells, (None, means.to_numpy(float), means.columns.tolist())]:
                found = (*mean_over_seeds(values), values.std(axis=0, ddof=1))
                for step, mean, margin, std in zip(steps, *found, strict=True):
                    start = (group.name, group.stack, metric, subset, step, layer, len(group.members))
                    rows.append((*start, mean, std, mean - margin, mean + margin))
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})


def _matched(name: str, patterns: Sequence[str]) -> str | None:
    found = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
    if len(found) > 1:
        raise ValueError(f"expected one pattern of seeds for {name}, got {' and '.join(found)}; make them narrower")
    return found[0] if found else None


def _group(name: str, members: Sequence[MeasuredRun], patterns: Sequence[str] | None) -> SeedGroup:
    if why := _differences(members):
        raise ValueError(
            f"expected runs that differ in their seed alone as seeds of {name}, got {why}; name the seeds by patterns, "
            "or compare the runs without seeds"
        )
    number = f" ({len(members)} seeds)"
    label = name if patterns is not None else model_of(members[0].label) or name
    group = SeedGroup(name + number, label + number, tuple(members))
    if not group.steps:
        steps = {f"{len(run.steps)} steps to {run.steps[-1]:,}": [run.label] for run in members}
        raise ValueError(f"expected seeds of {name} with a measured step in common, got none: {listed(steps)}")
    return group


def _differences(members: Sequence[MeasuredRun]) -> str | None:
    """Describe the settings that seeds of one model must share and in which runs differ; None if there are none."""
    for column, what in _SAME.items():
        found: dict[str, list[str]] = {}
        for run in members:
            named = ", ".join(sorted({str(value) for value in run.rows[column].unique()}))
            found.setdefault(named or "none", []).append(run.label)
        if len(found) > 1:
            return f"different {what}: {listed(found)}"
    finished: dict[str, list[str]] = {}
    for run in members:
        finished.setdefault("finished" if run.finished else "training", []).append(run.label)
    if len(finished) > 1:
        return f"finished models and trainings: {listed(finished)}"
    return _of_different_layers(members) or differences(members)


def _of_different_layers(members: Sequence[MeasuredRun]) -> str | None:
    for metric, subset in members[0].series:
        found: dict[str, list[str]] = {}
        for run in members:
            if (metric, subset) in run.series:
                series = run.series[metric, subset]
                blocks = round(1 / series.layer_depth) if series.layer_depth else 0
                found.setdefault(f"{spans(series.layers)} of {blocks} blocks", []).append(run.label)
        if len(found) > 1:
            return f"different layers of {metric} ({subset}): {listed(found)}"
    return None
