"""Selection of runs and probes of a store."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pandas as pd

from repdyn.store import Store


def select(
    store: Store,
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the rows of each run and probe, scalars and failures among them.

    Args:
        store: with measurements.
        runs: names; all runs of the store unless given.
        probe: hash, or the beginning of one, of the only probe to select. Runs that are not named and were not measured
            on it are left out.
        columns, metrics: as for :meth:`repdyn.store.Store.to_pandas`; the probe is always among the columns.

    Returns:
        Frames by (run, probe hash): in the order of ``runs``, the probes of a run by hash.

    Raises:
        ValueError: nothing is stored; no such run; no such probe, or several that begin so.
    """
    read = None if columns is None else list(dict.fromkeys([*columns, "probe"]))
    frames = {
        (run, found): rows
        for run in known_runs(store, runs)
        for found, rows in by_probe(store.to_pandas(run, columns=read, metrics=metrics, categorical=True)).items()
    }
    if probe is None:
        return frames
    hashes = sorted({found for _, found in frames})
    matching = [found for found in hashes if found.startswith(probe)]
    if len(matching) != 1:
        raise ValueError(f"expected the beginning of one probe's hash, got {probe!r}; there are {', '.join(hashes)}")
    chosen = {key: rows for key, rows in frames.items() if key[1] == matching[0]}
    if without := [run for run in runs or () if (run, matching[0]) not in chosen]:
        raise ValueError(f"expected runs measured on the probe {matching[0]}, got {', '.join(without)}, which were not")
    return chosen


def by_probe(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each probe, by its hash."""
    hashes = sorted(rows["probe"].unique())
    if len(hashes) == 1:
        return {str(hashes[0]): rows}  # no copy of a large frame
    return {str(found): rows.loc[rows["probe"] == found].reset_index(drop=True) for found in hashes}


def is_measured(rows: pd.DataFrame) -> bool:
    """Return whether there is a measurement among the rows, not only scalars and failures."""
    return bool(rows["layer"].notna().any())


def known_runs(store: Store, names: Sequence[str] | None) -> list[str]:
    """Return the named runs of a store once each; all runs unless some are named.

    Raises:
        ValueError: nothing is stored; no such run.
    """
    known = store.runs()
    if not known:
        raise ValueError(f"expected a store with measurements, found none in {store.location}{_elsewhere(store)}")
    for name in names or ():
        if name not in known:
            raise ValueError(f"expected a run of {store.location}, got {name!r}; {_closest(name, known)}")
    return list(dict.fromkeys(names)) if names else known


def _closest(name: str, known: Sequence[str]) -> str:
    """Suggest the run that a mistyped name resembles, by its whole name or its last part."""
    by_name = {run.rpartition("/")[2].lower(): run for run in known} | {run.lower(): run for run in known}
    close = difflib.get_close_matches(name.lower(), by_name, n=1)
    return f"did you mean {by_name[close[0]]!r}?" if close else f"it has {', '.join(known)}"


def _elsewhere(store: Store) -> str:
    """Suggest stores nearby, in case the folder of a run was given."""
    inside = {path.parent.parent for path in store.path.glob("*/*/step*.parquet")}
    around = {store.path.parent for _ in store.path.glob("step*.parquet")}
    found = ", ".join(str(path) for path in sorted(inside | around))
    return f"; did you mean {found}?" if found else ""
