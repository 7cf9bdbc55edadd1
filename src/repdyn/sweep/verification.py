"""Measure checkpoints of a store again, and compare with what it says."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repdyn.capture.token_states import positions_from
from repdyn.hub.options import Loading
from repdyn.metrics import resolve
from repdyn.probe import Probe
from repdyn.store import Store, open_store
from repdyn.sweep.downloads import Downloads
from repdyn.sweep.loop import sweep
from repdyn.sweep.targets import Target
from repdyn.sweep.tasks import Settings, Task

RELATIVE, ABSOLUTE = 1e-3, 1e-6
"""Tolerances: another device, or another version of torch, changes the last digits of float32 states."""
_IDENTITY = ["stack", "layer", "head", "metric", "subset", "settings"]
_OF_CHECKPOINT = ["run", "step", "checkpoint", "probe", "layers", "dtype", "revision", "stage", "tokens_seen"]
_NEEDED = [*_OF_CHECKPOINT, *_IDENTITY, "value"]


@dataclass
class Verified:
    """The outcome for one checkpoint."""

    run: str
    step: int
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
class Repeatable:
    """A measured checkpoint with everything needed to measure it again."""

    task: Task
    settings: Settings
    rows: pd.DataFrame


def find_repeatable(store: Store, loading: Loading) -> tuple[list[Repeatable], list[str]]:
    """Return the measured checkpoints that can be measured again, and why others cannot.

    Args:
        store: of sweeps; checkpoints of live runs have no weights to load.
        loading: device and trust in code; the precision is that of the measurement.
    """
    frame = store.to_pandas(columns=_NEEDED)
    measured = frame.loc[frame["layer"].notna() & frame["checkpoint"].notna()]
    found, left = [], []
    for (run, step, checkpoint, probe, *_), rows in measured.groupby(
        ["run", "step", "checkpoint", "probe", "layers", "dtype"]
    ):
        target = _target(rows)
        name = f"{run} step {step}"
        path = store.probe_path(str(probe))
        if target is None:
            left.append(f"{name}: its weights are not at {checkpoint}")
        elif not path.exists():
            left.append(f"{name}: the store lacks the probe {probe}")
        elif repeatable := _settings(Task(target, Probe.load(path)), rows, loading):
            found.append(repeatable)
        else:
            left.append(f"{name}: its metrics compare it with another checkpoint")
    return found, left


def verify(
    repeatable: Sequence[Repeatable],
    downloads: Downloads,
    folder: Path,
    *,
    sample: int = 3,
    seed: int | None = None,
    relative: float = RELATIVE,
    absolute: float = ABSOLUTE,
) -> list[Verified]:
    """Measure a random sample again and compare each value.

    Args:
        repeatable: from :func:`find_repeatable`.
        downloads: downloads the weights, and deletes them afterwards.
        folder: for the new rows.
        sample: number of checkpoints.
        seed: of the choice; None for another one each time.
        relative, absolute: a value agrees if it differs by at most ``absolute + relative * |value|``, or both are
            undefined.

    Raises:
        SweepStoppedError: no connection, or no space on the disk.
    """
    chosen = random.Random(seed).sample(list(repeatable), min(sample, len(repeatable)))
    outcomes = []
    for number, one in enumerate(chosen):
        store = open_store(folder / str(number))
        outcome = Verified(one.task.target.run, one.task.target.step)
        report = sweep([one.task], store, one.settings, downloads)
        if report.failed:
            outcome.failure = report.failed[0][1]
        else:
            _compare(one.rows, store.to_pandas(), outcome, relative, absolute)
        outcomes.append(outcome)
    return outcomes


def _target(rows: pd.DataFrame) -> Target | None:
    first = rows.iloc[0]
    origin, tokens = str(first["checkpoint"]), first["tokens_seen"]
    described = {
        "run": str(first["run"]),
        "step": int(first["step"]),
        "revision": str(first["revision"] or ""),
        "tokens_seen": None if pd.isna(tokens) else int(tokens),
        "stage": None if pd.isna(first["stage"]) else str(first["stage"]),
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
