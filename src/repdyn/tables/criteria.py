"""The criteria by which the published findings are judged: their text, and the effects of one run that decide them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repdyn.tables import criteria
from repdyn.tables.effects import CannotBeJudgedError, Claim, Effect, Estimate, Judgement, mean_estimate
from repdyn.tables.frames import grid, of_metric

VERSION = "2, 2026-11-22"
"""Version of the criteria, and the date on which they were fixed."""

PAPER = "Internal Representation Dynamics in Transformers / The Shape of Learning (Findings of EACL 2024)"

MORE = 0.10
"""Smallest relative change that counts."""
MIDDLE = (0.25, 0.75)
"""Positions between which a block is a middle one: 0 is the first block, 1 the last."""
BELL_BLOCKS, UNIFORM_BLOCKS = 5, 3
"""Number of blocks that a profile needs."""
UNIFORM_RANGE = 0.50
"""Share by which the highest block of a uniform profile may exceed the lowest."""
EARLY = 0.01
"""Largest step of the first measurement, as a share of the last step."""
HALF = (0.40, 0.60)
"""Shares of the last step between which a measured step counts as half of it."""
LATE_FALL = 0.05
"""Share by which the values must decline late in training."""
WARM_UPS = 1.5
"""Multiple of the warm-up within which the learning-rate schedule may have caused a peak."""
FAILED = 0.10
"""Share by which the last loss of a failed training exceeds the lowest."""

_TIMES = (
    f"Cannot be judged where the first measured step lies beyond {EARLY:.0%} of the last, {{}}no measured step lies "
    f"between {HALF[0]:.0%} and {HALF[1]:.0%} of it"
)
_FROM_HALF = "from the measured step nearest to half of the last one to the last"

BELL = (
    "With the position of block l being x = (l - 1) / (L - 1), the middle blocks have "
    f"{MIDDLE[0]:g} <= x <= {MIDDLE[1]:g}. At the last measured step, the mean of the middle blocks exceeds that of "
    f"the first block and that of the last block by more than {MORE:.0%}. Needs at least {BELL_BLOCKS} blocks."
)
UNIFORM = (
    f"At the last measured step, the highest block exceeds the lowest by less than {UNIFORM_RANGE:.0%}. Needs at least "
    f"{UNIFORM_BLOCKS} blocks."
)
GROWTH = (
    f"The mean over blocks at the last measured step exceeds that at the first by more than {MORE:.0%}, and "
    f"{_FROM_HALF} it changes by less than {MORE:.0%} in either direction. {_TIMES.format('or ')}."
)
DIMENSION = (
    f"The highest mean over blocks exceeds the first and the last by more than {MORE:.0%}, and the decline goes on "
    f"late: {_FROM_HALF}, the mean over blocks falls by more than {LATE_FALL:.0%}, and more than half of the blocks "
    f"fall, each by its own interval. {_TIMES.format('where ')}, or where the highest mean lies within "
    f"{WARM_UPS:g} times the warm-up of the learning rate (the schedule may have made the peak) and everything else is "
    "shown."
)

MEANINGS = {
    "bell": "bell-shaped anisotropy over depth (decoders)",
    "uniform": "uniform anisotropy over depth (encoders)",
    "growth": "anisotropy grows, then stabilises (decoders)",
    "dimension": "intrinsic dimension rises, then declines (decoders)",
}
"""The findings by name, each with the kind of model it was published for; every one is judged on every model."""


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
