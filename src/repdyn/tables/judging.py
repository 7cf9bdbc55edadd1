"""The criteria of docs/findings.md applied to one run: each returns the effects that decide a finding.

Each takes measurements with the columns :data:`COLUMNS`, a metric, a token subset and the step at which the warm-up of
the learning rate ends, and raises :class:`~repdyn.tables.effects.CannotBeJudgedError` where the criterion does not
apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repdyn.tables import criteria
from repdyn.tables.effects import CannotBeJudgedError, Claim, Effect, Estimate, Judgement, mean_estimate
from repdyn.tables.frames import grid, of_metric

COLUMNS = ["metric", "subset", "step", "layer", "depth", "value", "std_error", "n_batches"]
"""Columns that a judgement needs."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The blocks at one step."""

    step: int
    blocks: tuple[Estimate, ...]

    @property
    def mean(self) -> Estimate:
        return mean_estimate(self.blocks)


def bell(rows: pd.DataFrame, metric: str, subset: str, _: float | None) -> Judgement:
    """Judge whether anisotropy is bell-shaped over depth at the last measured step."""
    blocks, number = _last_profile(rows, metric, subset), _number_of_blocks(rows)
    _require_blocks(blocks, criteria.BELL_BLOCKS)
    low, high = criteria.MIDDLE
    inside = [block for layer, block in blocks.items() if low <= (layer - 1) / (number - 1) <= high]
    if not {1, number} <= set(blocks) or not inside:
        raise CannotBeJudgedError(f"needs a value in blocks 1, {number} and between; got blocks {_listed(blocks)}")
    middle = mean_estimate(inside)
    first = Claim("middle/first", Effect.of(middle, blocks[1]), above=criteria.MORE)
    last = Claim("middle/last", Effect.of(middle, blocks[number]), above=criteria.MORE)
    return Judgement((first, last))


def uniform(rows: pd.DataFrame, metric: str, subset: str, _: float | None) -> Judgement:
    """Judge whether anisotropy is uniform over depth at the last measured step."""
    blocks = _last_profile(rows, metric, subset)
    _require_blocks(blocks, criteria.UNIFORM_BLOCKS)
    low, high = (choose(blocks, key=lambda layer: blocks[layer].value) for choose in (min, max))
    claim = Claim("highest/lowest", Effect.of(blocks[high], blocks[low]), below=criteria.UNIFORM_RANGE)
    return Judgement((claim,), notes=(f"blocks {high}, {low}",))


def growth(rows: pd.DataFrame, metric: str, subset: str, _: float | None) -> Judgement:
    """Judge whether anisotropy grows, then stabilises."""
    snapshots = _snapshots(rows, metric, subset)
    first, half, last = _ends_and_half(snapshots)
    claims = (
        Claim("last/first", Effect.of(last.mean, first.mean), above=criteria.MORE),
        Claim("last/half", Effect.of(last.mean, half.mean), above=-criteria.MORE, below=criteria.MORE),
    )
    coverage = _coverage(rows, metric, subset, snapshots)
    return Judgement(claims, notes=(f"half {half.step:,}",), coverage=coverage)


def dimension(rows: pd.DataFrame, metric: str, subset: str, warm_up: float | None) -> Judgement:
    """Judge whether the dimension rises, then declines; ``warm_up`` is the step at which the warm-up ends."""
    snapshots = _snapshots(rows, metric, subset)
    first, half, last = _ends_and_half(snapshots)
    # if the mean is highest at an end, the highest value between the ends does not exceed it
    peak = max(snapshots[1:-1], key=lambda snapshot: snapshot.mean.value)
    claims = (
        Claim("highest/first", Effect.of(peak.mean, first.mean), above=criteria.MORE),
        Claim("highest/last", Effect.of(peak.mean, last.mean), above=criteria.MORE),
        Claim("last/half", Effect.of(last.mean, half.mean), below=-criteria.LATE_FALL),
    )
    blocks = tuple(Effect.of(end, before) for end, before in zip(last.blocks, half.blocks, strict=True))
    known = "warm-up not known" if warm_up is None else f"warm-up to step {warm_up:,.0f}"
    is_early = warm_up is not None and peak.step <= criteria.WARM_UPS * warm_up
    return Judgement(
        claims,
        blocks,
        notes=(f"highest at step {peak.step:,}, half {half.step:,}", known),
        objection=f"highest within {criteria.WARM_UPS:g} times the warm-up" if is_early else None,
        coverage=_coverage(rows, metric, subset, snapshots),
    )


def _last_profile(rows: pd.DataFrame, metric: str, subset: str) -> dict[int, Estimate]:
    """Return the blocks with a value at the last step at which the metric was measured, by number."""
    cells = of_metric(rows, metric, subset)
    cells = cells.loc[(cells["step"] == cells["step"].max()) & (cells["layer"] >= 1) & np.isfinite(cells["value"])]
    columns = (cells[name].tolist() for name in ("value", "std_error", "n_batches"))
    return dict(zip(cells["layer"].tolist(), map(Estimate, *columns), strict=True))


def _number_of_blocks(rows: pd.DataFrame) -> int:
    """Return the number of the last block of the model, measured or not; 0 if no block was measured."""
    block = rows.loc[rows["layer"] >= 1].head(1)
    return 0 if block.empty else round(float(block["layer"].iloc[0] / block["depth"].iloc[0]))


def _require_blocks(blocks: dict[int, Estimate], number: int) -> None:
    if len(blocks) < number:
        raise CannotBeJudgedError(f"needs {number} blocks with a value; got blocks {_listed(blocks)}")


def _snapshots(rows: pd.DataFrame, metric: str, subset: str) -> list[_Snapshot]:
    """Return, at each step with any value, the blocks that have a value at all these steps."""
    blocks = _blocks_of(rows, metric, subset)
    if len(blocks["step"].unique()) < 2:
        raise CannotBeJudgedError("one checkpoint")
    values = grid(blocks, metric, subset).replace([np.inf, -np.inf], np.nan).dropna(axis="columns", how="all")
    values = values.dropna(axis="index")
    if values.empty:
        raise CannotBeJudgedError(f"no block has a value of {metric} at every measured step")
    others = (grid(blocks, metric, subset, name) for name in ("std_error", "n_batches"))
    cells = (values, *(of_all.loc[values.index, values.columns] for of_all in others))
    by_step = zip(values.columns.tolist(), *(grid.to_numpy().T.tolist() for grid in cells), strict=True)
    return [_Snapshot(step, tuple(map(Estimate, *of_blocks))) for step, *of_blocks in by_step]


def _ends_and_half(snapshots: Sequence[_Snapshot]) -> tuple[_Snapshot, _Snapshot, _Snapshot]:
    first, last = snapshots[0], snapshots[-1]
    if first is last or first.step > criteria.EARLY * last.step:
        raise CannotBeJudgedError(f"no value before step {first.step:,} of {last.step:,}; the course may begin earlier")
    half = min(snapshots, key=lambda snapshot: abs(snapshot.step - last.step / 2))
    low, high = criteria.HALF
    if not low * last.step <= half.step <= high * last.step:
        raise CannotBeJudgedError(f"no step measured near half of step {last.step:,}")
    return first, half, last


def _coverage(rows: pd.DataFrame, metric: str, subset: str, snapshots: Sequence[_Snapshot]) -> str | None:
    measured, used = len(_blocks_of(rows, metric, subset)["layer"].unique()), len(snapshots[0].blocks)
    return f"over {used} of {measured} blocks" if used < measured else None


def _blocks_of(rows: pd.DataFrame, metric: str, subset: str) -> pd.DataFrame:
    cells = of_metric(rows, metric, subset)
    return cells.loc[cells["layer"] >= 1]


def _listed(blocks: Iterable[int]) -> str:
    return ", ".join(map(str, blocks)) or "none"
