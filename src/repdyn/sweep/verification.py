"""Measure checkpoints of a store again, and compare with what it says."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repdyn.capture.token_states import positions_from
from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.loading import Loading
from repdyn.checkpoints.plan import Settings, Task
from repdyn.checkpoints.run import sweep
from repdyn.checkpoints.targets import Target
from repdyn.metrics import resolve
from repdyn.probe import Probe
from repdyn.store import Store, open_store

RELATIVE, ABSOLUTE = 1e-3, 1e-6
"""Tolerances: another device, or another version of torch, changes the last digits of float32 states."""
_IDENTITY = ["stack", "layer", "head", "metric", "subset", "settings"]
_OF_CHECKPOINT = ["step", "checkpoint", "probe", "layers", "dtype"]
_DESCRIBED = [*_OF_CHECKPOINT, "revision", "stage", "tokens_seen"]
MEASURED_BY = ["repdyn_version", "torch_version", "transformers_version", "measured_at"]
"""Columns that say when and with which versions a row was measured."""


@dataclass
class Verified:
    """The outcome for one checkpoint."""

    run: str
    step: int
    rows: pd.DataFrame
    """What the store has of it."""
    n_values: int = 0
    largest: float = 0.0
    """The largest relative difference."""
    differences: list[str] = field(default_factory=list)
    """Values beyond the tolerances."""
    failure: str | None = None
    """Why it could not be measured again."""

    @property
    def checkpoint(self) -> str:
        """Its run and step, for people."""
        return f"{self.run} step {self.step}"


@dataclass(frozen=True)
class Candidate:
    """A measured checkpoint whose weights and probe are there."""

    target: Target
    described: Mapping[str, Any]
    """Its columns in the store."""

    @property
    def checkpoint(self) -> str:
        """Its run and step, for people."""
        return f"{self.target.run} step {self.target.step}"


@dataclass(frozen=True)
class Repeatable:
    """A measured checkpoint with everything needed to measure it again."""

    task: Task
    settings: Settings
    rows: pd.DataFrame


def find_candidates(store: Store) -> tuple[list[Candidate], list[str]]:
    """Return the measured checkpoints that can perhaps be measured again, and why others cannot.

    Args:
        store: of sweeps; checkpoints of live runs have no weights to load.
    """
    found, left = [], []
    for run in store.runs():
        described = {tuple(row[name] for name in _OF_CHECKPOINT): row for row in store.distinct(run, _DESCRIBED)}
        swept = [row for row in described.values() if row["checkpoint"] is not None]
        for row in sorted(swept, key=lambda row: [str(row[name]) for name in _OF_CHECKPOINT]):
            name, target = f"{run} step {row['step']}", _target(run, row)
            if target is None:
                left.append(f"{name}: its weights are not at {row['checkpoint']}")
            elif not store.probe_path(row["probe"]).exists():
                left.append(f"{name}: the store lacks the probe {row['probe']}")
            else:
                found.append(Candidate(target, row))
    return found, left


def choose(
    candidates: Sequence[Candidate], store: Store, loading: Loading, *, sample: int = 3, seed: int | None = None
) -> tuple[list[Repeatable], list[str]]:
    """Return a random sample of the checkpoints, and why some that were drawn are not in it.

    Args:
        candidates: from :func:`find_candidates`; the probes and rows of those drawn alone are read.
        store: that they are in.
        loading: device and trust in code; the precision is that of the measurement.
        sample: number of checkpoints, if there are as many.
        seed: of the choice; None for another one each time.

    Raises:
        ValueError: a probe or file cannot be read.
    """
    chosen: list[Repeatable] = []
    left: list[str] = []
    probes: dict[str, Probe] = {}

    @lru_cache(maxsize=4)
    def rows_of(run: str) -> pd.DataFrame:
        return store.to_pandas(run, columns=[*_DESCRIBED, *MEASURED_BY, *_IDENTITY, "value"])

    for one in random.Random(seed).sample(candidates, len(candidates)):
        if len(chosen) == sample:
            break
        probe = one.described["probe"]
        if probe not in probes:
            probes[probe] = Probe.load(store.probe_path(probe))
        frame = rows_of(one.target.run)
        is_one = frame["layer"].notna()
        for name in _OF_CHECKPOINT:
            is_one &= frame[name] == one.described[name]
        repeatable = _settings(Task(one.target, probes[probe]), frame.loc[is_one], loading)
        if repeatable:
            chosen.append(repeatable)
        else:
            left.append(f"{one.checkpoint}: its metrics compare it with another checkpoint")
    return chosen, left


def verify(
    chosen: Sequence[Repeatable],
    downloads: Downloads,
    folder: Path,
    *,
    relative: float = RELATIVE,
    absolute: float = ABSOLUTE,
) -> list[Verified]:
    """Measure checkpoints again and compare each value.

    Args:
        chosen: from :func:`choose`.
        downloads: downloads the weights, and deletes them afterwards.
        folder: for the new rows.
        relative, absolute: a value agrees if it differs by at most ``absolute + relative * |value|``, or both are
            undefined.

    Raises:
        SweepStoppedError: no connection, or no space on the disk.
    """
    outcomes = []
    for number, one in enumerate(chosen):
        store = open_store(folder / str(number))
        outcome = Verified(one.task.target.run, one.task.target.step, one.rows)
        report = sweep([one.task], store, one.settings, downloads)
        if report.failed:
            outcome.failure = report.failed[0][1]
        else:
            _compare(one.rows, store.to_pandas(), outcome, relative, absolute)
        outcomes.append(outcome)
    return outcomes


def _target(run: str, row: Mapping[str, Any]) -> Target | None:
    origin = str(row["checkpoint"])
    described = {
        "run": run,
        "step": int(row["step"]),
        "revision": row["revision"] or "",
        "tokens_seen": row["tokens_seen"],
        "stage": row["stage"],
    }
    if Path(origin).is_absolute():
        return Target(**described, path=Path(origin)) if Path(origin).exists() else None
    repository, mark, rest = origin.partition("@")
    commit, _, subfolder = rest.partition("/")
    return Target(**described, repository=repository, commit=commit, subfolder=subfolder) if mark else None


def _settings(task: Task, rows: pd.DataFrame, loading: Loading) -> Repeatable | None:
    """Return what was measured at one checkpoint alone; None if everything compares it with another."""
    requested = sorted(_names(rows).unique())
    alone = [
        name
        for name in requested
        if all("previous_checkpoint" not in metric.captures for metric, _ in resolve([name], task.probe))
    ]
    if not alone:
        return None
    layers, positions = _choice(str(rows["layers"].iloc[0]))
    # weights are loaded in the precision of the states
    precision = replace(loading, dtype=str(rows["dtype"].iloc[0]))
    settings = Settings(alone, layers, precision, token_positions=positions)
    return Repeatable(task, settings, rows.loc[_names(rows).isin(alone)])


def _names(rows: pd.DataFrame) -> pd.Series:
    """Return the metric of each row as it is asked for, such as two_nn@no_sink."""
    pairs = zip(rows["metric"], rows["subset"], strict=True)
    names = [metric if pd.isna(subset) else f"{metric}@{subset}" for metric, subset in pairs]
    return pd.Series(names, rows.index, dtype=str)


def _choice(recorded: str) -> tuple[Any, slice | None]:
    """Return the layers and token positions that rows record."""
    if not recorded:
        return None, None
    choice = json.loads(recorded)
    if isinstance(choice, dict) and set(choice) == {"layers", "token_positions"}:
        return choice["layers"], positions_from(choice["token_positions"])
    return choice, None


def _compare(stored: pd.DataFrame, again: pd.DataFrame, outcome: Verified, relative: float, absolute: float) -> None:
    columns = [*_IDENTITY, "value"]
    pairs = stored[columns].merge(again.loc[again["layer"].notna(), columns], "left", on=_IDENTITY, indicator=True)
    before, after = pairs["value_x"].to_numpy(float), pairs["value_y"].to_numpy(float)
    missing = (pairs["_merge"] == "left_only").to_numpy()
    agree = np.isclose(after, before, rtol=relative, atol=absolute, equal_nan=True) & ~missing
    both = np.isfinite(before) & np.isfinite(after) & ~missing
    apart = np.abs(after - before)[both] / np.maximum(np.abs(before[both]), absolute)
    outcome.n_values, outcome.largest = len(pairs), float(apart.max(initial=0.0))
    for index in np.flatnonzero(~agree):
        row = pairs.iloc[index]
        got = "nothing" if missing[index] else f"{after[index]:.6g}"
        outcome.differences.append(
            f"{row['metric']}@{row['subset']} layer {row['layer']}: stored {before[index]:.6g}, measured {got}"
        )
