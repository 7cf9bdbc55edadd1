"""The runs of a store: selected, each checked, with a short name, in the order of a comparison.

The stacks of a model that has several stand there like models of their own.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeAlias, TypeVar

import pandas as pd

from repdyn.metrics import metric_info
from repdyn.probe.design import INPUT_DESIGNS, NO_MASSIVE
from repdyn.store import Store
from repdyn.store.runs import RunPath
from repdyn.store.schema import FINISHED
from repdyn.utils.mistyped import closest
from repdyn.views.alerts import RULES, Alert, Rule, find_alerts
from repdyn.views.display import FAMILIES, display_of
from repdyn.views.tables.bands import FEWEST, Band, band_of
from repdyn.views.tables.frames import (
    NO_CLASSES,
    causality,
    design_names,
    distinct_rows,
    failures,
    is_finished,
    measurements,
    scalar,
    values_of,
)
from repdyn.views.tables.series import MetricSeries, metric_series


def select(
    store: Store,
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the rows of each run and probe, scalars and failures among them: by (run, probe hash),
    in the order of ``runs``, the probes of a run by hash.

    Args:
        store: with measurements.
        runs: names; all runs of the store unless given.
        probe: hash, or the beginning of one, of the only probe to select. Runs that are not named
            and were not measured on it are left out.
        columns: as for :meth:`repdyn.store.Store.to_pandas`; the probe is always among the columns.

    Raises:
        ValueError: nothing is stored; no such run; no such probe, or several that begin so.
    """
    read = None if columns is None else list(dict.fromkeys([*columns, "probe"]))
    frames = {
        (path.name, hash_of_probe): rows
        for path in known_runs(store, runs)
        for hash_of_probe, rows in split(
            store.to_pandas(path, columns=read, categorical=True), "probe"
        ).items()
    }
    if probe is None:
        return frames
    hashes = sorted({hash_of_probe for _, hash_of_probe in frames})
    matching = [hash_of_probe for hash_of_probe in hashes if hash_of_probe.startswith(probe)]
    if len(matching) != 1:
        raise ValueError(
            f"expected the beginning of one probe's hash, got {probe!r}; there are "
            f"{', '.join(hashes)}"
        )
    chosen = {key: rows for key, rows in frames.items() if key[1] == matching[0]}
    if without := [run for run in runs or () if (run, matching[0]) not in chosen]:
        raise ValueError(
            f"expected runs measured on the probe {matching[0]}, got {', '.join(without)}, which "
            "were not"
        )
    return chosen


def split(rows: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """Return the rows of each value of a column, such as a run's name or a probe's hash, in
    alphabetical order.
    """
    values = sorted(rows[column].unique())
    if len(values) == 1:
        return {str(values[0]): rows}  # no copy of a large frame
    return {str(value): rows.loc[rows[column].eq(value)].reset_index(drop=True) for value in values}


def is_measured(rows: pd.DataFrame) -> bool:
    """Return whether there is a measurement among the rows, not only scalars and failures."""
    return bool(rows["layer"].notna().any())


def known_runs(store: Store, names: Sequence[str] | None) -> list[RunPath]:
    """Return the named runs of a store once each; all runs unless some are named. A run that is not
    there is an error."""
    stored = {path.name: path for path in store.paths()}
    if not stored:
        raise store.empty_error()
    # a mistyped name may resemble a whole name or its last part
    by_name = {run.rpartition("/")[2].lower(): run for run in stored} | {
        run.lower(): run for run in stored
    }
    for name in names or ():
        if name not in stored:
            near = closest(name.lower(), by_name)
            hint = f"did you mean {by_name[near]!r}?" if near else f"it has {', '.join(stored)}"
            raise ValueError(f"expected a run of {store.location}, got {name!r}; {hint}")
    return [stored[name] for name in dict.fromkeys(names or stored)]


_SIZE_INDEPENDENT = FAMILIES.keys() - {"geometry", "dimension", "spectrum"}
"""Families whose estimates do not change with the number of vectors; of a user's own it is not
known.
"""

_OF_CAPTIONS = (
    "run",
    "probe",
    "design",
    "n_batches",
    "n_vectors",
    "step",
    "layer",
    "metric",
    "subset",
    "settings",
    "compared_to",
    "value",
    "low",
    "high",
    "margin",
)
"""Columns that the caption of a figure tells about."""

Key: TypeAlias = tuple[str, str | None]
"""The name of a run and that of a stack of its model, None where the blocks have none."""


PLACES = ("output_dir", "logging_dir", "run_name")
"""Settings of ``TrainingArguments`` that differ in any two runs."""


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """The measurements of one run on one probe, or of one stack of its model."""

    name: str
    label: str
    """Short name of the run, with that of the stack."""
    stack: str | None
    frame: pd.DataFrame
    """Its rows, scalars and failures among them."""
    rules: Sequence[Rule] = RULES
    """Those of its alerts."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its training, as its tracker stored them; empty for a sweep."""
    baselines: "Sequence[MeasuredRun]" = ()
    """Earlier sound runs of the same recipe that it is compared with."""

    @cached_property
    def settings(self) -> dict[str, str]:
        """Return the configuration as texts, those of nested settings by names such as
        ``optimizer.lr``.
        """
        settings = dict(_flat(self.configuration))
        # nested ones behind the others
        in_order = sorted(settings, key=lambda name: name not in self.configuration)
        return {name: _setting_text(settings[name]) for name in in_order}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return the rows of :func:`repdyn.views.tables.frames.measurements`."""
        return measurements(self.frame)

    @cached_property
    def scalars(self) -> pd.DataFrame:
        """Return the rows without a layer: scalars and failures."""
        return self.frame.loc[self.frame["layer"].isna()]

    @cached_property
    def n_failed(self) -> int:
        """Return the number of checkpoints that could not be measured."""
        return len(failures(self.frame)["step"].unique())

    @property
    def key(self) -> Key:
        """Return the key that identifies the run and stack in a comparison."""
        return self.name, self.stack

    @cached_property
    def probe(self) -> str:
        """Return the hash of the probe."""
        return str(self.rows["probe"].iloc[0])

    @cached_property
    def vectors_of(self) -> str:
        """Return the parts of the input that vectors represent: "tokens", or "positions" of images,
        audio and other inputs.
        """
        return "positions" if set(design_names(self.rows)) <= INPUT_DESIGNS.keys() else "tokens"

    @cached_property
    def causal(self) -> bool | None:
        return causality(self.rows)

    @cached_property
    def parameters(self) -> int | None:
        known = self.rows["parameters"].dropna()
        return None if known.empty else int(known.iloc[-1])

    @cached_property
    def steps(self) -> list[int]:
        return self.rows["step"].unique().tolist()

    @cached_property
    def finished(self) -> bool:
        return is_finished(self.rows)

    @property
    def extent(self) -> str:
        """Return the measured steps in words: "51 steps, 0 to 4,000"."""
        if self.finished:
            return FINISHED
        first = self.steps[0]
        last = self.steps[-1]
        return (
            f"step {last:,}" if first == last else f"{len(self.steps)} steps, {first:,} to {last:,}"
        )

    @cached_property
    def tokens(self) -> pd.Series:
        """Return the training tokens by step, ascending; empty for a finished model, and unless
        every row knows them and seeds agree.
        """
        seen = self.rows.loc[:, ["step", "tokens_seen"]]
        by_step = seen.drop_duplicates().sort_values("step")
        if (
            self.finished
            or bool(by_step["tokens_seen"].isna().any())
            or not by_step["step"].is_unique
        ):
            return pd.Series(dtype=float)
        return pd.Series(by_step["tokens_seen"].to_numpy(float), index=by_step["step"].to_numpy())

    @cached_property
    def series(self) -> Mapping[tuple[str, str], MetricSeries]:
        """Return the series of each metric and subset, in the order of display, with the values of
        single heads.
        """
        return metric_series(self.rows, self.frame)

    @cached_property
    def bands(self) -> Mapping[tuple[str, str], Band]:
        """Return the bands of the baselines behind its series, of those that three have."""
        if not self.baselines:
            return {}
        at_run, *at_baselines = positions_by_step([self, *self.baselines])
        bands = {}
        for key, series in self.series.items():
            members = [
                (other.series[key], at_steps)
                for other, at_steps in zip(self.baselines, at_baselines, strict=True)
                if key in other.series
            ]
            if len(members) >= FEWEST:
                bands[key] = band_of((series, at_run), members)
        return bands

    @cached_property
    def alerts(self) -> list[Alert]:
        return find_alerts(self.frame, self.rules)

    # what decides whether values compare, which a report asks of each run many times

    @cached_property
    def designs(self) -> str:
        """Return the names of its sampling designs."""
        return " and ".join(design_names(self.rows))

    @cached_property
    def own_window_rules(self) -> list[bool]:
        """Return the distinct values of ``own_window_excluded`` among the rows, ascending: True
        where neighbours in the same window are left out.
        """
        return sorted(self.rows["own_window_excluded"].dropna().astype(bool).unique().tolist())

    @cached_property
    def sizes(self) -> Mapping[tuple[str, str], str]:
        """Return the numbers of vectors of each metric and subset whose values depend on it,
        ascending.
        """
        numbers: dict[tuple[str, str], list[int]] = {}
        cells = distinct_rows(self.rows, ["metric", "subset", "n_vectors"])
        for metric, subset, number in cells:
            numbers.setdefault((metric, subset), []).append(number)
        sizes = {}
        for (metric, subset), of_cell in numbers.items():
            is_independent = display_of(metric).family in _SIZE_INDEPENDENT
            depends = not is_independent or metric_info(metric).whole_spectrum
            if subset in NO_CLASSES or depends:
                # how many vectors are left of a whole batch is up to each layer
                shown = of_cell[-1:] if subset == NO_MASSIVE else of_cell
                sizes[metric, subset] = " and ".join(f"{number:,}" for number in shown)
        return sizes

    @cached_property
    def metric_settings(self) -> list[tuple[str, ...]]:
        """Return each metric with each of its settings, ascending."""
        return distinct_rows(self.rows, ["metric", "settings"])

    def loss(self, name: str) -> pd.Series:
        """Return a loss against step by the name of its scalar; empty where none is stored and for
        a finished model.
        """
        if name not in self._losses:
            self._losses[name] = scalar(self.frame, name).iloc[: None if not self.finished else 0]
        return self._losses[name]

    @cached_property
    def _losses(self) -> dict[str, pd.Series]:
        """Return the losses that were asked for, which each chart of the run draws."""
        return {}

    def metrics(self, family: str | None = None) -> list[str]:
        """Return the metrics that have a value, or those of a family, in the order in which they
        are shown.
        """
        names = dict.fromkeys(
            metric for (metric, _), series in self.series.items() if series.steps_with_values
        )
        return [name for name in names if family in (None, display_of(name).family)]

    def keys_of(self, metrics: Sequence[str]) -> list[tuple[str, str]]:
        """Return each of some metrics, in their order, with each subset on which it has a value."""
        valued: dict[str, list[tuple[str, str]]] = {}
        for key, series in self.series.items():
            if series.steps_with_values:
                valued.setdefault(key[0], []).append(key)
        return [key for metric in metrics for key in valued.get(metric, ())]

    def rows_of(self, metrics: Sequence[str], subset: str | None = None) -> pd.DataFrame:
        """Return the values of some metrics, on all subsets or on one, with the columns that
        captions tell about.
        """
        chosen = self.rows["metric"].isin([*metrics]) & (
            True if subset is None else self.rows["subset"] == subset
        )
        return self.rows.loc[chosen, [*_OF_CAPTIONS]]

    def at_end(self) -> pd.DataFrame:
        """Return the rows of each metric at the last step it was measured at."""
        last = self.rows.groupby(["metric", "subset"], observed=True)["step"].transform("max")
        return self.rows.loc[self.rows["step"].eq(last)]


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its name, that of a nested one behind those around it."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _setting_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


Run = TypeVar("Run", bound=MeasuredRun)


def in_comparison_order(runs: Iterable[Run]) -> list[Run]:
    """Return runs sorted as in a comparison: decoders, encoders, then those of unknown kind; each
    by size and name.
    """

    def place(run: MeasuredRun) -> tuple[int, float, str, str]:
        size = math.inf if run.parameters is None else run.parameters
        return (True, False, None).index(run.causal), size, run.name, run.stack or ""

    return sorted(runs, key=place)


def differences(runs: Sequence[MeasuredRun]) -> str | None:
    """Return why the values of these runs do not compare; None if they do.

    Estimates change with the sampling design, the number of vectors and a metric's settings. Means
    over a class of tokens do not change with the number, and tokenizers do not find equally many.
    """
    designs = ((run.designs, run.label) for run in runs)
    # a design of the user's own may have the name of another
    rules = (
        ("left out" if is_left_out else "counted", run.label)
        for run in runs
        for is_left_out in run.own_window_rules
    )
    of_design = disagreement("different sampling designs", designs) or disagreement(
        "own window's neighbours", rules
    )
    return of_design or _of_different_sizes(runs) or _of_different_settings(runs)


def disagreement(what: str, values: Iterable[tuple[str, str]]) -> str | None:
    """Return each value with the runs that have it, from pairs of a value and a run's label; None
    if all agree.
    """
    by_value: dict[str, list[str]] = {}
    for value, label in values:
        by_value.setdefault(value, []).append(label)
    return f"{what}: {listed(by_value)}" if len(by_value) > 1 else None


def _of_different_sizes(runs: Sequence[MeasuredRun]) -> str | None:
    by_cell: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for run in runs:
        for cell, sizes in run.sizes.items():
            by_cell.setdefault(cell, []).append((sizes, run.label))
    different = {cell: sizes for cell, sizes in by_cell.items() if len(dict(sizes)) > 1}
    if not different:
        return None
    (metric, subset), sizes = next(iter(different.items()))
    where = "" if len(different) == len(by_cell) else f" for {metric} ({subset})"
    return disagreement(f"batches of different numbers of vectors{where}", sizes)


def _of_different_settings(runs: Sequence[MeasuredRun]) -> str | None:
    by_metric: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        for metric, settings in run.metric_settings:
            by_metric.setdefault(metric, []).append((settings, run.label))
    reasons = (
        disagreement(f"different settings of {metric}", by_metric[metric])
        for metric in sorted(by_metric)
    )
    return next(filter(None, reasons), None)


def run_labels(frames: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Return the short name of each run in views, given the rows of each by its name."""
    published = []
    for name, rows in frames.items():
        # the weights came from a repository of the owner the run is named after, not from a local
        # path
        owner = str(rows["run"].iloc[0]).partition("/")[0]
        if any(
            origin.startswith(f"{owner}/") and "@" in origin
            for origin in values_of(rows, "checkpoint")
        ):
            published.append(name)
    return short_names(list(frames), published)


def short_names(runs: Sequence[str], published: Sequence[str] = ()) -> dict[str, str]:
    """Return names without the leading parts that all runs share, and without the owners of
    published models.

    >>> short_names(["lab/a/1", "lab/b/1"])
    {'lab/a/1': 'a/1', 'lab/b/1': 'b/1'}
    >>> short_names(["lab/a-70m", "other/b", "mine/1"], published=["lab/a-70m", "other/b"])
    {'lab/a-70m': 'a-70m', 'other/b': 'b', 'mine/1': 'mine/1'}
    >>> short_names(["lab/a", "other/a"], published=["lab/a", "other/a"])
    {'lab/a': 'lab/a', 'other/a': 'other/a'}
    """
    parts = {run: run.split("/") for run in runs}
    levels = zip(*(names[:-1] for names in parts.values()), strict=False) if len(runs) > 1 else ()
    n_shared = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
    n_left = {
        run: max(n_shared, 1) if run in published and len(parts[run]) > 1 else n_shared
        for run in runs
    }
    short = {run: "/".join(names[n_left[run] :]) for run, names in parts.items()}
    alike = Counter(short.values())
    return {
        run: name if alike[name] == 1 else "/".join(parts[run][n_shared:])
        for run, name in short.items()
    }


def listed(names: Mapping[str, Sequence[str]]) -> str:
    """Return each key with its names.

    >>> listed({"4,096": ["a", "b"], "512": ["c"]})
    '4,096 (a, b), 512 (c)'
    """
    return ", ".join(f"{what} ({', '.join(runs)})" for what, runs in names.items())


def positions_by_step(runs: Sequence[MeasuredRun]) -> list[dict[int, float]]:
    """Return where each run was measured, by its own steps: at training tokens, if all runs know
    them, else at steps.
    """
    tokens = [run.tokens.reindex(run.steps) for run in runs]
    is_by_tokens = all(bool(of_run.notna().all()) for of_run in tokens)
    if is_by_tokens:
        return [of_run.to_dict() for of_run in tokens]
    return [{step: float(step) for step in run.steps} for run in runs]
