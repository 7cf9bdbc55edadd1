"""The runs of a report, read from stores: each stack of a model for itself, with everything stored of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from repdyn.alerts import stored_rules
from repdyn.diagnosis import DescribedRun
from repdyn.store import Store
from repdyn.store.schema import COLUMNS
from repdyn.tables.frames import concatenated, design_names
from repdyn.tables.runs import measured_runs, select, short_names
from repdyn.tables.seeds import SeedGroup, seed_groups

_UNSHOWN = {
    *("run_id", "trainer_step", "weights", "weights_kind", "on_distinct", "near_duplicate_share", "way", "rank"),
}
SHOWN_COLUMNS = [name for name in COLUMNS if name not in _UNSHOWN]
"""Columns that reports and figures show something of."""

RunKey: TypeAlias = tuple[Store, str, str]
"""Store, name and probe of a run."""


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything a report shows."""

    runs: list[DescribedRun]
    """In the order of a comparison."""
    frame: pd.DataFrame
    """All rows, each run under a name of its own."""
    seeds: Sequence[SeedGroup] = ()
    """Runs that are seeds of one model."""
    not_seeds: str | None = None
    """Why runs that are named like seeds of one model are not shown as such; None if there are none."""


def report_data(
    stores: Sequence[Store],
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    seeds: Sequence[str] | None = None,
) -> ReportData:
    """Read the runs of a report from stores; the arguments are those of :func:`repdyn.report.write_report`."""
    return data_of_rows(selected_rows(stores, runs, probe), seeds)


def data_of_rows(
    found: Mapping[RunKey, pd.DataFrame],
    seeds: Sequence[str] | None = None,
) -> ReportData:
    """Return the runs of a report from the rows of each run on one probe, scalars and failures among them."""
    names = _names(found)
    frames = [rows if names[key] == key[1] else rows.assign(run=names[key]) for key, rows in found.items()]
    frame = frames[0] if len(frames) == 1 else concatenated(frames)
    rules = {names[key]: stored_rules(key[0].alerts_path(key[1])) for key in found}
    shown = measured_runs(frame, rules, DescribedRun)
    try:
        return ReportData(shown, frame, seed_groups(shown, seeds))
    except ValueError as error:
        if seeds is not None:  # patterns of the user's that do not fit
            raise
        return ReportData(shown, frame, not_seeds=str(error))


def selected_rows(
    stores: Sequence[Store], runs: Sequence[str] | None, probe: str | None = None
) -> dict[RunKey, pd.DataFrame]:
    """Return the rows of the selected runs by store, run and probe, with the columns that a report shows."""
    if not stores:
        raise ValueError("expected at least one store, got none")
    there = {store: store.runs() for store in stores}
    if runs and len(stores) > 1:
        every = sorted({run for names in there.values() for run in names})
        if unknown := [run for run in runs if run not in every]:
            raise ValueError(f"expected runs of these stores, got {unknown[0]!r}; they have {', '.join(every)}")
    found = {}
    for store in stores:
        named = runs if runs is None or len(stores) == 1 else [run for run in runs if run in there[store]]
        if named is None or named:
            found |= {(store, *key): rows for key, rows in select(store, named, probe, columns=SHOWN_COLUMNS).items()}
    return found


def _names(found: Mapping[RunKey, pd.DataFrame]) -> dict[RunKey, str]:
    """Name each run: with its store where another has the same name, with its probe where it has several.

    Probes of several sampling designs go by these too.
    """
    keys = list(found)
    probes = Counter((store, run) for store, run, _ in keys)
    in_stores = names_in_stores(list(probes))
    names = {}
    for store, run, probe in keys:
        name = in_stores[store, run]
        if probes[store, run] > 1:
            of_run = {key: ", ".join(design_names(rows)) for key, rows in found.items() if key[:2] == (store, run)}
            design = f", design {of_run[store, run, probe]}" if len(set(of_run.values())) > 1 else ""
            name = f"{name} (probe {probe[:8]}{design})"
        names[store, run, probe] = name
    return names


def names_in_stores(runs: Sequence[tuple[Store, str]]) -> dict[tuple[Store, str], str]:
    """Name each run of several stores: with its store where another one has a run of the same name."""
    stores = Counter(run for _, run in runs)
    paths = {(store, run): f"{store.path.as_posix()}/{run}" for store, run in runs if stores[run] > 1}
    short = short_names(list(paths.values()))
    return {key: short[paths[key]] if key in paths else key[1] for key in runs}
