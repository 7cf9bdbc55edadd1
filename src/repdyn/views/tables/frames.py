"""The rows of one run as tables: validated, selected by stack, layer and step.

:func:`measurements` is the way in: it checks that the rows are of one run on one probe, each value
once, and gives them the columns that views use. The others select from its rows
(:func:`of_metric`, :func:`grid`), order metrics and subsets for display (:func:`in_order`), choose
steps (:func:`select_steps`), and tell why values are missing (:func:`missing_values`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from repdyn.metrics import METRICS, metric_info
from repdyn.metrics.names import base_name
from repdyn.probe.design import DISTINCT, LAYER_SUBSETS, NORMED, VIEWS
from repdyn.store.schema import (
    FINISHED,
    LOSS,
    PROBE_LOSS,
    PROBE_SCALARS,
    VALIDATION_LOSS,
    ReasonCode,
    shown_reason,
)
from repdyn.utils.intervals import interval_within
from repdyn.utils.printing import plural
from repdyn.views.grid import Grid

# pandas takes as long for one operation on the rows of a short run as for thousands of rows, and a
# folder may have hundreds of such runs: what every view asks for works on the arrays below


def has_text(rows: pd.DataFrame, column: str, text: str) -> np.ndarray:
    """Return which rows have a text in a column of texts, shape (n_rows,), bool.

    >>> rows = pd.DataFrame({"metric": ["b", None, "a"]}, dtype="category")
    >>> has_text(rows, "metric", "a").tolist()
    [False, False, True]
    """
    texts = rows[column].array
    if not isinstance(texts, pd.Categorical):
        return rows[column].eq(text).fillna(False).to_numpy(bool)
    if text not in texts.categories:
        return np.zeros(len(texts), bool)
    return texts.codes == texts.categories.get_loc(text)


def distinct_texts(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the distinct values of a column of texts, in alphabetical order; a missing one is
    called "nan".

    >>> distinct_texts(pd.DataFrame({"metric": ["b", None, "a"]}, dtype="category"), "metric")
    ['a', 'b', 'nan']
    """
    texts = rows[column].array
    if not isinstance(texts, pd.Categorical):
        return sorted({"nan" if pd.isna(value) else str(value) for value in texts.unique()})
    codes = np.unique(texts.codes)
    return sorted("nan" if code < 0 else str(texts.categories[code]) for code in codes)


def values_of(rows: pd.DataFrame, column: str) -> list[Any]:
    """Return the distinct values of a column in the order of the rows, without missing ones.

    >>> values_of(pd.DataFrame({"metric": ["b", None, "a", "b"]}, dtype="category"), "metric")
    ['b', 'a']
    """
    values = rows[column].array
    if not isinstance(values, pd.Categorical):
        return rows[column].dropna().unique().tolist()
    codes, first_places = np.unique(values.codes, return_index=True)
    in_order = codes[np.argsort(first_places)]
    return [str(values.categories[code]) for code in in_order if code >= 0]


def distinct_rows(rows: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the distinct rows of some columns in ascending order, missing values last.

    >>> distinct_rows(pd.DataFrame({"metric": ["b", None, "a", "b"]}, dtype="category"), ["metric"])
    [('a',), ('b',), (nan,)]
    """
    keys = np.zeros(len(rows), np.int64)
    for name in columns:
        codes = _codes(pd.Series(rows[name]))
        keys = np.unique(keys * (codes.max(initial=0) + 1) + codes, return_inverse=True)[1]
    places = np.unique(keys, return_index=True)[1]
    distinct = zip(*(rows[name].array.take(places).tolist() for name in columns), strict=True)
    return sorted(distinct, key=_missing_last)


def _missing_last(row: Sequence[Any]) -> list[tuple[bool, Any]]:
    """Return a key that sorts rows as pandas does: missing values compare with no other one."""
    return [(True, "") if pd.isna(value) else (False, value) for value in row]


def _codes(column: pd.Series) -> np.ndarray:
    """Return a number of each value of a column, from 0 on, which equal values share."""
    values = column.array
    is_text = isinstance(values, pd.Categorical)
    codes = values.codes if is_text else pd.factorize(column, use_na_sentinel=False)[0]
    # a missing text is -1
    return codes.astype(np.int64) + 1


def filled(column: pd.Series, text: str) -> pd.Series:
    """Return a column with a text in place of missing values; the categories of a categorical stay
    sorted.

    >>> filled(pd.Series(["b", None], dtype="category"), "a").cat.categories.tolist()
    ['a', 'b']
    """
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column.fillna(text)
    if not bool(column.isna().any()):
        return column
    return column.cat.set_categories(sorted({*column.cat.categories, text})).fillna(text)


def concatenated(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all frames, as ``pandas.concat`` does; a categorical of different
    categories stays one.
    """
    kinds = [frame.dtypes.to_dict() for frame in frames]
    shared = {}
    for name in kinds[0]:
        of_frames = [of_frame.get(name) for of_frame in kinds]
        is_text = all(isinstance(kind, pd.CategoricalDtype) for kind in of_frames)
        # most columns have the same texts in all runs
        if is_text and any(kind != of_frames[0] for kind in of_frames):
            shared[name] = sorted(set().union(*(kind.categories for kind in of_frames)))
    alike = [
        frame.assign(
            **{name: frame[name].cat.set_categories(names) for name, names in shared.items()}
        )
        for frame in frames
    ]
    return pd.concat(alike, ignore_index=True)


SUBSETS = ("all", "no_sink")
"""The subsets that findings are judged on."""
CLOUDS = ("all", *DISTINCT)
"""The subsets that a dimension of nearest neighbours is described and judged on: all vectors, and
those without repeats that were measured.
"""
OF_THE_SAME_VECTORS = (*SUBSETS, *LAYER_SUBSETS, *DISTINCT)
"""The subsets of which one is among the vectors of the other, or its control, or without its
repeats: charts show them on one scale.
"""
_UNNORMED = tuple(dict.fromkeys((*OF_THE_SAME_VECTORS, *VIEWS)))
NO_CLASSES = (*_UNNORMED, *(f"{name}{NORMED}" for name in _UNNORMED))
"""The subsets and views that are not a class of tokens, in display order."""

STACKS = ("encoder", "decoder")
"""Display order of the stacks of a model; others come after these, by name."""

_CELL = ["step", "layer", "metric", "subset"]


def without_repeats(has_value: Mapping[str, bool]) -> str | None:
    """Return the subset without repeats that a dimension is described and judged on beside all
    vectors, in one chart with them: types rather than distinct inputs, and one that has a value
    rather than one that has none; None where neither was measured.

    Args:
        has_value: whether each measured subset has a value.

    >>> without_repeats({"all": True, "types": False, "distinct_inputs": True})
    'distinct_inputs'
    """
    measured = [subset for subset in DISTINCT if subset in has_value]
    return next((subset for subset in measured if has_value[subset]), next(iter(measured), None))


def by_stack(frame: pd.DataFrame) -> dict[str | None, pd.DataFrame]:
    """Return the rows of one run by stack of blocks; the key is None for blocks without a stack
    name.

    Rows without a layer, such as losses and failures, are repeated for each stack, in the order of
    :data:`STACKS`.
    """
    if bool(frame["stack"].isna().all()):
        return {None: frame}  # no copy of a large frame
    named = frame.loc[frame["layer"].notna(), "stack"]
    names: list[str] = in_order(named.dropna().unique(), STACKS)
    of_run = frame["layer"].isna()
    stacks: dict[str | None, pd.DataFrame] = {
        name: frame.loc[of_run | frame["stack"].isin([name])] for name in names
    }
    if not names or bool(named.isna().any()):
        stacks[None] = frame.loc[frame["stack"].isna()]
    return stacks


def measurements(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows of one run, or of one of its stacks, sorted by step and layer.

    Values of single attention heads are excluded; see :func:`of_heads`. A missing subset becomes
    "all". The column ``margin`` is half of the width of the 95% interval, whose ends are ``low``
    and ``high``; NaN if it is unknown. Stores written before have symmetric intervals: those that
    leave the range of their metric are carried to the scale of today's. ``layer`` is an integer,
    and each (step, layer, metric, subset) occurs once.

    Raises:
        ValueError: no row with a layer; rows of several runs, models, probes or stacks; a metric
            measured twice; a finished model among the steps of a training.
    """
    chosen = (
        (frame["layer"].notna() & frame["head"].isna()).to_numpy(bool)
        if "layer" in frame
        else np.zeros(0, bool)
    )
    if not chosen.any():
        raise ValueError(
            "expected the measured rows of one run, got none; measure at least one checkpoint first"
        )
    return _checked(frame, chosen, _CELL)


def of_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the values of single attention heads, as :func:`measurements` those of layers; empty
    if there are none.
    """
    chosen = (frame["layer"].notna() & frame["head"].notna()).to_numpy(bool)
    return (
        _checked(frame, chosen, [*_CELL, "head"]).astype({"head": int})
        if chosen.any()
        else frame.iloc[:0]
    )


def scalar_rows(
    frame: pd.DataFrame, name: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the rows of the scalar called ``name``, by step; empty if it was never stored.

    Of a frame of sixty columns it is worth to name those that are needed, ``step`` among them.
    """
    chosen = has_text(frame, "metric", name) & frame["layer"].isna().to_numpy()
    narrow = frame if columns is None else frame[list(columns)]
    # an empty slice takes no time
    return narrow.loc[chosen].sort_values("step") if chosen.any() else narrow.iloc[:0]


def scalar(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return the scalar called ``name`` by step, without NaN; empty if it was never stored."""
    chosen = has_text(frame, "metric", name)
    if chosen.any():
        chosen = chosen & frame["layer"].isna().to_numpy()
    steps = frame["step"].to_numpy()[chosen]
    values = frame["value"].to_numpy(float)[chosen]
    order = np.argsort(steps)
    order = order[~np.isnan(values[order])]
    return pd.Series(values[order], index=steps[order])


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of checkpoints that could not be measured: without a layer, with a reason."""
    is_failure = (frame["layer"].isna() & frame["reason"].notna()).to_numpy()
    if not is_failure.any():
        return frame.iloc[:0]  # an empty slice takes no time
    # a measured checkpoint without an output head lacks the loss on the probe too
    of_checkpoint = ~frame["metric"].isin(PROBE_SCALARS)
    has_own_weights = frame["same_as"].isna() & frame["mixed_with"].isna()
    return frame.loc[is_failure & (of_checkpoint & has_own_weights).to_numpy(bool)]


def is_finished(rows: pd.DataFrame) -> bool:
    """Return whether the rows are of a finished model, whose step 0 is not a step of a training."""
    return bool(has_text(rows, "stage", FINISHED).all())


def of_metric(rows: pd.DataFrame, metric: str, subset: str | None = None) -> pd.DataFrame:
    """Return the rows of ``metric``, on all subsets or on the given one."""
    chosen = has_text(rows, "metric", metric)
    if subset is not None:
        chosen = chosen & has_text(rows, "subset", subset)
    return rows.loc[chosen] if chosen.any() else rows.iloc[:0]


def by_metric_and_subset(rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the rows of each metric on each subset, in their order."""
    if rows.empty:
        return {}
    metric_of_row, metrics = pd.factorize(rows["metric"])
    subset_of_row, subsets = pd.factorize(rows["subset"])
    keys = metric_of_row * len(subsets) + subset_of_row
    by_key = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[by_key], return_index=True)
    cells = {}
    for key, places in zip(distinct.tolist(), np.split(by_key, starts[1:]), strict=True):
        metric, subset = divmod(key, len(subsets))
        cells[str(metrics[metric]), str(subsets[subset])] = rows.take(places)
    return cells


def metrics_of(rows: pd.DataFrame) -> list[str]:
    """Return the metrics in ``rows`` in the order in which they are shown."""
    return in_registry_order(distinct_texts(rows, "metric"))


def in_registry_order(metrics: Iterable[str]) -> list[str]:
    """Return registered metrics in the order of the registry, then others by name."""
    places = {name: place for place, name in enumerate(METRICS)}
    return sorted(metrics, key=lambda name: (places.get(base_name(name), len(places)), name))


def in_order(names: Iterable[str], first: Sequence[str] = NO_CLASSES) -> list[str]:
    """Return subsets, or others, in display order: the ``first`` ones in their order, then any
    others by name.
    """
    return sorted(
        names, key=lambda name: (first.index(name) if name in first else len(first), name)
    )


def grid(rows: pd.DataFrame, metric: str, subset: str, column: str = "value") -> pd.DataFrame:
    """Return ``column`` of ``metric`` on ``subset`` by layer (index) and step (columns), NaN where
    not measured.
    """
    return grid_of(
        of_metric(rows.loc[:, ["metric", "subset", "layer", "step", column]], metric, subset),
        column,
    )


def grid_of(cells: pd.DataFrame, column: str = "value") -> pd.DataFrame:
    """Return a column of the rows of one metric on one subset as :func:`grid` does."""
    return frame_of(Grid(cells), column)


def frame_of(cells: Grid, column: str = "value") -> pd.DataFrame:
    """Return a column of numbers by layer (index) and step (columns)."""
    # copied to another order in memory, a mean over layers would be rounded otherwise
    return pd.DataFrame(
        cells.numbers(column),
        pd.Index(cells.layers, name="layer"),
        pd.Index(cells.steps, name="step"),
        copy=False,
    )


def select_steps(steps: Sequence[int], limit: int) -> list[int]:
    """Return at most ``limit`` of the sorted ``steps``: the first, the last, and log-spaced ones
    between.

    >>> select_steps(range(0, 1001), 5)
    [0, 5, 31, 177, 1000]
    """
    return [int(steps[index]) for index in log_spaced(steps, limit)]


def log_spaced(steps: Sequence[int], limit: int) -> list[int]:
    """Return the indices of :func:`select_steps`: at equal distances along log(1 + step), counted
    from the first.
    """
    if len(steps) <= limit:
        return list(range(len(steps)))
    position = np.log1p(np.asarray(steps) - steps[0])
    targets = np.linspace(position[0], position[-1], limit)
    # fewer steps if two targets have the same nearest step
    return sorted({*np.abs(position[None, :] - targets[:, None]).argmin(axis=1).tolist()})


def causality(rows: pd.DataFrame) -> bool | None:
    """Return True for a decoder, False for an encoder, None if the rows disagree or do not contain
    it.
    """
    known = values_of(rows, "causal")
    return bool(known[0]) if len(known) == 1 else None


def _checked(frame: pd.DataFrame, chosen: np.ndarray, cell: Sequence[str]) -> pd.DataFrame:
    """Validate chosen rows with a layer, in which each ``cell`` must occur once; return them
    sorted, with numbers.
    """
    places = np.flatnonzero(chosen)
    places = places[
        np.lexsort([frame[name].iloc[places].to_numpy(int) for name in ("layer", "step")])
    ]
    in_order = bool((np.diff(places) == 1).all())
    # a slice is no copy
    rows = (frame.iloc[places[0] : places[-1] + 1] if in_order else frame.take(places)).reset_index(
        drop=True
    )
    for column in ("run", "model", "probe", "layers", "stack"):
        names = distinct_texts(rows, column)
        if len(names) > 1:
            raise ValueError(
                f"expected the rows of one {column}, got {len(names)}: "
                f"{', '.join(map(repr, names))}; select one, for example frame[frame[{column!r}] "
                f"== {names[0]!r}]"
            )
    # nullable columns of some readers have NA, arithmetic needs NaN
    columns = ("depth", "value", "std", "low", "high")
    numbers = {name: rows[name].to_numpy(float, na_value=np.nan) for name in columns}
    low, high = _bounded_intervals(rows, numbers["value"], numbers["low"], numbers["high"])
    rows = rows.assign(
        **(numbers | {"low": low, "high": high}),
        layer=rows["layer"].to_numpy(int),
        subset=filled(pd.Series(rows["subset"]), "all"),
        margin=(high - low) / 2,
    )
    _require_distinct(rows, list(cell))
    finished = has_text(rows, "stage", FINISHED)
    if finished.any() and not finished.all():
        raise ValueError(
            "expected the steps of a training or one finished model, got both under "
            f"{rows['run'].iloc[0]!r}; keep them as two runs"
        )
    return rows


def _bounded_intervals(
    rows: pd.DataFrame, value: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the intervals of the values of rows; those that leave the range of
    their metric, which stores written before have, on the scale of today's.
    """
    low = low.copy()
    high = high.copy()
    # metric by metric: each has its own range
    for name in distinct_texts(rows, "metric"):
        bounds = metric_info(name).range
        leaves = has_text(rows, "metric", name) & ((low < bounds[0]) | (high > bounds[1]))
        if not leaves.any():
            continue
        half = (high[leaves] - low[leaves]) / 2
        low[leaves], high[leaves] = interval_within(value[leaves], half, bounds)
    is_known = ~np.isnan(value)
    return np.where(is_known, low, np.nan), np.where(is_known, high, np.nan)


def _require_distinct(rows: pd.DataFrame, cell: list[str]) -> None:
    """Raise a ValueError if two rows agree in all columns of ``cell``, which ends with metric and
    subset or head.
    """
    # one number for each cell, in a tenth of the time of looking for duplicates of all
    keys = np.zeros(len(rows), np.int64)
    for name in cell:
        codes = _codes(pd.Series(rows[name]))
        keys = np.unique(keys * (codes.max(initial=0) + 1) + codes, return_inverse=True)[1]
    _, of_cell, counts = np.unique(keys, return_inverse=True, return_counts=True)
    is_repeated = counts[of_cell] > 1
    if not is_repeated.any():
        return
    repeated = rows.loc[is_repeated]
    first = repeated.iloc[0]
    same = repeated[(repeated[cell] == first[cell]).all(axis="columns")]
    where = ", ".join(f"{name} {first[name]}" for name in ("step", "layer", "head") if name in cell)
    raise ValueError(
        f"expected one value per {', '.join(cell[:-1])} and {cell[-1]}, got {len(same)} of "
        f"{first['metric']} ({first['subset']}) at {where}, with settings "
        f"{' and '.join(sorted(same['settings'].astype(str)))}; select one of them"
    )


def drop_first_comparison(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without those of the first step that would need an earlier checkpoint, or a
    step before it.
    """
    of_earlier = {"previous_checkpoint", "gradients", "weights_before"}
    comparing = [
        name for name in rows["metric"].unique() if metric_info(name).captures & of_earlier
    ]
    at_first = rows["step"] == rows["step"].min()
    return rows.loc[~(rows["metric"].isin(comparing) & at_first & rows["value"].isna())]


class Missing(NamedTuple):
    """Metrics, each with its subset, that lack as many of as many values for the same reasons."""

    metrics: list[tuple[str, str]]
    number: int
    of: int
    reasons: str


def missing_values(rows: pd.DataFrame) -> list[Missing]:
    """Return what lacks values, in the order of the rows, leaving out comparisons of the first
    step.
    """
    if not rows["value"].isna().to_numpy().any():
        return []
    expected = drop_first_comparison(
        rows.loc[:, ["step", "layer", "metric", "subset", "value", *REASON_COLUMNS]]
    )
    by_reason: dict[tuple[int, int, str], list[tuple[str, str]]] = {}
    for _, cells in expected.groupby(["metric", "subset"], sort=False, observed=True):
        missing = cells.loc[cells["value"].isna()]
        if len(missing):
            key = str(cells["metric"].iloc[0]), str(cells["subset"].iloc[0])
            by_reason.setdefault((len(missing), len(cells), counted_reasons(missing)), []).append(
                key
            )
    return [Missing(metrics, *numbers) for numbers, metrics in by_reason.items()]


REASON_COLUMNS = ["reason", "reason_code", "n_unique", "n_vectors"]
"""Columns that tell why a row has no value."""
_ONE_REASON = (ReasonCode.NOT_FINITE, ReasonCode.FEW_DISTINCT, ReasonCode.ROUNDING)
"""Codes of which each names one reason, whatever the text says beside it; those of the other codes
are told apart by their texts."""


def counted_reasons(missing: pd.DataFrame) -> str:
    """Return why these rows of measurements have no value: each reason with its number of cells,
    the most common first; those of one kind count as one, and what is expected of the embeddings is
    said to be harmless.

    Vectors that are all equal are a kind of their own.

    >>> few = "batch 0: 2 distinct of 9 points, at least 3 needed"
    >>> cells = pd.DataFrame({"layer": [0, 0, 0, 1], "reason": [few, few, few, None]})
    >>> cells["reason_code"] = ["few_distinct"] * 3 + [None]
    >>> print(counted_reasons(cells.assign(n_unique=2, n_vectors=9)))
    ... # doctest: +NORMALIZE_WHITESPACE
    3 cells: 2 distinct of 9 points, at least 3 needed (harmless: tokens repeat in layer 0);
    1 cell: no reason given
    """
    reasons = reasons_in_words(missing)
    codes = missing["reason_code"].astype(object)
    is_few = codes.eq(ReasonCode.FEW_DISTINCT)
    repeats = (missing["layer"] == 0) & is_few
    reasons += np.where(repeats, " (harmless: tokens repeat in layer 0)", "")
    is_equal = is_few & missing["n_unique"].eq(1)
    kinds = kinds_of_text(reasons)
    of_code = codes.astype(str) + np.where(repeats, ", harmless", "")
    of_code += np.where(is_equal, ", equal", "")
    kinds = kinds.mask(codes.isin(_ONE_REASON), of_code)
    groups = [of_kind for _, of_kind in reasons.groupby(kinds, sort=False)]
    groups.sort(key=len, reverse=True)
    texts = [(len(of_kind), str(of_kind.value_counts().index[0])) for of_kind in groups]
    if len(texts) == 1:
        return texts[0][1]
    return "; ".join(f"{number} {plural(number, 'cell')}: {text}" for number, text in texts)


def reasons_in_words(missing: pd.DataFrame) -> pd.Series:
    """Return the reason why each of these rows has no value, in the words that views show."""
    cells = missing.loc[:, REASON_COLUMNS].astype(object)
    cells["reason"] = cells["reason"].fillna("no reason given")
    # many cells have the same one
    distinct = cells.drop_duplicates()
    words = {cell: shown_reason(*cell) for cell in distinct.itertuples(index=False, name=None)}
    texts = [words[cell] for cell in cells.itertuples(index=False, name=None)]
    return pd.Series(texts, missing.index, object)


def kinds_of_text(texts: pd.Series) -> pd.Series:
    """Return the kind of each text: those that differ in numbers alone are of one kind."""
    return texts.str.replace(r"\d+", "", regex=True)


NOT_RECORDED = "not recorded"
"""Stands for the design of rows that name none."""


def design_names(rows: pd.DataFrame) -> list[str]:
    """Return the names of the designs that rows were measured by, in alphabetical order.

    >>> design_names(pd.DataFrame({"design": ["dense", None]}))
    ['dense', 'not recorded']
    """
    return sorted(NOT_RECORDED if pd.isna(name) else str(name) for name in rows["design"].unique())


LOSS_TITLES = {
    LOSS: "training loss",
    VALIDATION_LOSS: "validation loss",
    PROBE_LOSS: "loss on the probe",
}
"""Titles of the stored losses, by the names of their scalars."""


def loss_of_run(frame: pd.DataFrame) -> tuple[str, pd.Series]:
    """Return the loss that the geometry of a run is compared with, its name and its values as
    :func:`scalar` does: that on the probe, otherwise the training loss.

    The loss on the probe is of the same text at every step, and of the weights that the geometry is
    of; the training loss is of one batch, a step earlier.
    """
    on_probe = scalar(frame, PROBE_LOSS)
    return (LOSS, scalar(frame, LOSS)) if on_probe.empty else (PROBE_LOSS, on_probe)
