"""The runs of stores with everything said of them, which every view takes from here."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from repdyn.store import Store, StoreLike, stores_of
from repdyn.store.runs import RunPath
from repdyn.store.schema import COLUMNS
from repdyn.utils.printing import shorten_list
from repdyn.views.alerts import stored_rules
from repdyn.views.judging.comparable import named_like, require_comparable, same_part
from repdyn.views.judging.insight import RunInsights
from repdyn.views.judging.run import DescribedRun, of_continuity, ranked, stacks_of_run
from repdyn.views.tables.frames import design_names
from repdyn.views.tables.runs import (
    in_comparison_order,
    is_measured,
    run_labels,
    select,
    short_names,
)
from repdyn.views.tables.seeds import SeedGroup, seed_groups
from repdyn.views.tables.style import of_stack

log = logging.getLogger(__name__)

_UNSHOWN = {
    "run_id",
    "trainer_step",
    "weights",
    "weights_kind",
    "on_distinct",
    "near_duplicate_share",
    "way",
    "rank",
}
SHOWN_COLUMNS = [name for name in COLUMNS if name not in _UNSHOWN]
"""Columns of which some view shows something."""

RunKey: TypeAlias = tuple[Store, str, str]
"""Store, name and probe of a run."""


@dataclass(frozen=True, eq=False)
class DescribedRuns:
    """Runs, each stack of a model for itself, and which of them are seeds of one model."""

    runs: list[DescribedRun]
    """In the order of a comparison."""
    frames: Mapping[str, pd.DataFrame]
    """All rows of each run, also of those without a measurement, by the name that it has here."""
    seeds: Sequence[SeedGroup] = ()
    """Runs that are seeds of one model."""
    not_seeds: str | None = None
    """Why runs that are named like seeds of one model are not shown as such; None if there are
    none.
    """


def described_runs(
    stores: StoreLike | Iterable[StoreLike],
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    seeds: Sequence[str] | None = None,
    *,
    against: "Yardstick | None" = None,
) -> DescribedRuns:
    """Read runs from stores; the arguments are those of
    :func:`repdyn.views.report.write_report`.
    """
    return described_rows(selected_rows(stores_of(stores), runs, probe), seeds, against)


def _nothing_measured(frames: Iterable[pd.DataFrame]) -> str:
    """Return what to say of runs without a measurement: why their checkpoints failed, each reason
    once."""
    steps: dict[str, list[str]] = {}
    for rows in frames:
        failures = rows.loc[rows["reason"].notna(), ["step", "reason"]].drop_duplicates()
        for step, reason in failures.itertuples(index=False):
            steps.setdefault(reason, []).append(str(step))
    if not steps:
        return "expected runs with measurements, got none; measure at least one checkpoint first"
    listed = "; ".join(f"step {shorten_list(of)}: {reason}" for reason, of in steps.items())
    return (
        f"expected runs with measurements, got failures alone: {listed}; mend that, then repeat "
        "the sweep with --retry-failed"
    )


def described_rows(
    rows_of_runs: Mapping[RunKey, pd.DataFrame],
    seeds: Sequence[str] | None = None,
    against: "Yardstick | None" = None,
    paths: Mapping[Store, Sequence[RunPath]] | None = None,
) -> DescribedRuns:
    """Return runs from the rows of each on one probe, scalars and failures among them, with the
    rules of their alerts and the baselines that they are compared with.

    ``paths`` are the paths of the runs in each store, if they are known already: a store looks
    through all of its folders for them.

    A ValueError says that none has a measurement, or that ``seeds`` do not fit.
    """
    names = _names(rows_of_runs)
    frames = {
        names[key]: rows if names[key] == key[1] else rows.assign(run=names[key])
        for key, rows in rows_of_runs.items()
    }
    if not (measured := {name: rows for name, rows in frames.items() if is_measured(rows)}):
        raise ValueError(_nothing_measured(frames.values()))
    labels = run_labels(measured)
    keys = {name: key for key, name in names.items()}
    path_of = _paths_by_name(rows_of_runs, paths)

    def stacks(name: str, rows: pd.DataFrame) -> list[DescribedRun]:
        store, run, _ = keys[name]
        path = path_of.get((store, run))
        configuration = None if path is None else path.run.configuration.get("training")
        rules = stored_rules(store.alerts_path(path or run))
        described = stacks_of_run(rows, rules, labels[name], configuration)
        return with_baselines(described, store, run, path, against)

    runs = in_comparison_order(one for name, rows in measured.items() for one in stacks(name, rows))
    try:
        return DescribedRuns(runs, frames, seed_groups(runs, seeds))
    # where nobody said that they are seeds of one model, runs are described one by one
    except ValueError as error:
        if seeds is not None:  # patterns of the user's that do not fit
            raise
        return DescribedRuns(runs, frames, not_seeds=str(error))


def _paths_by_name(
    rows_of_runs: Iterable[RunKey], paths: Mapping[Store, Sequence[RunPath]] | None
) -> dict[tuple[Store, str], RunPath]:
    """Return the paths of stores by their names, which are looked up where none are given."""
    if paths is None:
        paths = {store: store.paths() for store in dict.fromkeys(key[0] for key in rows_of_runs)}
    return {(store, path.name): path for store in paths for path in paths[store]}


def insights(
    stores: StoreLike | Iterable[StoreLike],
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    *,
    against: StoreLike | Iterable[StoreLike] | None = None,
    against_runs: Sequence[str] | None = None,
) -> list[RunInsights]:
    """Return the status of each run of stores and ranked statements on what happened in it.

    They follow from the stored rows alone: the same rows give the same statements in the same
    order.

    Args:
        stores: one or several with measurements, or the folders they are in.
        runs: names; all runs unless given.
        probe: hash, or the beginning of one, of the only probe to describe.
        against: stores with baselines, at least three sound runs of the same recipe: a statement of
            the kind "baselines" says whether the run is unlike them, with the rate of false alarms.
        against_runs: names of the baselines, with * for any characters; all runs of ``against``
            unless given. The described run is never its own baseline.

    Returns:
        For each run, probe and stack of the model: decoders, encoders, then others; each by size,
        then by name.

    Raises:
        ValueError: nothing is measured; no such run or probe; too few baselines, or one that failed
            or has another model, size, probe or design.
    """
    yardstick = None if against is None else Yardstick(against, against_runs)
    return [run.insights for run in described_runs(stores, runs, probe, against=yardstick).runs]


Origin: TypeAlias = tuple[Path, str]
"""The folder of a store, and the name of a run in it."""


class Yardstick:
    """Baselines in stores, each probe and stack of a model for itself.

    Args:
        stores: one or several with earlier sound runs of the same recipe.
        runs: their names, with * for any characters; all unless given.

    Raises:
        ValueError: nothing is measured there; a name that none has.
    """

    def __init__(
        self,
        stores: StoreLike | Iterable[StoreLike],
        runs: str | Sequence[str] | None = None,
    ) -> None:
        patterns = [runs] if isinstance(runs, str) else runs
        selected = selected_rows(stores_of(stores), None)
        chosen = named_like(dict.fromkeys(run for _, run, _ in selected), patterns)
        rows = {key: frame for key, frame in selected.items() if key[1] in chosen}
        origins = {
            name: (store.path.resolve(), run) for (store, run, _), name in _names(rows).items()
        }
        self._parts: dict[Origin, list[DescribedRun]] = {}
        for run in described_rows(rows, seeds=()).runs:
            self._parts.setdefault(origins[run.name], []).append(run)

    def compared(self, run: DescribedRun, origin: Origin | None) -> DescribedRun:
        """Return a run with its baselines: of each the part that compares with it best, without
        the run itself.

        Raises:
            ValueError: they are too few, or one failed or is not comparable.
        """
        others = [parts for where, parts in self._parts.items() if where != origin]
        baselines = [same_part(run, parts) for parts in others]
        require_comparable(run, baselines)
        return replace(run, baselines=baselines)


def with_baselines(
    parts: Sequence[DescribedRun],
    store: Store,
    run: str,
    path: RunPath | None,
    against: Yardstick | None = None,
) -> list[DescribedRun]:
    """Return the parts of a run with its baselines: those that are given, else those that its
    tracker was given, if they can be read and compare.

    Raises:
        ValueError: baselines that are given do not compare.
    """
    origin = store.path.resolve(), run
    if against is not None:
        return [against.compared(stack, origin) for stack in parts]
    places = path.run.configuration.get("against") if path else None
    if not places:
        return list(parts)
    try:
        yardstick = stored_yardstick(tuple(map(str, places)))
        return [yardstick.compared(stack, origin) for stack in parts]
    # nobody asked for them here: they may have been moved since the training
    except (ValueError, OSError) as error:
        log.info("no baselines are shown beside %s: %s", run, error)
        return list(parts)


@lru_cache(maxsize=4)
def stored_yardstick(places: tuple[str, ...]) -> Yardstick:
    """Return the baselines that a tracker was given, which are read once: they are finished."""
    return Yardstick(list(places))


def doubts(store: Store, probes: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return what :func:`insights` states of steps that repeat another one or are out of line, for
    runs and the probe to look at of each, or all of them."""
    described = [described_runs(store, [name], probe, seeds=()).runs for name, probe in probes]
    lines = [
        f"{of_stack(run.name, run.stack)}: {statement.sentence}"
        for run in chain.from_iterable(described)
        for statement in ranked(of_continuity(run))
    ]
    # losses are the same on each probe of a run, and so is what is said of them
    return list(dict.fromkeys(lines))


def selected_rows(
    stores: Sequence[Store], runs: Sequence[str] | None, probe: str | None = None
) -> dict[RunKey, pd.DataFrame]:
    """Return the rows of the selected runs by store, run and probe, with the columns that a report
    shows.
    """
    runs = [runs] if isinstance(runs, str) else runs
    selected: dict[RunKey, pd.DataFrame] = {}
    for store, names in _selected_names(stores, runs).items():
        if names is None or names:
            of_store = select(store, names, probe, columns=SHOWN_COLUMNS)
            selected |= {(store, *key): rows for key, rows in of_store.items()}
    return selected


def _selected_names(
    stores: Sequence[Store], runs: Sequence[str] | None
) -> dict[Store, Sequence[str] | None]:
    """Return which of some runs to read from each store; None for all."""
    if not runs or len(stores) == 1:
        return dict.fromkeys(stores, runs)
    there = {store: store.runs() for store in stores}
    every = sorted({run for names in there.values() for run in names})
    if unknown := [run for run in runs if run not in every]:
        raise ValueError(
            f"expected runs of these stores, got {unknown[0]!r}; they have {', '.join(every)}"
        )
    return {store: [run for run in runs if run in names] for store, names in there.items()}


def _names(selected: Mapping[RunKey, pd.DataFrame]) -> dict[RunKey, str]:
    """Name each run: with its store where another has the same name, with its probe where it has
    several.

    Probes of several sampling designs go by these too.
    """
    probes: dict[tuple[Store, str], list[str]] = {}
    for store, run, probe in selected:
        probes.setdefault((store, run), []).append(probe)
    names = {}
    for (store, run), name in names_in_stores(list(probes)).items():
        of_run = {probe: selected[store, run, probe] for probe in probes[store, run]}
        for probe, ending in _probe_endings(of_run).items():
            names[store, run, probe] = name + ending
    return {key: names[key] for key in selected}


def _probe_endings(rows_by_probe: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Return what names of a run on each of its probes end in."""
    if len(rows_by_probe) == 1:
        return dict.fromkeys(rows_by_probe, "")
    # a hash tells probes apart, the design tells what their values mean
    designs = {
        probe: ", ".join(design_names(rows.loc[rows["layer"].notna()]))
        for probe, rows in rows_by_probe.items()
    }
    differ = len(set(designs.values())) > 1
    return {
        probe: f" (probe {probe[:8]}{f', design {design}' if differ else ''})"
        for probe, design in designs.items()
    }


def names_in_stores(runs: Sequence[tuple[Store, str]]) -> dict[tuple[Store, str], str]:
    """Name each run of several stores: with its store where another one has a run of the
    same name.
    """
    stores = Counter(run for _, run in runs)
    paths = {
        (store, run): f"{store.path.as_posix()}/{run}" for store, run in runs if stores[run] > 1
    }
    short = short_names(list(paths.values()))
    return {key: short[paths[key]] if key in paths else key[1] for key in runs}
