"""Detection of checkpoints with the weights of another step, from the continuity of their values."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from repdyn.store.scalars import EMBEDDING_COSINE, EMBEDDING_NORM
from repdyn.tables.frames import scalar

_CELL = ["stack", "metric", "subset", "settings", "layer", "head"]
MIN_JUMP = 5.0
"""Least jump of a loss that is out of line, in median deviations and in standard errors."""
MIN_LOSSES = 9
"""Least number of losses: one that is out of line affects three deviations, of which there are two fewer."""


def repeated_values(rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the groups of steps whose values are the same to the last bit in each layer, as in copies of a checkpoint.

    Args:
        rows: measurements of one run on one probe. Values that compare two checkpoints do not count.
    """
    # the other columns would be copied with each selection of rows
    own = rows.loc[rows["compared_to"].isna() & rows["value"].notna(), ["step", *_CELL, "value"]]
    # a quick look first: most steps differ from all others in their extremes
    extremes = own.groupby("step")["value"].agg(["size", "min", "max"])
    own = own.loc[own["step"].isin(extremes.index[extremes.duplicated(keep=False)])]
    cells = own.groupby(_CELL, dropna=False, sort=False, observed=True).ngroup()
    ordered = own.assign(cell=cells).sort_values(["step", "cell"])[["step", "cell", "value"]]
    groups: dict[bytes, list[int]] = {}
    for step, values in ordered.groupby("step", sort=True):
        content = values["cell"].to_numpy().tobytes() + values["value"].to_numpy(float).tobytes()
        groups.setdefault(content, []).append(int(str(step)))
    return [tuple(steps) for steps in groups.values() if len(steps) > 1]


def repeated_embeddings(frame: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the groups of steps with the same input embeddings, unless these are never trained.

    Args:
        frame: all rows of one run on one probe, scalars among them.
    """
    norms = scalar(frame, EMBEDDING_NORM)
    groups = [tuple(map(int, steps)) for steps in norms.groupby(norms).groups.values()]
    return [steps for steps in groups if 1 < len(steps) < len(norms)]


class Jump(NamedTuple):
    """A step whose loss lies outside the range of its neighbours."""

    step: int
    loss: float
    before: tuple[int, float]
    """Step and loss of the neighbour before it, of those that are in line."""
    after: tuple[int, float]
    size: float
    """Distance from the range of the two neighbours."""


def embeddings_out_of_line(frame: pd.DataFrame) -> tuple[int, list[Jump]]:
    """Return the steps whose input embeddings are out of line, by the rule of :func:`losses_out_of_line` applied to
    their cosine to those of the first checkpoint, and the step of that.

    Args:
        frame: all rows of one run on one probe, scalars among them. If there were several first checkpoints, the
            cosines to the one that most were compared with are judged.
    """
    rows = frame.loc[frame["layer"].isna() & (frame["metric"] == EMBEDDING_COSINE)]
    if rows.empty:
        return 0, []
    first = int(rows["compared_to"].mode().iloc[0])
    cosines = scalar(rows.loc[rows["compared_to"] == first], EMBEDDING_COSINE)
    return first, losses_out_of_line(cosines, pd.Series(dtype=float))


def losses_out_of_line(losses: pd.Series, std_errors: pd.Series) -> list[Jump]:
    """Return the steps whose loss jumps away from those of both neighbours, the largest jump first.

    A jump is the distance from the range of the two neighbours. It counts if it exceeds :data:`MIN_JUMP` times the
    median deviation of the losses from the straight line between their neighbours over log(1 + step), and as many times
    its own standard error. The largest is taken out before the next is sought. The first and the last step have one
    neighbour and are never out of line, but their neighbours may be on their account. Those of fewer than
    :data:`MIN_LOSSES` losses are not judged.

    Args:
        losses: by step, ascending and finite.
        std_errors: by step; NaN, or no entry, where it is not known.
    """
    typical = float(np.median(np.abs(_deviations(losses)))) if len(losses) >= MIN_LOSSES else math.inf
    bounds = MIN_JUMP * np.fmax(typical, std_errors.reindex(losses.index).to_numpy(float))
    left = np.arange(len(losses))
    steps, values = losses.index.to_numpy(int), losses.to_numpy(float)
    found: list[Jump] = []
    while len(left) > 2:
        before, own, after = values[left[:-2]], values[left[1:-1]], values[left[2:]]
        sizes = np.maximum(np.minimum(before, after) - own, own - np.maximum(before, after))
        excess = np.where(sizes > bounds[left[1:-1]], sizes, 0.0)
        place = int(excess.argmax()) + 1
        if not excess[place - 1] > 0:
            break
        neighbours = [(int(steps[left[at]]), float(values[left[at]])) for at in (place - 1, place + 1)]
        at = left[place]
        found.append(Jump(int(steps[at]), float(values[at]), neighbours[0], neighbours[1], float(excess[place - 1])))
        # an end beside it may be the wrong one of both, which must not make the next steps jump too
        ends = [end for end in (0, len(left) - 1) if abs(end - place) == 1]
        left = np.delete(left, [place, *ends])
    return found


def _deviations(losses: pd.Series) -> np.ndarray:
    """Return how far each loss but the first and last is above the straight line between its neighbours."""
    places, values = np.log1p(losses.index.to_numpy(float)), losses.to_numpy(float)
    weight = (places[1:-1] - places[:-2]) / (places[2:] - places[:-2])
    return values[1:-1] - (1 - weight) * values[:-2] - weight * values[2:]
