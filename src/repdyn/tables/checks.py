"""Checks of the rows that a view is given, whose errors say what to select."""

from __future__ import annotations

import pandas as pd

from repdyn.tables.designs import design_names


def require_one(rows: pd.DataFrame, column: str) -> None:
    """Raise a ValueError if a column has several values."""
    found = sorted(rows[column].unique())
    if len(found) > 1:
        names = ", ".join(f"{str(name)!r}{_designs(rows, column, name)}" for name in found)
        raise ValueError(
            f"expected the rows of one {column}, got {len(found)}: {names}; "
            f"select one, for example frame[frame[{column!r}] == {str(found[0])!r}]"
        )


def _designs(rows: pd.DataFrame, column: str, value: object) -> str:
    """Return the sampling design of a probe in brackets if the designs of the probes differ."""
    if column != "probe" or len(design_names(rows)) == 1:
        return ""
    return f" (sampling design {', '.join(design_names(rows.loc[rows[column] == value]))})"


def require_distinct(rows: pd.DataFrame, cell: list[str]) -> None:
    """Raise a ValueError if two rows agree in all columns of ``cell``, which ends with metric and subset or head."""
    if (repeated := rows[rows.duplicated(cell, keep=False)]).empty:
        return
    first = repeated.iloc[0]
    same = repeated[(repeated[cell] == first[cell]).all(axis="columns")]
    place = ", ".join(f"{name} {first[name]}" for name in ("step", "layer", "head") if name in cell)
    raise ValueError(
        f"expected one value per {', '.join(cell[:-1])} and {cell[-1]}, got {len(same)} of {first['metric']} "
        f"({first['subset']}) at {place}, with settings {' and '.join(sorted(same['settings'].astype(str)))}; "
        "select one of them"
    )
