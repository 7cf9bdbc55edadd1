"""Criteria on values in the tables of studies."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from repdyn.lab.recipes.criteria import (
    Criterion,
    Judgement,
    NotMeasuredError,
    ascending,
)
from repdyn.views.judging.effects import CannotBeJudgedError, judge_interval

OverLayers: TypeAlias = Literal["mean", "largest", "layer of the largest"]


@dataclass(frozen=True, kw_only=True)
class Cell(Criterion):
    """A value in a table of a study: near the published one, at least a bound, or at most one.

    Where the table has a 95% interval, in the columns NAME_low and NAME_high, or low and high, the
    whole interval must be there.
    """

    study: str
    table: str
    """Name of the file, without its suffix."""
    column: str
    row: dict[str, Any] = field(default_factory=dict)
    """Values of columns that tell the row: None for a missing one; a layer below 0 counts from the
    last one, -1.
    """
    over_layers: OverLayers | None = None
    """What of the values of all layers is judged, where ``row`` names none."""
    value: float | None = None
    within: float | None = None
    """Largest distance from ``value``."""
    at_least: float | None = None
    at_most: float | None = None
    kind: Literal["cell"] = "cell"

    def __post_init__(self) -> None:
        if (self.value is None) != (self.within is None):
            raise ValueError("expected value and within together, got one of them")
        if (self.value is None) == (self.at_least is None and self.at_most is None):
            raise ValueError("expected value and within, or at_least, or at_most; keep one kind")
        ascending(self.bounds)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the lowest and the highest value that is as published."""
        if self.value is not None and self.within is not None:
            return self.value - self.within, self.value + self.within
        low, high = self.at_least, self.at_most
        return -math.inf if low is None else low, math.inf if high is None else high

    @property
    def bound(self) -> str:
        low, high = self.bounds
        ends = {f"at least {low:g}": low, f"at most {high:g}": high}
        return " and ".join(text for text, end in ends.items() if math.isfinite(end))

    @property
    def text(self) -> str:
        of_layers = f"{self.over_layers} of " if self.over_layers else ""
        where = f"{of_layers}{self.column} in {self.table}.csv of the study {self.study}" + (
            f" ({self._at})" if self.row else ""
        )
        return (
            f"{where}: "
            f"{self.bound if self.value is None else f'within {self.within:g} of {self.value:g}'}."
        )

    @property
    def _at(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.row.items())

    def measured(self, table: pd.DataFrame) -> tuple[float, float, float]:
        """Return the value in a table of the study, and its interval, which is the value itself
        where it has none.
        """
        if missing := {self.column, *self.row} - set(table):
            raise NotMeasuredError(f"{self.table}.csv has no column {missing.pop()}")
        for column, value in self.row.items():
            if isinstance(value, str | None):
                table = table.loc[
                    table[column].isna() if value is None else table[column].astype(str) == value
                ]
                continue
            numbers = pd.Series(
                np.asarray(pd.to_numeric(table[column], errors="coerce"), float), table.index
            )
            # models of one recipe have other depths, so that the last layer has no number of its
            # own
            from_last = column == "layer" and value < 0
            is_meant = numbers == (numbers.max() + 1 + value if from_last else value)
            table = table.loc[is_meant]
        if self.over_layers:
            return self._of_layers(table)
        if len(table) != 1:
            raise CannotBeJudgedError(
                f"{self.table}.csv has {len(table) or 'no'} rows with {self._at}"
            )
        (record,) = table.to_dict("records")
        value = float(record[self.column])
        low, high = (
            float(record.get(f"{self.column}_{end}", record.get(end, value)))
            for end in ("low", "high")
        )
        return value, low, high

    def _of_layers(self, table: pd.DataFrame) -> tuple[float, float, float]:
        """Return what is judged of the values of layers, with its interval: of a mean that of
        perfectly correlated values; of the layer of the largest value, the first and the last one
        whose interval reaches that of the largest."""
        table = table.loc[table[self.column].notna()]
        if table.empty or table["layer"].duplicated().any():
            raise CannotBeJudgedError(
                f"{self.table}.csv has {'several rows' if len(table) else 'no rows'} of a layer "
                f"with {self._at}"
            )
        values = table[self.column].to_numpy(float)
        lows, highs = (
            np.asarray(table.get(f"{self.column}_{end}", table.get(end, table[self.column])), float)
            for end in ("low", "high")
        )
        if self.over_layers == "mean":
            return float(values.mean()), float(lows.mean()), float(highs.mean())
        if self.over_layers == "largest":
            # the largest true value is at least the largest lower end, and at most the largest
            # upper one
            return float(values.max()), float(lows.max()), float(highs.max())
        layers = table["layer"].to_numpy(float)
        largest = int(values.argmax())
        # any of these may be the layer of the largest true value
        rivals = np.extract(highs >= lows[largest], layers)
        return float(layers[largest]), float(rivals.min()), float(rivals.max())

    def judge(self, measured: pd.DataFrame, metric: str = "") -> Judgement:
        value, low, high = self.measured(measured)
        if math.isnan(value):
            raise CannotBeJudgedError("the value is undefined")
        interval = f" [{low:.4g}, {high:.4g}]" if low < high else ""
        # "at least" and "at most" hold on the bound itself
        verdict = judge_interval(low, high, self.bounds, includes_bounds=True)
        return verdict, f"{value:.4g}{interval}"
