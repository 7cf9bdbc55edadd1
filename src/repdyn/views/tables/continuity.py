"""Detection of checkpoints with the weights of another step, from the continuity of their
values.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from repdyn.metrics import metric_info
from repdyn.store.schema import ReasonCode
from repdyn.views.tables.frames import SUBSETS, distinct_texts, has_text

_CELL = ["stack", "metric", "subset", "settings", "layer", "head"]
MIN_JUMP = 5.0
"""Least jump of a loss that is out of line, in median deviations and in standard errors."""
MIN_LOSSES = 9
"""Least number of losses: one that is out of line affects three deviations, of which there are two
fewer.
"""
MAX_BLOCK = 5
"""Most successive steps that are out of line together."""
AROUND = 11
"""Number of steps whose deviations are usual for the one in their middle, where curves may turn."""
MAX_SHARE = 1 / 6
"""Largest share of steps out of line: more of them affect half of the deviations, and with them the
bound.
"""


def repeated_values(rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the groups of steps whose values are the same to the last bit in each layer, as in
    copies of a checkpoint.

    Values that compare two checkpoints do not count.
    """
    is_measured = (rows["compared_to"].isna() & rows["value"].notna()).to_numpy(bool)
    step_of_row = rows["step"].to_numpy(int)
    alike = _steps_of_equal_extremes(
        step_of_row[is_measured], rows["value"].to_numpy(float)[is_measured]
    )
    if not alike:
        return []
    # the other columns would be copied with each selection of rows
    measured = rows.loc[is_measured & np.isin(step_of_row, alike), ["step", *_CELL, "value"]]
    cells = measured.groupby(_CELL, dropna=False, sort=False, observed=True).ngroup()
    ordered = measured.assign(cell=cells).sort_values(["step", "cell"])[["step", "cell", "value"]]
    groups: dict[bytes, list[int]] = {}
    for step, values in ordered.groupby("step", sort=True):
        content = values["cell"].to_numpy().tobytes() + values["value"].to_numpy(float).tobytes()
        groups.setdefault(content, []).append(int(str(step)))
    return [tuple(steps) for steps in groups.values() if len(steps) > 1]


def _steps_of_equal_extremes(steps: np.ndarray, values: np.ndarray) -> list[int]:
    """Return the steps that agree with another step in the number of values, the lowest and the
    highest.

    Only these can be equal in all values, and most steps are ruled out by it.
    """
    by_step = np.argsort(steps, kind="stable")
    distinct, starts, sizes = np.unique(steps[by_step], return_index=True, return_counts=True)
    if len(distinct) < 2:
        return []
    lows = np.minimum.reduceat(values[by_step], starts)
    highs = np.maximum.reduceat(values[by_step], starts)
    extremes = list(zip(sizes.tolist(), lows.tolist(), highs.tolist(), strict=True))
    counts = Counter(extremes)
    return [
        step for step, ends in zip(distinct.tolist(), extremes, strict=True) if counts[ends] > 1
    ]


def since_by_layer(
    rows: pd.DataFrame, chosen: Callable[[np.ndarray], Iterable[int]]
) -> dict[int, int]:
    """Return the layers chosen at the last step, each with the first of the steps up to there, one
    after the other, at which it is chosen.

    Layers are ``chosen`` from the places of the rows of a step, of metrics that are computed from
    the vectors of a layer alone.
    """
    since: dict[int, int] = {}
    left: set[int] | None = None
    is_of_layer = np.zeros(len(rows), bool)
    for name in distinct_texts(rows, "metric"):
        info = metric_info(name)
        if not info.captures and info.position == "layers":
            is_of_layer |= has_text(rows, "metric", name)
    step_of_row = rows["step"].to_numpy(int)
    steps: list[int] = np.unique(step_of_row)[::-1].tolist()
    for step in steps:
        # all others of a long run are copied in vain where none is chosen at the end
        at_step = {*chosen(np.flatnonzero(is_of_layer & (step_of_row == step)))}
        left = at_step if left is None else left & at_step
        if not left:
            break
        since |= dict.fromkeys(left, step)
    return since


LINE = 0.999  # anisotropy from which on vectors lie along one direction
SAME = 1e-6
"""Relative difference up to which a layer has the values of the layer before."""


def repeated_layers(rows: pd.DataFrame) -> dict[int, int]:
    """Return the layers that have the values of the layer before, as :func:`since_by_layer` does.

    Two different values must agree that are no whole numbers, which may be bounds, and none may
    differ by more than :data:`SAME` of it: one step of the optimizer after a block's weights were
    set to zero may leave its output tiny. Vectors along one direction stay so, whatever a block
    does.
    """

    layer_of_row = rows["layer"].to_numpy(int)
    value_of_row = rows["value"].to_numpy(float)

    def repeating(places: np.ndarray) -> Iterable[int]:
        pairs = list(zip(rows["metric"].iloc[places], rows["subset"].iloc[places], strict=True))
        column_of_pair = {pair: column for column, pair in enumerate(dict.fromkeys(pairs))}
        layers, row_of_cell = np.unique(layer_of_row[places], return_inverse=True)
        by_layer = np.full((len(layers), len(column_of_pair)), np.nan)
        by_layer[row_of_cell, [column_of_pair[pair] for pair in pairs]] = value_of_row[places]
        is_anisotropy = np.array([metric == "anisotropy" for metric, _ in column_of_pair], bool)
        is_close = np.isclose(by_layer[:-1], by_layer[1:], rtol=SAME, atol=0.0, equal_nan=True)
        is_same = is_close.all(axis=1) & (np.diff(layers) == 1)
        for values, layer in zip(by_layer[1:][is_same], layers[1:][is_same].tolist(), strict=True):
            is_line = values[is_anisotropy].max(initial=0.0) > LINE
            not_whole = np.extract(values % 1 > 0, values)
            if not is_line and len(np.unique(not_whole)) > 1:
                yield layer

    return since_by_layer(rows, repeating)


def collapsed_layers(rows: pd.DataFrame) -> dict[int, int]:
    """Return the layers whose vectors are all equal up to rounding, as
    :func:`since_by_layer` does.
    """

    is_rounded = has_text(rows, "reason_code", ReasonCode.ROUNDING)
    is_equal = rows["n_unique"].to_numpy(float, na_value=np.nan) == 1
    is_collapsed = (is_rounded | is_equal) & rows["subset"].isin(SUBSETS).to_numpy()
    is_collapsed &= rows["n_vectors"].to_numpy(float, na_value=np.nan) > 1
    if not is_collapsed.any():
        return {}
    layer_of_row = rows["layer"].to_numpy(int)

    def collapsed(places: np.ndarray) -> Iterable[int]:
        return np.unique(layer_of_row[places[is_collapsed[places]]]).tolist()

    return since_by_layer(rows, collapsed)


class Jump(NamedTuple):
    """A step whose loss lies outside the range of its neighbours."""

    step: int
    loss: float
    neighbours: tuple[tuple[int, float], tuple[int, float]]
    """Steps and losses of those in line before and after it; of the two next to it where there are
    none on one side.
    """
    size: float
    """Distance from the range of the two neighbours."""
    is_end: bool = False
    """Whether there are none on one side."""


def losses_out_of_line(
    losses: pd.Series, std_errors: pd.Series | None = None, *, may_turn: bool = False
) -> list[Jump] | None:
    """Return the steps whose losses, by step, jump away from those before and after them, the
    largest jump first; None if these would be more than :data:`MAX_SHARE` of the steps, so that
    none is said to be out of line.

    A block of up to :data:`MAX_BLOCK` successive steps is out of line if each lies outside the
    range of the two steps around the block, all on one side, by more than :data:`MIN_JUMP` times
    its standard error, where it is known, and as many times the length of the block times the
    median deviation of the losses from the straight line between their neighbours over log(1 +
    step). Such blocks are taken out one after the other: of those that explain the largest jump,
    the one that leaves the fewest steps out of line, then the one with the largest jump. A block at
    an end is taken out only where it explains the jump of another one. Fewer than
    :data:`MIN_LOSSES` losses are not judged.

    A sound curve that ``may_turn`` has narrow peaks, as of geometry: the deviation is then the
    larger one of the whole run and of the :data:`AROUND` steps around.
    """
    if len(losses) < MIN_LOSSES:
        return []
    values = losses.to_numpy(float)
    if std_errors is None:
        std_errors = pd.Series(dtype=float)
    # what a jump is compared with at each step: its standard error and the usual deviation
    errors = std_errors.reindex(losses.index).fillna(0.0).to_numpy(float)
    scales = np.stack([errors, _typical(losses, may_turn)])
    left = np.arange(len(losses))
    while blocks := _blocks(values[left], scales[:, left]):
        left = np.delete(left, _explanation(blocks, values[left], scales[:, left]))
        if len(losses) - len(left) > MAX_SHARE * len(losses):
            return None
    taken_out = np.setdiff1d(np.arange(len(losses)), left)
    jumps = [_jump(losses, left, position) for position in taken_out]
    # what was taken out between others may lie between those that are left
    return sorted((jump for jump in jumps if jump.size > 0), key=lambda jump: -jump.size)


def _blocks(values: np.ndarray, scales: np.ndarray) -> dict[range, float]:
    """Return the blocks that are out of line, with the distance of the nearest step from the range
    of the two around them."""
    blocks = {}
    for length in range(1, min(MAX_BLOCK, len(values) - 2) + 1):
        inner = sliding_window_view(values, length)[1:-1]
        before = values[: -length - 1]
        after = values[length + 1 :]
        sizes = np.maximum(
            np.minimum(before, after) - inner.max(1), inner.min(1) - np.maximum(before, after)
        )
        errors, deviations = sliding_window_view(scales, length, axis=1)[:, 1:-1].max(axis=-1)
        places = np.flatnonzero(sizes > MIN_JUMP * np.maximum(errors, length * deviations)).tolist()
        blocks |= {range(place + 1, place + 1 + length): float(sizes[place]) for place in places}
    return blocks


def _explanation(blocks: dict[range, float], values: np.ndarray, scales: np.ndarray) -> list[int]:
    """Return what is taken out on account of the largest jump: its block, or one that overlaps or
    touches it, also at the first or the last step, where all are outside the range of the steps
    next to them."""
    largest = max(blocks, key=blocks.__getitem__)
    sizes = dict(blocks)
    end = len(values)
    for length in range(1, MAX_BLOCK + 1):
        sizes[range(length)] = _distance(values[:length], values[length:][: MAX_BLOCK + 1])
        sizes[range(end - length, end)] = _distance(
            values[-length:], values[:-length][-MAX_BLOCK - 1 :]
        )
    near = [
        block
        for block, size in sizes.items()
        if size > 0 and block.start <= largest.stop and block.stop >= largest.start
    ]
    # no block beyond is affected by what is taken out here
    first = max(0, largest.start - 3 * MAX_BLOCK)
    around = np.arange(first, min(end, largest.stop + 3 * MAX_BLOCK))

    def cost(block: range) -> tuple[int, float]:
        rest = np.setdiff1d(around, block)
        return len(set().union(*_blocks(values[rest], scales[:, rest]))), -sizes[block]

    return list(min(near, key=cost))


def _distance(inner: np.ndarray, around: np.ndarray) -> float:
    """Return how far all of some values are from the range of others, on one side; negative if some
    are within.
    """
    return float(max(around.min() - inner.max(), inner.min() - around.max()))


def _jump(losses: pd.Series, left: np.ndarray, position: int) -> Jump:
    """Describe a step that was taken out beside its neighbours of those that are left."""
    after = int(np.searchsorted(left, position))
    nearest = left[min(max(after, 1), len(left) - 1) - 1 :][:2]
    values = losses.to_numpy(float)
    size = _distance(values[[position]], values[nearest])
    first, second = ((int(losses.index[at]), float(values[at])) for at in nearest)
    return Jump(
        step=int(losses.index[position]),
        loss=float(values[position]),
        neighbours=(first, second),
        size=size,
        is_end=after in (0, len(left)),
    )


def _typical(losses: pd.Series, may_turn: bool) -> np.ndarray:
    """Return the usual deviation of a loss from the line between its neighbours, for each step."""
    # over log(1 + step), since checkpoints of a training are mostly spaced so
    places = np.log1p(losses.index.to_numpy(float))
    values = losses.to_numpy(float)
    weight = (places[1:-1] - places[:-2]) / (places[2:] - places[:-2])
    deviations = np.abs(values[1:-1] - (1 - weight) * values[:-2] - weight * values[2:])
    of_run = np.full(len(losses), np.median(deviations))
    if not may_turn:
        return of_run
    around = pd.Series(np.pad(deviations, 1, constant_values=np.nan)).rolling(
        AROUND, center=True, min_periods=1
    )
    return np.maximum(of_run, around.median().to_numpy())
