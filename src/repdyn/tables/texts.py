"""Numbers and columns of text, as every view shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from repdyn.utils.names import in_one_line


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
    escaped = {str(name): _escaped(column) for name, column in frame.items() if _has_texts(column)}
    return frame.assign(**escaped)


def _has_texts(column: pd.Series) -> bool:
    return isinstance(column.dtype, (pd.CategoricalDtype, pd.StringDtype)) or column.dtype == object


def _escaped(column: pd.Series) -> pd.Series:
    is_categorical = isinstance(column.dtype, pd.CategoricalDtype)
    known = column.cat.categories if is_categorical else column.dropna().unique()
    escaped = {name: shown for name in known if isinstance(name, str) and (shown := in_one_line(name)) != name}
    if not escaped:
        return column
    texts = column.astype(object).replace(escaped)
    return texts.astype(pd.CategoricalDtype(sorted(texts.dropna().unique()), ordered=True)) if is_categorical else texts


def counted(column: pd.Series) -> pd.Series:
    """Return how often each text occurs, the most common first; of equally common ones the first that occurs."""
    return column.astype(object).value_counts()


def _is_categorical(frame: pd.DataFrame, name: str) -> bool:
    return name in frame and isinstance(frame[name].dtype, pd.CategoricalDtype)


NO_VALUE = "-"


def number_text(value: float) -> str:
    """Return a value with three significant digits, as a whole number with commas where it is large; a dash for NaN.

    >>> number_text(0.012345), number_text(-3.2e-5), number_text(3842.1), number_text(1234567.0), number_text(math.nan)
    ('0.0123', '-3.2e-05', '3,842', '1.23e+06', '-')
    """
    if math.isnan(value):
        return NO_VALUE
    return f"{value:,.0f}" if 999.5 <= abs(value) < 999_999.5 else f"{value:.3g}"


def short_count(count: float) -> str:
    """Return a number of parameters or tokens in a few characters.

    >>> [short_count(count) for count in (0, 512, 4096, 44_670_976, 999_999_999, 1.4e9, 3e11)]
    ['0', '512', '4.1k', '45M', '1B', '1.4B', '300B']
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        # what would round to a thousand of the next smaller unit is one of this
        if count >= 0.9995 * size:
            scaled = count / size
            return f"{scaled:.0f}{letter}" if scaled >= 9.95 else f"{scaled:.1f}".removesuffix(".0") + letter
    return f"{count:.0f}"


def short_value(value: float) -> str:
    """Return a value in four characters if possible, and one more for a sign.

    >>> short_value(0.0532), short_value(12.34), short_value(1234.0), short_value(123456.0), short_value(math.nan)
    ('0.05', '12.3', '1234', '1e+05', '   -')
    >>> short_value(-12.34)
    '-12.3'
    """
    if math.isnan(value):
        return f"{NO_VALUE:>4}"
    size = abs(value)
    if size >= 9999.5:
        return f"{value:.0e}"
    return f"{value:4.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
