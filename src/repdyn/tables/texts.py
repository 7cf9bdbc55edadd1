"""Columns of text: categoricals in the frame of a store, strings in that of a measurement."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from repdyn.utils.printing import in_one_line


def filled(column: pd.Series, text: str) -> pd.Series:
    """Return a column with a text in place of missing values; the categories of a categorical stay sorted.

    >>> filled(pd.Series(["b", None], dtype="category"), "a").cat.categories.tolist()
    ['a', 'b']
    """
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column.fillna(text)
    if not bool(column.isna().any()):
        return column
    return column.cat.set_categories(sorted({*column.cat.categories, text})).fillna(text)


def concatenated(frames: Sequence[pd.DataFrame], *, ignore_index: bool = False) -> pd.DataFrame:
    """Return the rows of all frames, as ``pandas.concat`` does; a categorical of different categories stays one."""
    texts = [name for name in frames[0] if all(_is_categorical(frame, name) for frame in frames)]
    shared = {name: sorted(set().union(*(frame[name].cat.categories for frame in frames))) for name in texts}
    alike = [
        frame.assign(**{name: frame[name].cat.set_categories(names) for name, names in shared.items()})
        for frame in frames
    ]
    return pd.concat(alike, ignore_index=ignore_index)


def in_lines_of_their_own(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the line breaks and tabs in its texts written as escape sequences, for a terminal."""
    escaped = {}
    for name, column in frame.select_dtypes(["category", "object", "string"]).items():
        shown = {text: in_one_line(text) for text in column.dropna().unique() if isinstance(text, str)}
        if changed := {text: other for text, other in shown.items() if other != text}:
            texts = column.astype(object).replace(changed)
            escaped[str(name)] = pd.Categorical(texts, sorted(texts.dropna().unique()), ordered=True)
    return frame.assign(**escaped)


def counted(column: pd.Series) -> pd.Series:
    """Return how often each text occurs, the most common first; of equally common ones the first that occurs."""
    return column.astype(object).value_counts()


def _is_categorical(frame: pd.DataFrame, name: str) -> bool:
    return name in frame and isinstance(frame[name].dtype, pd.CategoricalDtype)
