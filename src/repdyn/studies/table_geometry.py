"""Geometry of embedding tables beside what is known: textbook positions, cubes, weights of few bits, loops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import ortho_group
from torch import Tensor

from repdyn.figures.drawing import entitle
from repdyn.kernels import two_nn
from repdyn.studies.embedding_tables import (
    EmbeddingTable,
    components_for,
    explained_variance,
    pair_values,
    sample_pairs,
)
from repdyn.studies.panels import series_colour
from repdyn.studies.paths import principal
from repdyn.tables.style import styled

BITS = (8, 4, 3, 2)
_MOST_ROWS = 2048
"""Rows of which a neighbour or the dimension is searched."""
_N_PAIRS = 100_000
CUBES, _ROOM, _N_POINTS = (7, 8, 9), 10, 1000
ALL_CUBES = "all three"
_N_PERMUTATIONS = 19
"""As many give a largest loop that chance exceeds once in twenty times."""


def sinusoids(like: EmbeddingTable) -> EmbeddingTable:
    """Return the textbook table of positions of the same size as a learned one.

    Row n holds ``sin(n / 10000^(2 i / dim))`` at coordinate 2 i and the cosine of the same at 2 i + 1 (Vaswani et al.
    2017, section 3.5).
    """
    n, dim = like.rows.shape
    angles = torch.arange(n).double()[:, None] * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    rows = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :dim]
    return EmbeddingTable("sinusoids", "position", "textbook", rows, tuple(map(str, range(n))), {})


def quantised(rows: Tensor, bits: int) -> Tensor:
    """Return rows rounded to integers of ``bits`` bits and back, with one scale for each row, which keeps its largest
    value: |x|_max / (2^(bits - 1) - 1)."""
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(scale > 0, (rows / scale).round() * scale, rows)


def quantisation_table(table: EmbeddingTable, seed: int) -> pd.DataFrame:
    """Return what rounding a table to few bits does to its geometry; the first row is the table itself.

    Returns:
        By bits: error (mean of |x - x'| / |x|), cosine (of a row with itself, smallest over the rows), cosine_moved and
        cosine_moved_most (of a cosine of two rows, mean and largest, over 100,000 pairs), nearest (share of 2,048 drawn
        rows whose largest cosine is still with the same row), components_90, two_nn (of the drawn rows).
    """
    rows = table.rows.detach().cpu().float()
    drawn = torch.from_numpy(np.random.RandomState(seed).permutation(len(rows))[:_MOST_ROWS])
    pairs = sample_pairs(len(rows), _N_PAIRS, seed)
    cosines, nearest = pair_values(rows, pairs)["cosine"], _nearest(rows, drawn)
    records = []
    for bits in (32, *BITS):
        held = rows if bits == 32 else quantised(rows, bits)
        moved = np.abs(pair_values(held, pairs)["cosine"] - cosines)
        records.append(
            {
                "bits": bits,
                "error": float(((rows - held).norm(dim=1) / rows.norm(dim=1)).nanmean()),
                "cosine": float(torch.cosine_similarity(rows, held, dim=1).min()),
                "cosine_moved": np.nanmean(moved),
                "cosine_moved_most": np.nanmax(moved),
                "nearest": float((_nearest(held, drawn) == nearest).float().mean()),
                **_dimensions(held, held[drawn]),
            }
        )
    return pd.DataFrame(records)


def _nearest(rows: Tensor, drawn: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(rows, dim=1)
    cosines = unit[drawn] @ unit.T
    return cosines.scatter(1, drawn[:, None], -torch.inf).argmax(1)


def _dimensions(rows: Tensor, drawn: Tensor) -> dict[str, float]:
    return {"components_90": components_for(explained_variance(rows))[0.9], "two_nn": float(two_nn(drawn))}


def known_clouds(seed: int) -> dict[str, Tensor]:
    """Return clouds of known dimension: unit cubes of 7, 8 and 9 dimensions in ten, and all three together.

    The first is moved away from the origin, the second turned at random (Luisto 2024, section 2.3.2).
    """
    random = np.random.RandomState(seed)
    cubes = [np.pad(random.random_sample((_N_POINTS, dim)), ((0, 0), (0, _ROOM - dim))) for dim in CUBES]
    moved = [cubes[0] + 2, cubes[1] @ ortho_group.rvs(_ROOM, random_state=random), cubes[2]]
    clouds = {f"cube of {dim}": torch.from_numpy(cube) for dim, cube in zip(CUBES, moved, strict=True)}
    return {**clouds, ALL_CUBES: torch.cat([*clouds.values()])}


def dimension_table(clouds: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return components for 90 % of the variance and the TwoNN dimension of each cloud."""
    return pd.DataFrame([{"cloud": name, "rows": len(x), **_dimensions(x, x)} for name, x in clouds.items()])


def loops_table(table: EmbeddingTable, seed: int) -> pd.DataFrame:
    """Return the loops of a path of positions, by persistent homology (Vietoris-Rips complex, dimension 1; ripser).

    A loop is there from the distance at which its points join (birth) to the one at which it is filled (death); the
    difference is its persistence.

    Returns:
        For the first 2, 3 and 6 principal components and for all: loops (their number), longest and second (largest
        persistences), birth and death of the longest, chance (largest persistence of 19 tables in each of which the
        values of every component are permuted).
    """
    from ripser import ripser

    scores, random = principal(table.rows, min(table.rows.shape)).scores, np.random.RandomState(seed)

    def bars(points: np.ndarray) -> np.ndarray:
        found = ripser(points, maxdim=1)["dgms"][1]
        return found[np.argsort(found[:, 0] - found[:, 1])]

    records = []
    for kept in dict.fromkeys(min(kept, scores.shape[1]) for kept in (2, 3, 6, scores.shape[1])):
        found = bars(scores[:, :kept])
        lengths = [*(found[:, 1] - found[:, 0]), 0.0, 0.0]
        by_chance = [bars(np.apply_along_axis(random.permutation, 0, scores[:, :kept])) for _ in range(_N_PERMUTATIONS)]
        ends = {"birth": found[0, 0], "death": found[0, 1]} if len(found) else {}
        chance = max(float((bars_[:, 1] - bars_[:, 0]).max(initial=0)) for bars_ in by_chance)
        values = {"longest": lengths[0], "second": lengths[1], "chance": chance, **ends}
        records.append({"table": table.name, "components": kept, "loops": len(found), **values})
    return pd.DataFrame(records)


@styled
def dimension_figure(name: str, curves: Mapping[str, np.ndarray], seed: int) -> Figure:
    """Draw the share of variance by number of components, of clouds of known dimension and of a model's tables.

    Args:
        curves: cumulative share of variance of each table.
    """
    figure = Figure(figsize=(10, 4.2))
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_curves(left, {of: explained_variance(rows) for of, rows in known_clouds(seed).items()})
    left.set_title("unit cubes in 10 dimensions")
    _draw_curves(right, curves)
    right.set(title="tables of the model, and sinusoids", xscale="log")
    left.set(ylabel="share of variance", ylim=(0, 1.03))
    entitle(figure, f"{name}: dimension curves", "share of variance along the first components")
    return figure


def _draw_curves(axes: Axes, curves: Mapping[str, np.ndarray]) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(
            np.arange(1, len(curve) + 1), curve, color=series_colour(number), marker=".", markersize=3, label=name
        )
    axes.set_xlabel("components")
    axes.legend(loc="lower right")
