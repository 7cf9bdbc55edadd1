"""Criteria by which published values are judged: of profiles over depth, of courses over training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
from pydantic import AfterValidator
from scipy.special import stdtrit

from repdyn.recipes.measured import (
    QUANTILES,
    Course,
    Layers,
    Measured,
    NotMeasuredError,
    Profile,
    Step,
    blocks_text,
    correlate,
    redrawn,
    require_trained,
    rho_text,
)
from repdyn.store.schema import PROBE_LOSS
from repdyn.tables import findings as of_findings
from repdyn.tables.effects import (
    CONFIDENCE,
    CannotBeJudgedError,
    Claim,
    Effect,
    Estimate,
    Verdict,
    conjunction,
)
from repdyn.tables.findings import findings


def ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"expected the lower bound first, got {bounds}")
    return bounds


Axis: TypeAlias = Literal["depth", "training", "other metric"]
Change: TypeAlias = Literal["rise", "fall"]
Bounds: TypeAlias = Annotated[tuple[float, float], AfterValidator(ascending)]
Judgement: TypeAlias = tuple[Verdict, str]
"""A verdict, and the measured numbers on which it is based."""

_OPPOSITE: dict[Verdict, Verdict] = {
    "shown": "not shown",
    "not shown": "shown",
    "cannot be judged": "cannot be judged",
}
_LEAST_CHECKPOINTS = 5


class BaseCriterion(ABC):
    """A criterion by which a published value is judged on measured ones; the base class of all kinds."""

    step: Step = "last"
    """Step at which a profile is judged and drawn."""
    layers: Layers = "mean"
    """Blocks over which the values of a course are taken."""
    least_checkpoints: int = 1
    """Number of checkpoints of a model that a verdict needs."""
    axis: Axis = "training"
    """Quantity on the horizontal axis of a figure."""

    @property
    def band(self) -> tuple[float, float] | None:
        """Published range on the horizontal axis; None if there is none."""
        return None

    @property
    @abstractmethod
    def text(self) -> str:
        """Sentence that states the criterion with its numbers."""

    @abstractmethod
    def judge(self, measured: Measured, metric: str) -> Judgement:
        """Judge the measurements of one model."""


def interval_verdict(low: float, high: float, least: float, most: float) -> Verdict:
    """Judge the claim that a value lies from ``least`` to ``most``, as its whole interval must."""
    if least <= low and high <= most:
        return "shown"
    return "not shown" if high < least or low > most else "cannot be judged"


@dataclass(frozen=True, kw_only=True)
class RankCriterion(BaseCriterion):
    """The base class of criteria by a rank correlation: at least a value, or at most one."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("expected either at_least or at_most, got both or neither; keep one")

    @property
    def bound(self) -> str:
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    def verdict(self, low: float, high: float) -> Verdict:
        """Judge the bound by an interval, which must lie on the claimed side with its whole length."""
        least = -math.inf if self.at_least is None else self.at_least
        return interval_verdict(low, high, least, math.inf if self.at_most is None else self.at_most)


@dataclass(frozen=True)
class PublishedFinding(BaseCriterion):
    """One of the findings of docs/findings.md, by the criterion there."""

    finding: Literal["bell", "uniform", "growth", "dimension"]

    def __post_init__(self) -> None:
        is_profile = self.finding in {"bell", "uniform"}
        object.__setattr__(self, "axis", "depth" if is_profile else "training")
        object.__setattr__(self, "least_checkpoints", 1 if is_profile else 3)

    @property
    def band(self) -> tuple[float, float] | None:
        return of_findings.MIDDLE if self.finding == "bell" else None

    @property
    def text(self) -> str:
        return str(getattr(of_findings, self.finding.upper()))

    def judge(self, measured: Measured, metric: str) -> Judgement:
        subset = metric.partition("@")[2] or "all"
        measured.cells(metric)
        for found in findings(measured.judged_frame):
            if (found.name, found.subset) == (self.finding, subset):
                return found.verdict, found.evidence
        raise NotMeasuredError(f"the finding {self.finding!r} is not judged on {subset}")


@dataclass(frozen=True)
class Peak(BaseCriterion):
    """A peak of the profile over depth, between two relative depths.

    The highest block there exceeds the first and the last block by more than ``more``, and every block outside.
    ``absent`` claims the opposite.
    """

    depth: Bounds = of_findings.MIDDLE
    more: float = of_findings.MORE
    step: Step = "last"
    absent: bool = False

    sign: ClassVar[int] = 1
    axis = "depth"

    @property
    def band(self) -> tuple[float, float]:
        return self.depth

    @property
    def text(self) -> str:
        low, high = self.depth
        extreme, lies = ("highest", "exceeds") if self.sign > 0 else ("lowest", "is exceeded by")
        claim = (
            f"At the {self.step} measured step, the {extreme} block at a relative depth of {low:g} to {high:g} {lies} "
            f"every block outside, the first and the last one by more than {self.more:.0%}."
        )
        return f"Not so: {claim}" if self.absent else claim

    def judge(self, measured: Measured, metric: str) -> Judgement:
        profile = measured.profile(metric, self.step)
        low, high = self.depth
        blocks = list(zip(profile.positions, profile.blocks, strict=True))
        inside = [pair for pair in blocks if low <= pair[0] <= high]
        outside = [pair for pair in blocks if not low <= pair[0] <= high]
        if not inside or {0.0, 1.0} - {position for position, _ in outside}:
            raise CannotBeJudgedError(f"needs the first block, the last and one at {low:g} to {high:g} of the depth")
        (place, best), (_, rival) = (
            max(part, key=lambda pair: self.sign * pair[1].value) for part in (inside, outside)
        )
        ends = {position: block for position, block in outside if position in {0.0, 1.0}}
        claims = [
            self._exceeds("the first block", best, ends[0.0], self.more),
            self._exceeds("the last block", best, ends[1.0], self.more),
            self._exceeds("each block outside", best, rival, 0.0),
        ]
        evidence = f"{best} at depth {place:.2f}; {'; '.join(map(str, claims))}; step {profile.step:,}"
        verdict = conjunction(claim.verdict for claim in claims)
        return (_OPPOSITE[verdict] if self.absent else verdict), evidence

    def _exceeds(self, name: str, best: Estimate, other: Estimate, more: float) -> Claim:
        if self.sign > 0:
            return Claim("it", (f"exceeds {name}", f"is below {name}"), Effect.of(best, other), above=more)
        return Claim(name, ("exceeds it", "is below it"), Effect.of(other, best), above=more)


@dataclass(frozen=True)
class Trend(RankCriterion):
    """Spearman's correlation of the value with depth, over blocks, at least or at most some value."""

    step: Step = "last"

    axis = "depth"

    @property
    def text(self) -> str:
        return (
            f"At the {self.step} measured step, Spearman's correlation with depth over blocks is {self.bound}, with "
            "its whole 95% interval over probes."
        )

    def judge(self, measured: Measured, metric: str) -> Judgement:
        profile = measured.profile(metric, self.step)
        drawn = depth_correlations(profile, redrawn(profile.blocks))
        (value,) = depth_correlations(profile, np.array([[block.value for block in profile.blocks]]))
        low, high = np.quantile(drawn, QUANTILES)
        evidence = rho_text(value, low, high, f"{len(profile.blocks)} blocks")
        return self.verdict(low, high), f"{evidence}; step {profile.step:,}"


def depth_correlations(profile: Profile, values: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation with depth of each row of (n, n_blocks) values; 0 for a constant row."""
    depths, ranks = pd.Series(profile.positions).rank().to_numpy(), pd.DataFrame(values).rank(axis=1).to_numpy()
    x, y = depths - depths.mean(), ranks - ranks.mean(axis=1, keepdims=True)
    scale = np.sqrt((x**2).sum() * (y**2).sum(axis=1))
    return np.divide(y @ x, scale, out=np.zeros(len(y)), where=scale > 0)


@dataclass(frozen=True)
class Valley(Peak):
    """A valley of the profile over depth: as :class:`Peak`, with the lowest block, which the others exceed."""

    sign: ClassVar[int] = -1


@dataclass(frozen=True)
class Phases(BaseCriterion):
    """Phases over training, such as fall, rise, fall: each changes the value by more than its share of ``more``.

    The turning points are the measured steps that make the sum of the changes largest.
    """

    phases: tuple[Change, ...]
    more: tuple[float, ...]
    layers: Layers = "mean"

    def __post_init__(self) -> None:
        if len(self.more) != len(self.phases):
            raise ValueError(f"expected one value of more for each of {len(self.phases)} phases, got {len(self.more)}")
        object.__setattr__(self, "least_checkpoints", len(self.phases) + 1)

    @property
    def text(self) -> str:
        parts = [f"{phase} by more than {share:.0%}" for phase, share in zip(self.phases, self.more, strict=True)]
        return f"Over training, {blocks_text(self.layers)}: {', then '.join(parts)}."

    def judge(self, measured: Measured, metric: str) -> Judgement:
        course = measured.course(metric, self.layers)
        _require_beginning(course, self.least_checkpoints)
        if min(value.value for value in course.values) <= 0:
            raise CannotBeJudgedError("ratios need values above 0")
        turns = turning_points([math.log(value.value) for value in course.values], self.phases)
        claims = []
        for number, (phase, more) in enumerate(zip(self.phases, self.more, strict=True)):
            begin, end = turns[number], turns[number + 1]
            effect = Effect.of(course.values[end], course.values[begin])
            # a fall divides the value by more than 1 + more
            above, below = (more, None) if phase == "rise" else (None, 1 / (1 + more) - 1)
            claims.append(Claim(f"to step {course.steps[end]:,} it", ("rises", "falls"), effect, above, below))
        return conjunction(claim.verdict for claim in claims), "; ".join(map(str, claims))


@dataclass(frozen=True)
class Correlation(RankCriterion):
    """Spearman's correlation over checkpoints of the metric with another one, at least or at most some value.

    ``other`` may be "probe/loss", the loss on the probe.
    """

    other: str
    layers: Layers = "mean"

    least_checkpoints = _LEAST_CHECKPOINTS
    axis = "other metric"

    @property
    def text(self) -> str:
        return (
            f"Over checkpoints, Spearman's correlation with {self.other} is {self.bound}, with its whole 95% interval "
            f"({blocks_text(self.layers)})."
        )

    def pairs(self, measured: Measured, metric: str) -> tuple[list[int], list[float], list[float]]:
        """Return the steps at which both have a value, and the values of the other one and of the metric."""
        values = _by_step(measured.course(metric, self.layers))
        if self.other == PROBE_LOSS:
            others = measured.scalar(PROBE_LOSS)
            if not others:
                raise NotMeasuredError("no loss on the probe was measured; sweep with --loss")
        else:
            others = _by_step(measured.course(self.other, self.layers))
        steps = [step for step in values if step in others]
        return steps, [others[step] for step in steps], [values[step] for step in steps]

    def judge(self, measured: Measured, metric: str) -> Judgement:
        steps, x, y = self.pairs(measured, metric)
        if len(steps) < _LEAST_CHECKPOINTS:
            raise CannotBeJudgedError(f"needs {_LEAST_CHECKPOINTS} checkpoints, got {len(steps)}")
        notes = require_trained(measured)
        rho = correlate(x, y, "checkpoints")
        evidence = rho_text(rho.value, rho.low, rho.high, f"{len(steps)} checkpoints")
        return self.verdict(rho.low, rho.high), "; ".join([evidence, *notes])


@dataclass(frozen=True)
class Cell:
    """A value in a table of a study: near the published one, at least a bound, or at most one.

    Where the table has a 95 % interval, in the columns NAME_low and NAME_high, or low and high, the whole interval must
    be there.
    """

    study: str
    table: str
    """Name of the file, without its suffix."""
    column: str
    row: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns that tell the row."""
    value: float | None = None
    within: float | None = None
    """Largest distance from ``value``."""
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.within is None):
            raise ValueError("expected value and within together, got one of them")
        if (self.value is None) == (self.at_least is None and self.at_most is None):
            raise ValueError("expected value and within, or at_least, or at_most; keep one kind")

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value that is as published."""
        if self.value is not None and self.within is not None:
            return self.value - self.within, self.value + self.within
        return (
            -math.inf if self.at_least is None else self.at_least,
            math.inf if self.at_most is None else self.at_most,
        )

    @property
    def text(self) -> str:
        at = ", ".join(f"{name} {value}" for name, value in self.row.items())
        where = f"{self.column} in {self.table}.csv of the study {self.study}" + (f" ({at})" if at else "")
        if self.value is not None:
            return f"{where}: within {self.within:g} of {self.value:g}."
        low, high = self.bounds
        return f"{where}: {f'at least {low:g}' if math.isinf(high) else f'at most {high:g}'}."

    def measured(self, table: pd.DataFrame) -> tuple[float, float, float]:
        """Return the value in a table of the study, and its interval, which is the value itself where it has none."""
        if missing := {self.column, *self.row} - set(table):
            raise NotMeasuredError(f"{self.table}.csv has no column {missing.pop()}")
        found = select_rows(table, self.row)
        if len(found) != 1:
            at = ", ".join(f"{name} {value}" for name, value in self.row.items())
            raise CannotBeJudgedError(f"{self.table}.csv has {len(found) or 'no'} rows with {at}")
        (record,) = found.to_dict("records")
        value = float(record[self.column])
        low, high = (float(record.get(f"{self.column}_{end}", record.get(end, value))) for end in ("low", "high"))
        return value, low, high

    def judge(self, table: pd.DataFrame) -> Judgement:
        """Judge the value in a table of the study."""
        value, low, high = self.measured(table)
        if math.isnan(value):
            raise CannotBeJudgedError("the value is undefined")
        interval = f" [{low:.4g}, {high:.4g}]" if low < high else ""
        return interval_verdict(low, high, *self.bounds), f"{value:.4g}{interval}"


def select_rows(table: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a table that have the given values; None for a missing one.

    A layer below 0 counts from the last one, which is -1.
    """
    for column, value in values.items():
        own = table[column].astype(str)
        if value is None:
            chosen = table[column].isna()
        elif isinstance(value, str):
            chosen = own == value
        else:
            numbers = own.where(own.str.fullmatch(r"-?[0-9.]+"), "nan").astype(float)
            chosen = numbers == (numbers.max() + 1 + value if column == "layer" and value < 0 else value)
        table = table.loc[chosen]
    return table


@dataclass(frozen=True)
class Between(BaseCriterion):
    """A value at the first or last measured step, between two bounds with its whole interval."""

    bounds: Bounds
    step: Step = "last"
    layers: Layers = "mean"

    @property
    def text(self) -> str:
        low, high = self.bounds
        return f"At the {self.step} measured step, between {low:g} and {high:g} ({blocks_text(self.layers)})."

    def judge(self, measured: Measured, metric: str) -> Judgement:
        course = measured.course(metric, self.layers)
        at = 0 if self.step == "first" else -1
        value = course.values[at]
        if math.isnan(value.std_error):
            raise CannotBeJudgedError("no interval: a single batch, or batches that share windows")
        half = float(stdtrit(value.n_batches - 1, (1 + CONFIDENCE) / 2)) * value.std_error
        verdict = interval_verdict(value.value - half, value.value + half, *self.bounds)
        return verdict, f"{value} +- {half:.2g} at step {course.steps[at]:,}"


def turning_points(values: Sequence[float], phases: Sequence[str]) -> list[int]:
    """Return the first place, the turning points and the last place that make the changes of the phases largest.

    >>> turning_points([5.0, 2.0, 3.0, 9.0, 8.0, 4.0], ["fall", "rise", "fall"])
    [0, 1, 3, 5]
    """
    level = np.asarray(values, float)
    n = len(level)
    best, before = np.where(np.arange(n) == 0, 0.0, -math.inf), []
    for phase in phases:
        sign = 1.0 if phase == "rise" else -1.0
        # from place i (rows) to a later place j (columns)
        gains = np.where(np.triu(np.ones((n, n), bool), 1), best[:, None] + sign * (level - level[:, None]), -math.inf)
        before.append(gains.argmax(axis=0))
        best = gains.max(axis=0)
    places = [n - 1]
    for chosen in reversed(before):
        places.append(int(chosen[places[-1]]))
    return places[::-1]


def _by_step(course: Course) -> dict[int, float]:
    return {step: value.value for step, value in zip(course.steps, course.values, strict=True)}


def _require_beginning(course: Course, n_steps: int) -> None:
    first, last = course.steps[0], course.steps[-1]
    if len(course.steps) < n_steps:
        raise CannotBeJudgedError(f"needs {n_steps} checkpoints, got {len(course.steps)}")
    if first > of_findings.EARLY * last:
        raise CannotBeJudgedError(f"no value before step {first:,} of {last:,}; the course may begin earlier")
