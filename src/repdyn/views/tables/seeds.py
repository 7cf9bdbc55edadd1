"""Seeds of one model: runs that differ in their random seed alone, shown as their mean with its
interval.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import pandas as pd

from repdyn.metrics import metric_info
from repdyn.utils.intervals import interval_within, mean_over_seeds
from repdyn.views.tables.frames import concatenated, distinct_texts
from repdyn.views.tables.runs import (
    PLACES,
    MeasuredRun,
    differences,
    disagreement,
    in_comparison_order,
    listed,
)
from repdyn.views.tables.series import LayerMean, MetricSeries
from repdyn.views.tables.words import spans

INTERVAL = "95% interval over seeds"
"""What a band of seeds means."""


@dataclass(frozen=True, eq=False)
class SeedSeries(MetricSeries):
    """One metric on one subset over the seeds of one model, at the steps at which all of them have
    it.

    Its values are means over seeds, and its intervals those of these means over seeds, within the
    range of the metric. A value that one seed lacks is missing.
    """

    members: tuple[MetricSeries, ...] = ()
    """Of each seed, with the same layers."""

    @cached_property
    def steps(self) -> tuple[int, ...]:
        # a mean over some of the seeds would move where one of them begins or ends
        return tuple(sorted(set.intersection(*(set(member.steps) for member in self.members))))

    @cached_property
    def by_seed(self) -> np.ndarray:
        """Return (n_seeds, n_layers, n_steps)."""
        of_seeds = [
            member.values[:, np.searchsorted(member.steps, self.steps)] for member in self.members
        ]
        return np.stack(of_seeds)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        return self.members[0].layers

    @cached_property
    def values(self) -> np.ndarray:
        return mean_over_seeds(self.by_seed)[0]

    @cached_property
    def lows(self) -> np.ndarray:
        return self._ends(self.by_seed)[0]

    @cached_property
    def highs(self) -> np.ndarray:
        return self._ends(self.by_seed)[1]

    def _ends(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return interval_within(*mean_over_seeds(values), metric_info(self.metric).range)

    @cached_property
    def means_by_seed(self) -> pd.DataFrame:
        """Return the means over layers by seed (index) and step (columns), over the same layers in
        all seeds at all steps.
        """
        means = [self._over_covered(of_seed) for of_seed in self.by_seed]
        return pd.DataFrame(means, columns=self._covered_steps)

    @cached_property
    def layer_mean(self) -> LayerMean:
        """Return the mean over seeds of their means over layers, with its interval over seeds."""
        means = self.means_by_seed
        low, high = self._ends(means.to_numpy(float))
        return LayerMean(
            mean=means.mean(),
            low=pd.Series(low, means.columns),
            high=pd.Series(high, means.columns),
            n_used=len(self.mean_layers),
            n_layers=int(self.in_means.sum()),
        )

    @cached_property
    def interval(self) -> str:
        return f"band of seeds: {INTERVAL}, each a thin line"


_SEED = re.compile(r"(?:(?P<model>.+)[-_])?seed[-_]?\d+(?P<ending> \(.*\))?", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d+)?")
_UNNAMED = "seed*"
_ENDING = re.compile(r" \(.*\)$")
_SEED_SETTINGS = ("seed", "data_seed", "random_seed", "seed_everything")
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
    """Return the name of the model that a run is one seed of, as the run's name tells; None if it
    names no seed.

    One part of the name, between slashes, ends with ``seed`` and a number. Parts that are a time,
    which tell the trainings of one configuration apart, are left out, and the brackets that a view
    puts behind a name stay.

    >>> (model_of("EleutherAI/pythia-70m-seed3"), model_of("google/multiberts-seed_0"),
    ...     model_of("lab/model"))
    ('EleutherAI/pythia-70m', 'google/multiberts', None)
    >>> (model_of("tiny-seed1/2026-11-23_09-03-01"), model_of("seed1/decoder"),
    ...     model_of("t5-seed2 (encoder)"))
    ('tiny', 'decoder', 't5 (encoder)')
    """
    parts = [part for part in run.split("/") if not _TIME.fullmatch(part)]
    matches = [(index, _SEED.fullmatch(part)) for index, part in enumerate(parts)]
    with_seed = [(index, match) for index, match in matches if match]
    if not with_seed:
        return None
    # the innermost folder: those around it may be named by a seed of something else
    last, seed = with_seed[-1]
    named = [*parts[:last], *filter(None, [seed["model"]]), *parts[last + 1 :]]
    return ("/".join(named) or _UNNAMED) + (seed["ending"] or "")


@dataclass(frozen=True, eq=False)
class SeedGroup(MeasuredRun):
    """Runs of one model that differ in their seed alone; a view shows them like one run with a
    band.

    Its rows are those of all seeds at their common steps, from which a view takes design and sizes.
    """

    members: tuple[MeasuredRun, ...] = ()

    @cached_property
    def rows(self) -> pd.DataFrame:
        return self.frame

    @cached_property
    def n_failed(self) -> int:
        return sum(member.n_failed for member in self.members)

    @cached_property
    def series(self) -> Mapping[tuple[str, str], SeedSeries]:
        """Return the series of each metric and subset that all seeds have at a common step."""
        return _shared_series(self.members)


def seed_groups(
    runs: Sequence[MeasuredRun], patterns: Sequence[str] | None = None
) -> list[SeedGroup]:
    """Return the groups of runs that are seeds of one model, each with at least two.

    ``patterns`` are shell patterns of names, such as ``"lab/*-gpt2-x*"``: the runs that match one
    are seeds of one model. None finds them by :func:`model_of`, then by the settings that were
    stored with each, if these differ in the seed alone; none at all if it is empty.

    Raises:
        ValueError: seeds that differ in more than their seed, or have no step in common; a pattern
            with fewer than two runs; a run that two patterns match.
    """
    by_name: dict[tuple[str, str | None], list[MeasuredRun]] = {}
    for run in runs:
        matching = [pattern for pattern in patterns or () if fnmatchcase(run.name, pattern)]
        if len(matching) > 1:
            which = " and ".join(matching)
            raise ValueError(
                f"expected one pattern of seeds for {run.name}, got {which}; make them narrower"
            )
        if (
            model := model_of(run.name) if patterns is None else next(iter(matching), None)
        ) is not None:
            by_name.setdefault((model, run.stack), []).append(run)
    for pattern in patterns or ():
        _check_pattern(pattern, by_name, runs)
    groups = [
        _group(name, name if patterns is not None else model_of(members[0].label) or name, members)
        for (name, _), members in by_name.items()
        if len(members) > 1
    ]
    return groups if patterns is not None else [*groups, *_groups_by_settings(runs, groups)]


def _check_pattern(
    pattern: str,
    by_name: Mapping[tuple[str, str | None], Sequence[MeasuredRun]],
    runs: Sequence[MeasuredRun],
) -> None:
    """Raise ValueError where fewer than two runs match a pattern."""
    number = max((len(found) for (name, _), found in by_name.items() if name == pattern), default=0)
    if number < 2:
        names = ", ".join(dict.fromkeys(run.name for run in runs))
        raise ValueError(
            f"expected a pattern of at least 2 runs as seeds, got {pattern!r} of {number} of "
            f"{names}"
        )


def with_seeds(runs: Sequence[MeasuredRun], groups: Sequence[SeedGroup]) -> list[MeasuredRun]:
    """Return what a comparison shows, in its order: the groups, and the runs that are in none."""
    grouped = {member.key for group in groups for member in group.members}
    return in_comparison_order([*groups, *(run for run in runs if run.key not in grouped)])


def _shared_series(members: Sequence[MeasuredRun]) -> dict[tuple[str, str], SeedSeries]:
    first, *others = (member.series for member in members)
    shared = {}
    for key in (key for key in first if all(key in other for other in others)):
        of_seeds = tuple(member.series[key] for member in members)
        rows = concatenated([of_seed.rows for of_seed in of_seeds])
        shared[key] = SeedSeries(*key, rows, layer_depth=first[key].layer_depth, members=of_seeds)
    return {key: series for key, series in shared.items() if series.steps}


def _shared_cells(members: Sequence[MeasuredRun]) -> list[tuple[str, str, int]]:
    """Return each metric, subset and step that all members have."""
    of_members = [
        {(*key, step) for key, series in member.series.items() for step in series.steps}
        for member in members
    ]
    return sorted(set.intersection(*of_members))


def _groups_by_settings(
    runs: Sequence[MeasuredRun], groups: Sequence[SeedGroup]
) -> Iterator[SeedGroup]:
    """Yield the groups of runs whose stored settings differ in the seed alone, of those that are in
    none of ``groups``.

    Runs that do not agree in what seeds must share stay alone without an error: nobody has called
    them seeds.
    """
    grouped = {member.key for group in groups for member in group.members}
    alike: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        if run.key not in grouped and _seed_of(run):
            alike.setdefault(_settings_without_seed(run), []).append(run)
    for members in alike.values():
        # one training that was run twice is not two seeds
        are_distinct = len({_seed_of(run) for run in members}) == len(members)
        if len(members) < 2 or not are_distinct or _differences(members):
            continue
        if shared := _shared_cells(members):
            name = _joined([member.name for member in members])
            label = _joined([member.label for member in members])
            yield _group_of(name, label, members, shared)


def _settings_without_seed(run: MeasuredRun) -> tuple[object, ...]:
    """Return the stack and the settings of a run except its seed, to group runs by."""
    settings = run.settings.items()
    others = sorted(
        (name, value) for name, value in settings if not (name in PLACES or _is_seed(name))
    )
    # averaged weights of a training have its settings, and its name with an ending
    ending = _ENDING.search(run.name)
    return run.stack, ending and ending.group(), *others


def _is_seed(setting: str) -> bool:
    return setting.rpartition(".")[2] in _SEED_SETTINGS


def _seed_of(run: MeasuredRun) -> tuple[tuple[str, str], ...]:
    """Return the settings of a run that are seeds; empty where none is known."""
    return tuple(sorted((name, seed) for name, seed in run.settings.items() if _is_seed(name)))


def _joined(names: Sequence[str]) -> str:
    """Return a name of a group, which the first of its members tells from those of others."""
    first, *others = names
    return f"{first} and {others[0] if len(others) == 1 else f'{len(others)} more'}"


def _group(name: str, label: str, members: Sequence[MeasuredRun]) -> SeedGroup:
    if why := _differences(members):
        raise ValueError(
            f"expected runs that differ in their seed alone as seeds of {name}, got {why}; name "
            "the seeds by patterns, or compare the runs without seeds"
        )
    shared = _shared_cells(members)
    if not shared:
        steps = {run.extent: [run.label] for run in members}
        raise ValueError(
            f"expected seeds of {name} with a measured step in common, got none: {listed(steps)}"
        )
    return _group_of(name, label, members, shared)


def _group_of(
    name: str,
    label: str,
    members: Sequence[MeasuredRun],
    shared: Sequence[tuple[str, str, int]],
) -> SeedGroup:
    """Return runs that are known to be seeds of one model as a group, with the rows of each metric,
    subset and step that they share."""
    rows = concatenated([member.rows for member in members])
    cells = pd.MultiIndex.from_arrays([rows["metric"], rows["subset"], rows["step"]])
    number = f" ({len(members)} seeds)"
    return SeedGroup(
        name=name + number,
        label=label + number,
        stack=members[0].stack,
        frame=rows.loc[cells.isin(list(shared))],
        members=tuple(members),
    )


def _differences(members: Sequence[MeasuredRun]) -> str | None:
    """Describe the settings that seeds of one model must share and in which runs differ; None if
    there are none.
    """
    for column, what in _SAME.items():
        names = ((", ".join(distinct_texts(run.rows, column)), run.label) for run in members)
        if found := disagreement(f"different {what}", names):
            return found
    finished = (("finished" if run.finished else "training", run.label) for run in members)
    return (
        disagreement("finished models and trainings", finished)
        or next(
            filter(None, (_of_different_layers(members, key) for key in members[0].series)), None
        )
        or differences(members)
    )


def _of_different_layers(members: Sequence[MeasuredRun], key: tuple[str, str]) -> str | None:
    measured = [(run.series[key], run.label) for run in members if key in run.series]
    layers = []
    for series, label in measured:
        layers.append((f"{spans(series.layers)} of {series.n_blocks} blocks", label))
    return disagreement(f"different layers of {key[0]} ({key[1]})", layers)
