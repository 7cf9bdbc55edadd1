"""Statements on a dimension of nearest neighbours: which vectors these are, and whether what all
vectors show holds without repeats.

A rise, fall, peak or profile is claimed if both curves have it, that of all vectors and that of one
vector of each distinct token, or input where the text has few tokens. Otherwise the sentence says
which one has it and what the other does.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from repdyn.utils.numbers import number_text
from repdyn.views.display import is_dimension_of_neighbours
from repdyn.views.judging.effects import MOVES
from repdyn.views.judging.insight import Evidence, Insight
from repdyn.views.judging.metrics import COUPLING, best_covered_mean
from repdyn.views.judging.training import OUT_OF_LINE
from repdyn.views.tables.frames import distinct_texts, of_metric, reasons_in_words
from repdyn.views.tables.series import MetricSeries, on_shared_layers, series_without_repeats
from repdyn.views.tables.style import BELOW_ONE, metric_title, short_subset_title
from repdyn.views.tables.words import layer_names, steps_in_words

MOST = 0.5
"""Fraction of the vectors whose nearest neighbour is the same token, from which on it is said."""
CLOUDS_DIFFER = "clouds differ"
"""Kind of a statement on a course or a profile that one curve has and the other has not."""
COURSES = ("peak", "trough", "change")
_BEGUN = (*COURSES, "profile")
"""Kinds of statements that begin with what the nearest neighbour is."""
NEAREST = {
    "same_input_fraction": "the same token at the same position",
    "same_token_fraction": "the same token",
}
"""What the nearest neighbour of a vector is, by the column with the fraction; narrower first."""

_ALL = "all"

Statements = Callable[[MetricSeries], Iterator[Insight]]


def distinct_of(
    series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries]
) -> MetricSeries | None:
    """Return a metric of all vectors without repeats: on distinct tokens, or on distinct inputs;
    None where it was not measured so."""
    return series_without_repeats(series.metric, others) if series.subset == _ALL else None


def of_both(
    kinds: Statements, on_all: MetricSeries, on_distinct: MetricSeries | None, rows: pd.DataFrame
) -> Iterator[Insight]:
    """Yield the statements of ``kinds`` on a dimension, each for both of its curves, of the layers
    in which both have a value.

    Those that both curves have stay, with the numbers of the one without repeats in the evidence
    under ``distinct_`` and their names. What only one curve has becomes a statement of the kind
    :data:`CLOUDS_DIFFER`; of a course someone should look at it. Where the curve without repeats
    has no value, a statement names the vectors it is about.

    Args:
        kinds: detector of statements, such as
            :func:`repdyn.views.judging.metrics.course_statements`.
        on_all: the series on all vectors.
        on_distinct: the same on distinct tokens or inputs; None where it was not measured.
        rows: measurements of the run, with the columns of :data:`NEAREST`.
    """
    if on_distinct is not None and on_distinct.steps_with_values:
        on_all, on_distinct = on_shared_layers(on_all, on_distinct)
    told = list(kinds(on_all))
    if on_distinct is None or not on_distinct.steps_with_values:
        why = ""
        if on_distinct is not None:
            name = short_subset_title(on_distinct.subset)
            why = f"; {name} have no value: {_why(on_distinct)}"
        for statement in told:
            sentence = f"on all vectors, {_continued(statement.sentence)[:-1]}{why}."
            yield _begun(replace(statement, sentence=sentence), statement.kind, rows)
        return
    left = list(kinds(on_distinct))
    for statement in told:
        # each statement of the other curve answers one: what is left over is said of it alone
        counterpart = next((other for other in left if _is_comparable(statement, other)), None)
        if counterpart is not None:
            left.remove(counterpart)
        # that nothing can be judged is nothing that the other curve could have
        judged = _joined(statement, counterpart, on_distinct) if statement.steps else statement
        yield _begun(judged, statement.kind, rows)
    for statement in left:
        if not statement.steps:
            continue
        alone = _on_distinct_alone(statement, on_all, short_subset_title(on_distinct.subset))
        yield _begun(alone, statement.kind, rows)


def nearest_is_same(rows: pd.DataFrame, told: Collection[str] = ()) -> Iterator[Insight]:
    """Yield for each dimension whether the nearest neighbour of most vectors is the same token or
    input at the last step, unless a statement on it begins with that; and where it is below 1,
    which is the extreme case of it.

    Args:
        rows: measurements of one run.
        told: metrics with a statement that begins with what the nearest neighbour is.
    """
    last = int(rows["step"].to_numpy().max())
    for metric in filter(is_dimension_of_neighbours, distinct_texts(rows, "metric")):
        # the other columns would be copied with each selection of rows
        cells = of_metric(rows.loc[:, ["metric", "subset", "step", "layer", "value"]], metric)
        is_low = cells["value"] < 1
        low = cells.loc[is_low]
        if len(low):
            yield _below_one(rows, metric, low, len(low) / len(cells), last)
        elif metric not in told and (nearest := _nearest_of(rows, metric, [last])) is not None:
            title = _continued(metric_title(metric))
            says = "says how the vectors of one token vary with its context"
            yield Insight(
                severity="note",
                kind="nearest neighbour",
                sentence=f"{nearest.beginning}: {title} {says}.",
                metric=metric,
                subset=_ALL,
                steps=(last,),
                evidence=nearest.at_end,
                weight=0.1,
            )


def _below_one(
    rows: pd.DataFrame, metric: str, low: pd.DataFrame, share: float, last: int
) -> Insight:
    """Return the statement on the values of a dimension that are below 1, which are a share of its
    values, and whether equal tokens are why."""
    steps = tuple(sorted(low["step"].unique().tolist()))
    layers = tuple(sorted(low["layer"].unique().tolist()))
    subsets = low["subset"].unique()
    lowest = float(low["value"].to_numpy(float).min())
    times = f"at {len(steps)} steps, the last of them {steps[-1]:,}"
    at = f"at step {steps[0]:,}" if len(steps) == 1 else times
    title = metric_title(metric)
    what = f"is below 1 in {layer_names(layers)} {at} (lowest {number_text(lowest)})"
    nearest = _nearest_of(rows, metric, steps)
    if nearest is None:
        sentence = f"{title} {what}: {BELOW_ONE}."
    else:
        beginning = f"{nearest.beginning}: {_continued(title)}"
        sentence = f"{beginning} {what}, which describes no dimension."
    return Insight(
        severity="watch" if steps[-1] == last else "note",
        kind="nearest neighbour",
        sentence=sentence,
        metric=metric,
        subset=str(subsets[0]) if len(subsets) == 1 else None,
        layers=layers,
        steps=steps,
        evidence={"lowest": lowest, "share": share, **(nearest.at_end if nearest else {})},
        weight=0.3 * share,
    )


def begins_with_nearest(statement: Insight) -> bool:
    """Return whether a statement begins with what the nearest neighbour of most vectors is."""
    return not NEAREST.keys().isdisjoint(statement.evidence)


def _is_comparable(statement: Insight, other: Insight) -> bool:
    """Return whether two statements describe the same thing: the course, the profile, a layer."""
    if statement.kind in COURSES:
        return other.kind in COURSES
    return other.kind == statement.kind and (
        statement.kind != "layer" or other.layers == statement.layers
    )


def _is_same(statement: Insight, other: Insight) -> bool:
    """Return whether two statements that describe the same thing say the same of it."""
    if statement.kind != other.kind:
        return False
    if statement.kind == "profile":
        names = ("largest_layer", "smallest_layer")
        return all(statement.evidence[name] == other.evidence[name] for name in names)
    if statement.kind == OUT_OF_LINE:
        return not set(statement.steps).isdisjoint(other.steps)
    return _rises(statement) == _rises(other)


def _rises(statement: Insight) -> bool:
    """Return whether a change is a rise, a layer lies above its neighbours, or a metric moves as
    the loss does."""
    evidence = statement.evidence
    if statement.kind == COUPLING:
        return float(evidence["correlation"]) > 0
    if statement.kind == "layer":
        return float(evidence["distance"]) > 0
    return float(evidence["last"]) > float(evidence["first"])


def _joined(statement: Insight, counterpart: Insight | None, on_distinct: MetricSeries) -> Insight:
    """Return a statement on all vectors with what those without repeats do, maybe the same."""
    name = short_subset_title(on_distinct.subset)
    if counterpart is None:
        does = _what_else(statement, on_distinct)
        numbers = _ends_of_course(statement, on_distinct)
    else:
        does = _in_short(counterpart)
        numbers = counterpart.evidence
    evidence = {**statement.evidence, **{f"distinct_{name}": numbers[name] for name in numbers}}
    if counterpart is not None and _is_same(statement, counterpart):
        return replace(
            statement,
            sentence=f"{statement.sentence[:-1]}; on {name} it {does}.",
            evidence=evidence,
            weight=max(statement.weight, counterpart.weight),
        )
    sentence = f"on all vectors alone, {_continued(statement.sentence)[:-1]}"
    return _differing(statement, f"{sentence}; on {name} it {does}.", evidence)


def _on_distinct_alone(statement: Insight, on_all: MetricSeries, name: str) -> Insight:
    """Return a statement on vectors without repeats, of this name, with what all vectors do, which
    is not the same."""
    named = f", {name},"
    sentence = _continued(statement.sentence.replace(named, ",", 1))[:-1]
    sentence = f"on {name} alone, {sentence}; on all vectors it "
    evidence = {f"distinct_{name}": value for name, value in statement.evidence.items()}
    evidence |= _ends_of_course(statement, on_all)
    return _differing(statement, f"{sentence}{_what_else(statement, on_all)}.", evidence)


def _differing(statement: Insight, sentence: str, evidence: Evidence) -> Insight:
    """Return a statement on what one curve has and the other has not."""
    severity = "watch" if statement.kind in COURSES else "note"
    return replace(
        statement, severity=severity, kind=CLOUDS_DIFFER, sentence=sentence, evidence=evidence
    )


def _in_short(statement: Insight) -> str:
    """Return what a curve does, without its subject."""
    evidence = statement.evidence
    values = {
        name: number_text(value) for name, value in evidence.items() if isinstance(value, float)
    }
    if statement.kind == "profile":
        return (
            f"is largest in layer {values['largest_layer']} ({values['largest']}) and smallest in "
            f"layer {values['smallest_layer']} ({values['smallest']})"
        )
    if statement.kind == "layer":
        side = "above" if _rises(statement) else "below"
        return f"is {values['value']} there, {side} both of them too"
    if statement.kind == COUPLING:
        return (
            f"moves in {'the same' if _rises(statement) else 'the opposite'} direction as the loss"
        )
    if statement.kind == OUT_OF_LINE:
        if not statement.steps:
            return "would be out of line at too many steps to judge"
        return f"is out of line at {steps_in_words(sorted(statement.steps))}"
    if statement.kind == "change":
        grew, fell = MOVES
        return f"{grew if _rises(statement) else fell} from {values['first']} to {values['last']}"
    first, second = MOVES if statement.kind == "peak" else MOVES[::-1]
    return (
        f"{first} from {values['first']} to {values[statement.kind]} near step "
        f"{statement.steps[1]:,}, then {second} to {values['last']}"
    )


def _what_else(statement: Insight, other: MetricSeries) -> str:
    """Return what a curve does that lacks what a statement says of another one."""
    if statement.kind in COURSES:
        ends = _ends_of_course(statement, other)
        if not ends:
            return "has no layer with a value at two steps"
        first, last = (number_text(ends[name]) for name in ("first", "last"))
        return f"went from {first} to {last}, without such a course"
    if statement.kind == "profile":
        return "has no such profile"
    if statement.kind == COUPLING:
        return "shows no such connection"
    if statement.kind == OUT_OF_LINE:
        return "is in line"
    (layer,) = statement.layers
    step = statement.steps[-1]
    if layer not in other.layers or step not in other.steps:
        return "has no value there"
    value = float(other.at(step)[0][other.layers.index(layer)])
    return f"is {number_text(value)} there, and does not stand out"


def _ends_of_course(statement: Insight, series: MetricSeries) -> dict[str, float]:
    """Return the first and the last mean over layers; empty without two, and of other statements
    than on a course."""
    mean = best_covered_mean(series).mean
    if statement.kind not in COURSES or len(mean) < 2:
        return {}
    return {"first": float(mean.iloc[0]), "last": float(mean.iloc[-1])}


def _why(series: MetricSeries) -> str:
    """Return the most common reason why a series has no value."""
    return str(reasons_in_words(series.rows).value_counts().index[0])


def _continued(sentence: str) -> str:
    """Return a sentence as it stands behind a colon; names in capitals stay."""
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() else sentence


@dataclass(frozen=True)
class Nearest:
    """Describes what the nearest neighbour of most vectors is, by means over the blocks."""

    column: str
    """A key of :data:`NEAREST`."""
    by_step: pd.Series
    """The fraction, by step, ascending."""
    at_end: Mapping[str, float]
    """Both fractions at the last of the steps, by column."""

    @property
    def beginning(self) -> str:
        """Return the beginning of a sentence, up to a colon."""
        first = self.by_step.index[0]
        last = self.by_step.index[-1]
        before, after = (f"{self.by_step[step]:.0%}" for step in (first, last))
        of = f"{after} of the vectors"
        if before != after:
            of = f"{before} of the vectors at step {first:,} and of {after} at step {last:,}"
        return f"The nearest neighbour of {of} is {NEAREST[self.column]}"


def _nearest_of(rows: pd.DataFrame, metric: str, steps: Sequence[int]) -> Nearest | None:
    """Return what the nearest neighbour of most of all vectors is at one of some steps; None where
    it is neither the same token nor the same input, or not known, as of images."""
    if not any(rows[column].notna().any() for column in NEAREST):
        return None
    of_all = of_metric(rows.loc[:, ["metric", "subset", "step", "layer", *NEAREST]], metric, _ALL)
    cells = of_all.loc[of_all["step"].isin(steps)]
    if not bool(cells[[*NEAREST]].notna().any(axis=None)):
        return None
    is_of_block = cells["layer"] > 0
    blocks = cells.loc[is_of_block]
    if blocks.empty:  # the embeddings alone were measured
        blocks = cells
    fractions = blocks.loc[:, ["step", "layer", *NEAREST]].astype(dict.fromkeys(NEAREST, float))
    means = fractions.dropna().groupby("step")[[*NEAREST]].mean()
    column = next((name for name in NEAREST if bool((means[name] >= MOST).any())), None)
    if column is None:
        return None
    return Nearest(column, means[column], {name: float(means[name].iloc[-1]) for name in NEAREST})


def _begun(statement: Insight, kind: str, rows: pd.DataFrame) -> Insight:
    """Return a statement, of a course or a profile by its ``kind`` beginning with what the nearest
    neighbour of most vectors is at its first and last step."""
    sentence, nearest = statement.sentence, None
    if kind in _BEGUN:
        ends = (statement.steps[0], statement.steps[-1])
        nearest = _nearest_of(rows, str(statement.metric), ends)
    if nearest is None:
        return replace(statement, sentence=sentence[0].upper() + sentence[1:])
    return replace(
        statement,
        sentence=f"{nearest.beginning}: {_continued(sentence)}",
        evidence={**statement.evidence, **nearest.at_end},
    )
