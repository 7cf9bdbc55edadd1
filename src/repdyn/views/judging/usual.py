"""Which measured models the middle of a run resembles: ranges of anisotropy, TwoNN and effective
rank by relative depth, which are shipped with the package.

``usual.csv`` has a row for each model, metric and subset, with its source, probe, weights and date.
``python -m experiments.usual`` writes it from rows that are committed in the repository.

Values depend on the design of the probe and on the number of vectors. A run is compared with models
that were measured by the same ones; its anisotropy, where there is no such model, with others too,
and the sentence says so.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import pandas as pd

from repdyn.probe.design import DISTINCT, NO_MASSIVE
from repdyn.utils.numbers import number_text
from repdyn.views.judging.insight import Insight
from repdyn.views.tables.frames import distinct_rows, has_text
from repdyn.views.tables.runs import MeasuredRun
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import metric_title, short_subset_title
from repdyn.views.tables.words import layer_names

DEFAULT_DESIGN = "independent"
FIFTHS = 5
"""Parts of the depth, of equal length, each with a range of its own."""
MIDDLE = 2
"""Number of the part in the middle."""
NEAR = 1.25
"""Factor beyond the ends of a range up to which a value is said to be as in a model."""
COMPARED = {"anisotropy": ("all",), "two_nn": (*DISTINCT, "all"), "effective_rank": ("all",)}
"""Metrics that have ranges, with the subsets that are compared, the first of them that can be."""
ROUGHLY = {"anisotropy"}
"""Metrics that are compared where design or number of vectors differ."""
OF_WIDTH = {"effective_rank"}
"""Metrics that the width limits, and that are compared as a share of it."""
MOST_NAMED = 2
"""Number of the models that are named as those that a run resembles."""
PUBLIC = "public model"
"""Kind of a model that was downloaded and measured."""
RANDOM = "random weights"
"""Kind of its control."""
TRAINED_HERE = "trained here"
"""Kind of the trainings of the repository."""
PUBLISHED = "published values"
"""Kind of the models that a publication tells of, and that were not measured here."""


class Ends(NamedTuple):
    """The smallest and the largest value of some layers; NaN where none has one."""

    low: float
    high: float

    @property
    def is_known(self) -> bool:
        return self.low <= self.high

    @property
    def text(self) -> str:
        """Return the range in words, one number where both ends are written alike."""
        low = number_text(self.low)
        high = number_text(self.high)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class UsualRange:
    """One metric on one subset of a measured or published model, by fifth of the depth."""

    name: str
    about: str
    """What it is, in a few words."""
    kind: str
    """:data:`PUBLIC`, :data:`RANDOM`, :data:`TRAINED_HERE` or :data:`PUBLISHED`."""
    weights: str
    width: int
    metric: str
    subset: str
    settings: str
    n_vectors: int | None
    """None where a publication does not say."""
    design: str
    probe: str
    """Hash of the probe; empty for published values."""
    text: str
    """What the probe is of."""
    by_fifth: tuple[Ends, ...]
    source: str
    """The rows in the repository, or the publication."""
    measured: str
    """Date."""

    @property
    def middle(self) -> Ends:
        return self.by_fifth[MIDDLE]

    @property
    def compared(self) -> Ends:
        """Return the range in the middle as it is compared."""
        return Ends(*(comparable_value(self.metric, end, self.width) for end in self.middle))


def layers_of_fifth(n_blocks: int, fifth: int) -> list[int]:
    """Return the blocks of which a part lies in a fifth of the depth, from 1 on.

    >>> [layers_of_fifth(6, fifth) for fifth in range(FIFTHS)]
    [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    >>> layers_of_fifth(1, MIDDLE), layers_of_fifth(30, MIDDLE)
    ([1], [13, 14, 15, 16, 17, 18])
    """
    begin = fifth * n_blocks
    end = begin + n_blocks
    return [
        layer
        for layer in range(1, n_blocks + 1)
        if FIFTHS * layer > begin and FIFTHS * (layer - 1) < end
    ]


def comparable_value(metric: str, value: float, width: int) -> float:
    """Return a value as it is compared with that of a model of another width."""
    return value / width if metric in OF_WIDTH else value


@lru_cache(maxsize=1)
def usual_ranges() -> tuple[UsualRange, ...]:
    """Return the ranges that are shipped with the package."""
    text = files("repdyn.views.judging").joinpath("usual.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(map(_range_of, rows))


def _range_of(row: dict[str, str]) -> UsualRange:
    ends = [
        Ends(*(float(row[f"{end}_{fifth}"] or "nan") for end in ("low", "high")))
        for fifth in range(1, FIFTHS + 1)
    ]
    return UsualRange(
        name=row["model"],
        about=row["about"],
        kind=row["kind"],
        weights=row["weights"],
        width=int(row["width"]),
        metric=row["metric"],
        subset=row["subset"],
        settings=row["settings"],
        n_vectors=int(row["n_vectors"]) if row["n_vectors"] else None,
        design=row["design"],
        probe=row["probe"],
        text=row["text"],
        by_fifth=tuple(ends),
        source=row["source"],
        measured=row["measured"],
    )


@dataclass(frozen=True)
class Resemblance:
    """The middle of a run among measured models, by one metric."""

    metric: str
    subset: str
    layers: tuple[int, ...]
    step: int
    is_finished: bool
    width: int
    value: float
    """Mean over the layers."""
    similar: tuple[UsualRange, ...]
    """Models whose range it is in, or near; the nearest first."""
    below: UsualRange | None
    """The nearest of the models that it is above."""
    above: UsualRange | None
    """The nearest of the models that it is below."""
    probes: str
    """How the probes agree or differ, besides the text."""

    @property
    def subject(self) -> str:
        return f"{metric_title(self.metric)} ({short_subset_title(self.subset)})"

    @property
    def value_text(self) -> str:
        return f"{number_text(self.value)}{_of_width(self.metric, self.width)}"

    @property
    def named(self) -> list[UsualRange]:
        """Return the models that a sentence names."""
        ends = [model for model in (self.below, self.above) if model is not None]
        return [*self.similar[:MOST_NAMED], *ends]

    @property
    def similar_text(self) -> str:
        """Return the names of the similar models, the first with their ranges; "" without any."""
        named = [*map(named_range, self.similar[:MOST_NAMED])]
        n_more = len(self.similar) - len(named)
        return _enumerated([*named, *([f"{n_more} more"] if n_more else [])])

    @property
    def sentence(self) -> str:
        at = "" if self.is_finished else f" at step {self.step:,}"
        said = {
            "as in": self.similar_text,
            "above": self.below and named_range(self.below),
            "below": self.above and named_range(self.above),
        }
        models = "; ".join(f"{how} {which}" for how, which in said.items() if which)
        return (
            f"{self.subject} at mid depth ({layer_names(self.layers)}) is "
            f"{self.value_text}{at}: {models}; on other texts, {self.probes}."
        )


def _enumerated(names: Sequence[str]) -> str:
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _of_width(metric: str, width: int) -> str:
    return f" of {width}" if metric in OF_WIDTH else ""


def named_range(model: UsualRange) -> str:
    """Return the name of a model with its range in the middle, and with what is left of that
    without massive norms, if that is less.
    """
    without = next(filter(partial(_is_without_massive, model), usual_ranges()), None)
    less = f"; {without.middle.text} without massive norms" if without is not None else ""
    return f"{model.name} ({model.middle.text}{_of_width(model.metric, model.width)}{less})"


def _is_without_massive(model: UsualRange, other: UsualRange) -> bool:
    """Return whether another range is the same without massive norms, and lies apart from it."""
    is_same = (other.name, other.metric, other.subset) == (model.name, model.metric, NO_MASSIVE)
    apart = max(other.middle.low / model.middle.high, model.middle.low / other.middle.high)
    return is_same and model.subset == "all" and apart > NEAR


def resemblances(run: MeasuredRun) -> Iterator[Resemblance]:
    """Yield where the middle of a run lies among measured models at its last step, for each metric
    that has comparable ranges there; nothing of inputs that are no tokens, nor of missing values.
    """
    if run.vectors_of != "tokens":
        return
    for metric, subsets in COMPARED.items():
        of_subsets = (
            _resemblance(run, run.series[metric, subset])
            for subset in subsets
            if (metric, subset) in run.series
        )
        resemblance = next(filter(None, of_subsets), None)
        if resemblance is not None:
            yield resemblance


def _resemblance(run: MeasuredRun, series: MetricSeries) -> Resemblance | None:
    """Return where a run lies by one series; None without a value in the middle, or a model to
    compare it with.
    """
    layers = layers_of_fifth(series.n_blocks, MIDDLE)
    if not layers or not series.steps_with_values or not set(layers) <= set(series.layers):
        return None
    step = series.steps_with_values[-1]
    places = [series.layers.index(layer) for layer in layers]
    value = float(series.at(step)[0][places].mean())
    # distances from a range are ratios
    if not math.isfinite(value) or value <= 0:
        return None
    ranges, probes = _comparable_ranges(run, series, step, layers)
    if not ranges:
        return None
    width = int(run.rows["dim"].iloc[-1])
    compared = comparable_value(series.metric, value, width)
    similar = [
        model
        for model in ranges
        if model.compared.low / NEAR <= compared <= model.compared.high * NEAR
    ]
    # that a trained run is above random weights is nothing to report
    others = [model for model in ranges if model not in similar and model.kind != RANDOM]
    # a model that the reader can look up is the better landmark
    others = [model for model in others if model.kind == PUBLIC] or others
    low = [model for model in others if compared > model.compared.high]
    high = [model for model in others if compared < model.compared.low]
    return Resemblance(
        metric=series.metric,
        subset=series.subset,
        layers=tuple(layers),
        step=step,
        is_finished=run.finished,
        width=width,
        value=value,
        similar=tuple(sorted(similar, key=partial(_distance, compared))),
        below=max(low, key=lambda model: model.compared.high, default=None),
        above=min(high, key=lambda model: model.compared.low, default=None),
        probes=probes,
    )


def _comparable_ranges(
    run: MeasuredRun, series: MetricSeries, step: int, layers: Sequence[int]
) -> tuple[list[UsualRange], str]:
    """Return the ranges that compare with the values of a series in some layers at a step, and how
    the probes agree or differ."""
    rows = run.rows
    is_of_series = has_text(rows, "metric", series.metric) & has_text(rows, "subset", series.subset)
    is_in_middle = (rows["step"].eq(step) & rows["layer"].isin(layers)).to_numpy(bool)
    columns = ["settings", "n_vectors", "design"]
    described = rows.loc[:, columns].iloc[np.flatnonzero(is_of_series & is_in_middle)]
    facts = [fact for fact in distinct_rows(described, columns) if not pd.isna(list(fact)).any()]
    if len(facts) != 1:  # also of rows from before the design was stored
        return [], ""
    settings, n_vectors, design = facts[0]
    same_metric = [
        model
        for model in _known_ranges(series.metric, series.subset, str(settings))
        if model.probe != run.probe  # the run itself, or one beside it
    ]
    return _of_matching_design(same_metric, int(n_vectors), str(design))


@cache
def _known_ranges(metric: str, subset: str, settings: str) -> list[UsualRange]:
    """Return the ranges of a metric on a subset that are known in the middle."""
    return [
        model
        for model in usual_ranges()
        if (model.metric, model.subset, model.settings) == (metric, subset, settings)
        and model.middle.is_known
    ]


def _of_matching_design(
    ranges: Sequence[UsualRange], n_vectors: int, design: str
) -> tuple[list[UsualRange], str]:
    """Return the ranges of a metric that compare with as many vectors of a design, and how the
    probes agree or differ.
    """
    # the sentence has to say what is alike, since values of two designs do not compare
    here = f"{n_vectors:,} vectors of the design {design}"
    same_design = [model for model in ranges if model.design == design]
    same = [model for model in same_design if model.n_vectors == n_vectors]
    if same:
        return same, f"by {here} as here"
    if not {model.metric for model in ranges} <= ROUGHLY:
        return [], ""
    others = same_design or [model for model in ranges if model.design == DEFAULT_DESIGN]
    theirs = dict.fromkeys(_cloud_in_words(model) for model in others)
    return others, f"and roughly, by {' or '.join(theirs)}, here by {here}"


def _cloud_in_words(model: UsualRange) -> str:
    number = f"{model.n_vectors:,} vectors" if model.n_vectors else "vectors"
    return f"{number} of the design {model.design}"


def _distance(value: float, model: UsualRange) -> tuple[int, float]:
    """Return the place of a model among those that a value is similar: by its kind, then by the
    distance from the middle of the range as a ratio.
    """
    # the geometric mean is in the middle where distances are ratios
    centre = math.sqrt(model.compared.low * model.compared.high)
    order = (PUBLIC, PUBLISHED, TRAINED_HERE, RANDOM)
    return order.index(model.kind), abs(math.log(value / centre))


def usual_statements(of_metrics: Iterable[Resemblance]) -> Iterator[Insight]:
    """Yield which measured models the middle of a run resembles, and which it does not."""
    for resemblance in of_metrics:
        evidence: dict[str, float | str] = {"value": resemblance.value}
        if resemblance.similar:
            evidence["similar"] = ", ".join(model.name for model in resemblance.similar)
        if resemblance.below is not None:
            evidence["above"] = resemblance.below.name
        if resemblance.above is not None:
            evidence["below"] = resemblance.above.name
        yield Insight(
            severity="note",
            kind="usual",
            sentence=resemblance.sentence,
            metric=resemblance.metric,
            subset=resemblance.subset,
            layers=resemblance.layers,
            steps=(resemblance.step,),
            evidence=evidence,
            weight=0.15,
        )
