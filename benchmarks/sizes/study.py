"""Estimates of many subsets of a layer's states: their mean, their spread and what they cost, by number of vectors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repdyn.kernels import Cloud, anisotropy, two_nn

QUANTITIES: dict[str, Callable[[Cloud], Tensor]] = {"two_nn": two_nn, "anisotropy": anisotropy}
SMALLEST = 512
USUAL = 4096
"""Vectors of a batch by default, whose cost is 1."""
PLANNED = 16384
"""Vectors of a plan in all its batches together."""
_MOST_BATCHES = 16

Progress = Callable[[str, int], None]
"""``progress(what comes next, rounds done since the last call)``."""


@dataclass(frozen=True)
class Plan:
    """A number of disjoint batches, over which the estimate is averaged."""

    batches: int
    n: int
    """Vectors of each."""


@dataclass(frozen=True)
class Pool:
    """The vectors of one layer to draw from."""

    model: str
    cloud: str
    states: Tensor
    """(n_vectors, dim) float32; repeated vectors stay, as they do in a measurement."""
    n_distinct: int

    def lack(self, plan: Plan) -> str:
        """Why a plan cannot be drawn from it; "" where it can."""
        if plan.batches * plan.n > len(self.states):
            return f"only {len(self.states):,} vectors"
        if plan.n > self.n_distinct:
            return f"only {self.n_distinct:,} distinct vectors"
        return ""


@dataclass(frozen=True)
class Row:
    """One quantity of one cloud by one plan; None what there is not, and then ``note`` says why."""

    model: str
    """Empty for a cube."""
    cloud: str
    quantity: str
    batches: int
    n: int
    coordinates: int
    dimension: int | None = None
    """The true one, of a cube."""
    n_vectors: int | None = None
    """To draw from."""
    n_distinct: int | None = None
    """How many of them differ."""
    draws: int = 0
    overlapping: bool = False
    """Whether the draws share vectors: then they vary less than independent ones."""
    fewest_distinct: int | None = None
    """Distinct vectors in the batch that has fewest."""
    mean: float | None = None
    """Over the draws, of the mean over a plan's batches."""
    sd: float | None = None
    """Of the same."""
    deviation: float | None = None
    """Of the mean, relative: from that of one batch as large as there is; of a cube from the truth."""
    seconds: float | None = None
    """Batches times the median of one."""
    cost: float | None = None
    """Seconds relative to one batch of ``USUAL`` vectors, or of the most below."""
    note: str = ""


@dataclass(frozen=True)
class _Batch:
    values: dict[str, float]
    seconds: dict[str, float]
    n_distinct: int


def sizes(largest: int) -> list[int]:
    """The powers of two from 512 to ``largest``."""
    return [1 << power for power in range(SMALLEST.bit_length() - 1, largest.bit_length())]


def single_batches(largest: int) -> list[Plan]:
    """One batch of each size."""
    return [Plan(1, n) for n in sizes(largest)]


def equal_plans(largest: int) -> list[Plan]:
    """16 small batches to 1 large one, of the same number of vectors in all."""
    total = min(PLANNED, largest)
    return [Plan(1 << power, total >> power) for power in range(_MOST_BATCHES.bit_length() - 1, -1, -1)]


def draws(n_vectors: int, size: int, repeats: int) -> list[Tensor]:
    """Which vectors to take, ``repeats`` times ``size`` of them.

    They are runs of a permutation, disjoint; where it does not hold enough, those of a second one follow, and so on.
    All vectors at once can be drawn in one way only.
    """
    generator = torch.Generator().manual_seed(0)
    found: list[Tensor] = []
    while len(found) < repeats:
        found += torch.randperm(n_vectors, generator=generator).split(size)[: n_vectors // size]
    return found[: 1 if size == n_vectors else repeats]


def study(pool: Pool, plans: Sequence[Plan], repeats: int, progress: Progress) -> list[Row]:
    """A row for each plan and quantity.

    Args:
        pool: to draw from.
        plans: single batches of several sizes among them, to which the others are related.
        repeats: draws of each plan, one in each round, so that a busy machine slows all of them alike.
        progress: told the size before each step, and each round.
    """
    possible = [plan for plan in plans if not pool.lack(plan)]
    drawn = {plan: draws(len(pool.states), plan.batches * plan.n, repeats) for plan in possible}
    done: dict[Plan, list[list[_Batch]]] = {plan: [] for plan in plans}
    for plan in possible[:1]:
        _evaluate(pool.states[drawn[plan][0]])  # the first call of a process takes longer
    for number in range(repeats):
        for plan, choices in drawn.items():
            progress(f"{pool.cloud} of {pool.model}, {plan.batches} x {plan.n}", 0)
            done[plan] += [
                [_evaluate(pool.states[batch]) for batch in choice.split(plan.n)]
                for choice in choices[number : number + 1]
            ]
        progress("", 1)
    rows = [_row(pool, plan, quantity, done[plan]) for plan in plans for quantity in QUANTITIES]
    return _related(rows)


def _evaluate(x: Tensor) -> _Batch:
    cloud = Cloud(x)
    values, seconds = {}, {}
    for quantity, kernel in QUANTITIES.items():
        start = time.perf_counter()
        values[quantity] = kernel(cloud).item()
        seconds[quantity] = time.perf_counter() - start
    return _Batch(values, seconds, cloud.n_unique)


def _row(pool: Pool, plan: Plan, quantity: str, drawn: Sequence[Sequence[_Batch]]) -> Row:
    row = Row(
        model=pool.model,
        cloud=pool.cloud,
        quantity=quantity,
        batches=plan.batches,
        n=plan.n,
        coordinates=pool.states.shape[1],
        n_vectors=len(pool.states),
        n_distinct=pool.n_distinct,
    )
    if not drawn:
        return replace(row, note=pool.lack(plan))
    batches = [batch for draw in drawn for batch in draw]
    row = replace(
        row,
        draws=len(drawn),
        overlapping=len(drawn) * plan.batches * plan.n > len(pool.states),
        fewest_distinct=min(batch.n_distinct for batch in batches),
        seconds=plan.batches * statistics.median(batch.seconds[quantity] for batch in batches),
    )
    return with_values(row, [statistics.fmean(batch.values[quantity] for batch in draw) for draw in drawn])


def with_values(row: Row, values: Sequence[float]) -> Row:
    """The row with mean and standard deviation of what was estimated, which may be undefined."""
    undefined = sum(value != value for value in values)
    if undefined:
        return replace(row, note=f"undefined in {undefined} of {len(values)} draws")
    sd = statistics.stdev(values) if len(values) > 1 else None
    return replace(row, mean=statistics.fmean(values), sd=sd)


def _related(rows: Sequence[Row]) -> list[Row]:
    """Deviation from the largest batch, and cost relative to the usual one, quantity by quantity."""
    related = []
    for row in rows:
        single = [one for one in rows if one.quantity == row.quantity and one.batches == 1]
        means = {one.n: one.mean for one in single if one.mean is not None}
        times = {one.n: one.seconds for one in single if one.seconds is not None and one.n <= USUAL}
        if row.mean is not None and means:
            row = replace(row, deviation=row.mean / means[max(means)] - 1)
        if row.seconds is not None and times:
            row = replace(row, cost=row.seconds / times[max(times)])
        related.append(row)
    return related
