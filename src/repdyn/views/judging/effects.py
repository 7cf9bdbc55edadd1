"""Ratios of measured values and rank correlations, with their intervals, and what an interval says
of a claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from repdyn.probe.design import PAPER
from repdyn.utils.intervals import mean_over_seeds, student_quantile
from repdyn.utils.numbers import number_text

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.views.tables.series import MetricSeries

Verdict = Literal["shown", "not shown", "cannot be judged"]
"""What a criterion says of a run."""

MOVES = ("grew", "fell")
"""What a value did that became larger, or smaller; the same words in every view."""
MOVING = ("growing", "falling")
"""What such a value is still doing."""

_PERCENT_UP_TO = 10.0
_LARGEST_EXPONENT = 700.0


def change_size(log_ratio: float) -> str:
    """Return the size of a change in percent, or the ratio as a factor if it is large.

    >>> change_size(0.47), change_size(-0.08), change_size(4.0)
    ('60%', '7.7%', 'a factor of 54.6')
    """
    ratio = math.exp(min(log_ratio, _LARGEST_EXPONENT))
    return (
        f"a factor of {number_text(ratio)}"
        if ratio >= _PERCENT_UP_TO
        else f"{_percent(abs(ratio - 1))}%"
    )


class CannotBeJudgedError(Exception):
    """Carries the reason why a criterion cannot be applied."""


def judge_interval(
    low: float, high: float, bounds: tuple[float, float], *, includes_bounds: bool = False
) -> Verdict:
    """Judge the claim that a quantity lies between two bounds, by its whole 95% interval.

    This is the one judge: of changes, which must exceed a bound, and of values, which may lie on it
    where the claim says "at least", "at most" or "from ... to".

    >>> [judge_interval(*ends, (1.0, 2.0)) for ends in ((1.1, 1.9), (0.9, 1.1), (2.0, 2.1))]
    ['shown', 'cannot be judged', 'not shown']
    >>> judge_interval(1.0, 1.5, (1.0, 2.0)), judge_interval(1.0, 1.5, (1.0, 2.0),
    ...     includes_bounds=True)
    ('cannot be judged', 'shown')
    """
    least, most = bounds
    if includes_bounds:
        is_inside = least <= low and high <= most
        is_outside = high < least or most < low
    else:
        is_inside = least < low and high < most
        is_outside = high <= least or most <= low
    if is_inside:
        return "shown"
    return "not shown" if is_outside else "cannot be judged"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error."""

    value: float
    std_error: float
    """NaN where it is not known."""
    n_batches: int

    @property
    def degrees(self) -> float:
        """Return the degrees of freedom of the standard error: that of a single batch rests on tens
        of windows or more, that of several on the batches themselves.
        """
        return self.n_batches - 1 if self.n_batches > 1 else math.inf

    @property
    def half_width(self) -> float:
        """Return half of the 95% interval: 0 for an exact value, NaN where no error is known."""
        return student_quantile(self.degrees) * self.std_error if self.std_error else 0.0


def estimate_at(series: MetricSeries, row: int, column: int) -> Estimate:
    """Return a value of the grid of a series, by layer and step, with its standard error."""
    return Estimate(
        value=float(series.values[row, column]),
        std_error=float(series.std_errors[row, column]),
        n_batches=int(series.n_batches[row, column]),
    )


def with_bands(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in which values by the published design have its bands for intervals: the mean
    over batches plus or minus one standard deviation of theirs.

    The batches of this design share windows, so that their spread says nothing of another probe;
    it is what the paper shows beside its values. Rows that name no design, and those of a single
    batch, are left as they are.
    """
    if "design" not in rows:
        return rows
    is_banded = has_bands(rows)
    if not is_banded.any():
        return rows
    # any number above 1 does where there is no band: those rows keep their own error
    degrees = rows["n_batches"].where(is_banded, 2) - 1
    # so that the half width of the estimate is the standard deviation
    std_error = rows["std"] / degrees.map(student_quantile)
    return rows.assign(std_error=rows["std_error"].where(~is_banded, std_error))


def has_bands(rows: pd.DataFrame) -> pd.Series:
    """Return which rows have no standard error, but the band of the published design."""
    is_of_paper = rows["design"].eq(PAPER.name)
    has_spread = rows["std_error"].isna() & rows["n_batches"].gt(1)
    return cast("pd.Series", is_of_paper & has_spread)


def mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Average values that rest on the same batches; the error is that of values that are perfectly
    correlated.
    """
    return Estimate(
        fmean(estimate.value for estimate in estimates),
        fmean(estimate.std_error for estimate in estimates),
        min(estimate.n_batches for estimate in estimates),
    )


@dataclass(frozen=True, slots=True)
class Effect:
    """The logarithm of a ratio of two values, with its interval."""

    log_ratio: float
    half_width: float

    @classmethod
    def of(cls, value: Estimate, base: Estimate) -> Effect:
        """Compare a value with a base, by the delta method and Student's t; a CannotBeJudgedError
        if that fails.
        """
        for estimate in (value, base):
            if math.isnan(estimate.std_error):
                raise CannotBeJudgedError(
                    "no standard error is known of a single batch; take several with batch_vectors="
                    if estimate.n_batches < 2
                    else "the batches share windows, so their spread says nothing of another probe"
                )
            if estimate.value <= 0:
                raise CannotBeJudgedError(
                    f"a ratio needs values above 0, got {number_text(estimate.value)}"
                )
        std_error = math.hypot(value.std_error / value.value, base.std_error / base.value)
        # the value with fewer batches decides how uncertain the error of both is
        quantile = student_quantile(min(value.degrees, base.degrees))
        return cls(math.log(value.value / base.value), quantile * std_error)

    @classmethod
    def over_seeds(cls, effects: Sequence[Effect]) -> Effect:
        """Return the mean effect over two or more seeds of one model, with the interval of
        Student's t over seeds.
        """
        return cls(*map(float, mean_over_seeds(np.array([effect.log_ratio for effect in effects]))))

    @property
    def low(self) -> float:
        return self.log_ratio - self.half_width

    @property
    def high(self) -> float:
        return self.log_ratio + self.half_width

    def judge(self, *, above: float | None = None, below: float | None = None) -> Verdict:
        """Judge the claim that the change, ratio - 1, lies strictly between two bounds; 0.1 stands
        for 10%.

        >>> Effect(0.2, 0.05).judge(above=0.1), Effect(0.1, 0.05).judge(above=0.1), Effect(0.0,
        ...     0.05).judge(above=0.1)
        ('shown', 'cannot be judged', 'not shown')
        """
        least = -math.inf if above is None else math.log1p(above)
        most = math.inf if below is None else math.log1p(below)
        return judge_interval(self.low, self.high, (least, most))

    def __str__(self) -> str:
        """Return the size of the change in percent, or the ratio as a factor if it is large, with
        the interval.

        >>> str(Effect(0.47, 0.05)), str(Effect(-0.08, 0.1))
        ('60% (interval 52 to 68)', '7.7% (interval -2.0 to 16)')
        >>> str(Effect(4.0, 0.1))
        'a factor of 54.6 (interval 49.4 to 60.3)'
        """
        ratio, low, high = (
            # the end of a very wide interval may lie beyond the largest float
            math.exp(min(each, _LARGEST_EXPONENT))
            for each in (self.log_ratio, self.low, self.high)
        )
        if ratio >= _PERCENT_UP_TO:
            ends = f"{number_text(low)} to {number_text(high)}"
        else:
            ends = " to ".join(
                map(_percent, (1 - high, 1 - low) if ratio < 1 else (low - 1, high - 1))
            )
        return f"{change_size(self.log_ratio)} (interval {ends})"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that a quantity differs from another by a change strictly between two bounds; None
    for no bound.
    """

    subject: str
    verbs: tuple[str, str]
    """What the subject does where it is the higher one, and where it is the lower one."""
    effect: Effect
    above: float | None = None
    below: float | None = None

    @property
    def verdict(self) -> Verdict:
        return self.effect.judge(above=self.above, below=self.below)

    @property
    def sentence(self) -> str:
        """Return the change without its interval.

        >>> print(Claim("anisotropy", ("grew", "fell"), Effect(0.2, 0.05), above=0.1).sentence)
        anisotropy grew by 22%
        """
        verb = self._verb(rises=not self.effect.log_ratio < 0)
        return f"{self.subject} {verb} by {change_size(self.effect.log_ratio)}"

    def __str__(self) -> str:
        """Return the change as a sentence, and what its interval leaves open or excludes.

        >>> verbs = "grew", "fell"
        >>> print(Claim("anisotropy", verbs, Effect(0.2, 0.05), above=0.1))
        anisotropy grew by 22% (interval 16 to 28)
        >>> print(Claim("anisotropy", verbs, Effect(0.2, 0.15), above=0.1))
        anisotropy grew by 22% (interval 5.1 to 42), which leaves open whether by more than 10%
        >>> print(Claim("anisotropy", verbs, Effect(0.09, 0.15), above=0.1))
        anisotropy grew by 9.4% (interval -5.8 to 27), which leaves open whether it grew at all
        """
        rises = self.effect.log_ratio >= 0
        text = f"{self.subject} {self._verb(rises)} by {self.effect}"
        claims_rise = self.above is not None or (self.below or 0.0) > 0
        if self.verdict == "cannot be judged":
            may_be_none = self.effect.low < 0 < self.effect.high and self._bound.startswith("more")
            at_all = f"it {self._verb(claims_rise)} at all"
            whether = at_all if may_be_none else f"by {self._bound}"
            return f"{text}, which leaves open whether {whether}"
        is_range = self.above is not None and self.below is not None
        is_missed = self.verdict == "not shown" and (is_range or rises == claims_rise)
        return f"{text}, not by {self._bound}" if is_missed else text

    def _verb(self, rises: bool) -> str:
        return self.verbs[0] if rises else self.verbs[1]

    @property
    def _bound(self) -> str:
        if self.below is not None and self.below > 0:
            either_way = "" if self.above is None else " either way"
            return f"less than {100 * self.below:.0f}%{either_way}"
        return f"more than {100 * abs(self.above or self.below or 0.0):.0f}%"


def conjunction(verdicts: Iterable[Verdict]) -> Verdict:
    """Join the verdicts on the parts of a claim: one part that is not shown is enough for "not
    shown".

    >>> conjunction(["shown", "cannot be judged"]), conjunction(["not shown", "cannot be judged"])
    ('cannot be judged', 'not shown')
    """
    of_parts = set(verdicts)
    if "not shown" in of_parts:
        return "not shown"
    return "cannot be judged" if "cannot be judged" in of_parts else "shown"


def majority(verdicts: Sequence[Verdict]) -> Verdict:
    """Judge the claim that something is shown of more than half of the members.

    >>> majority(["shown", "shown", "not shown"]), majority(["shown", "cannot be judged"])
    ('shown', 'cannot be judged')
    """
    if 2 * verdicts.count("shown") > len(verdicts):
        return "shown"
    return "not shown" if 2 * verdicts.count("not shown") >= len(verdicts) else "cannot be judged"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The effects and claims that decide a finding."""

    claims: tuple[Claim, ...]
    """Claims, all of which the finding requires."""
    blocks: tuple[Effect, ...] = ()
    """Change of each block, of which more than half must fall; empty for a finding that is not
    about blocks.
    """
    notes: tuple[str, ...] = ()
    """For the evidence: steps and blocks that the effects are taken at."""
    objection: str | None = None
    """Why a finding that everything else shows is left open; None if there is no such reason."""
    coverage: str | None = None
    """How many blocks the effects are over, where some are left out."""

    @property
    def verdict(self) -> Verdict:
        return "cannot be judged" if self._claimed == "shown" and self.objection else self._claimed

    @property
    def sentence(self) -> str:
        """Return what decides the verdict, with its intervals, then the other changes.

        A claim that is not shown decides alone. Of a verdict that is left open, all open claims
        decide; of one that is shown, all claims.
        """
        deciding = [str(claim) for claim in self.claims if claim.verdict == self._claimed]
        others = [claim.sentence for claim in self.claims if claim.verdict != self._claimed]
        if self.blocks and majority(self._falls) == self._claimed:
            deciding.append(f"{self._fall_of_blocks}, where more than half must")
        return "; ".join([*self._objections, *deciding, *others])

    @property
    def evidence(self) -> str:
        """Return the effects as sentences, with what their intervals do not decide, and
        the notes.
        """
        parts = [str(claim) for claim in self.claims]
        if self.blocks:
            parts.append(self._fall_of_blocks)
        return "; ".join(filter(None, [*parts, *self.notes, *self._objections, self.coverage]))

    @property
    def _objections(self) -> list[str]:
        """Return the objection that leaves a finding open although all claims are shown."""
        return [self.objection] if self.objection and self._claimed == "shown" else []

    @property
    def _fall_of_blocks(self) -> str:
        n_unclear = self._falls.count("cannot be judged")
        may = f", {n_unclear} may" if n_unclear else ""
        return f"{self._falls.count('shown')} of {len(self.blocks)} blocks fall{may}"

    @property
    def _falls(self) -> list[Verdict]:
        return [effect.judge(below=0) for effect in self.blocks]

    @property
    def _claimed(self) -> Verdict:
        verdicts: list[Verdict] = [claim.verdict for claim in self.claims]
        return conjunction([*verdicts, majority(self._falls)] if self.blocks else verdicts)


def over_seeds(judgements: Sequence[Judgement]) -> Judgement:
    """Join the judgements of the seeds of one model on the same blocks: the same claims, of effects
    with intervals over seeds. What one seed is objected to is objected to all; notes that differ
    are listed."""
    first = judgements[0]
    claims = zip(*(of_seed.claims for of_seed in judgements), strict=True)
    blocks = zip(*(of_seed.blocks for of_seed in judgements), strict=True)
    notes = zip(*(of_seed.notes for of_seed in judgements), strict=True)
    objections = [of_seed.objection for of_seed in judgements if of_seed.objection]
    in_seeds = f"in {len(objections)} of {len(judgements)} seeds"
    return Judgement(
        claims=tuple(
            replace(of[0], effect=Effect.over_seeds([claim.effect for claim in of]))
            for of in claims
        ),
        blocks=tuple(Effect.over_seeds(of) for of in blocks),
        notes=tuple(" or ".join(dict.fromkeys(of)) for of in notes),
        objection=f"{objections[0]} {in_seeds}" if objections else None,
        coverage=first.coverage,
    )


def _percent(change: float) -> str:
    return f"{100 * change:.1f}" if abs(change) < 0.0995 else f"{100 * change:.0f}"


MIN_PAIRS = 4
"""Least number of pairs with an interval: its standard error divides by this number minus 3."""
_NORMAL_QUANTILE = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Correlation:
    """Spearman's rank correlation."""

    value: float
    """In [-1, 1]; NaN with fewer than two pairs, or if one of the variables is constant."""
    low: float
    """Lower end of the 95% interval; NaN with fewer than four pairs."""
    high: float
    n: int
    """Number of pairs."""


def rank_correlation(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Return Spearman's rank correlation with its 95% interval.

    The interval is that of Fisher's transformation with the variance (1 + rho^2 / 2) / (n - 3) of
    Bonett and Wright (2000). It assumes independent pairs. A correlation of 1 or -1 has the
    interval [1, 1] or [-1, -1].

    Args:
        x: (n,) finite values; only their order matters, and equal values share their mean rank.
        y: (n,) finite values.

    >>> found = rank_correlation(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.0, 4.0, 2.0,
    ...     16.0, 25.0]))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.n
    (0.9, -0.169, 0.996, 5)
    """
    n = len(x)
    if n < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(value=math.nan, low=math.nan, high=math.nan, n=n)
    value = float(np.clip(np.corrcoef([_ranks(x), _ranks(y)])[0, 1], -1.0, 1.0))
    if n < MIN_PAIRS:
        return Correlation(value=value, low=math.nan, high=math.nan, n=n)
    half = _NORMAL_QUANTILE * math.sqrt((1 + value**2 / 2) / (n - 3))
    with np.errstate(divide="ignore"):  # of a perfect correlation, whose transform is infinite
        centre = np.arctanh(value)
    low = float(np.tanh(centre - half))
    high = float(np.tanh(centre + half))
    return Correlation(value=value, low=low, high=high, n=n)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, from 1; equal values share their mean rank."""
    # scipy.stats takes seconds to import
    _, place, number = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(number) - (number - 1) / 2)[place]
