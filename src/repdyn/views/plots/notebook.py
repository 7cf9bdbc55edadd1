"""The picture of a profile or a store on the last line of a notebook's cell."""

import textwrap
from contextlib import suppress
from io import BytesIO
from typing import Protocol

import pandas as pd
from matplotlib.figure import Figure

from repdyn.store import Store
from repdyn.views.display import FAMILIES, display_of
from repdyn.views.figures import comparison
from repdyn.views.figures import run as of_run
from repdyn.views.figures.panes import LARGE
from repdyn.views.judging import DescribedRuns, described_runs
from repdyn.views.judging.run import stacks_of_run
from repdyn.views.tables.frames import in_registry_order
from repdyn.views.tables.seeds import with_seeds

_MAX_HEADLINES = 3
_WIDTH = 100  # characters of a line below the picture


class Rows(Protocol):
    """Has rows, as a profile does."""

    def to_pandas(self) -> pd.DataFrame: ...


def picture(shown: Store | Rows) -> bytes | None:
    """Return the means of a store's runs over training, above what is said of the first of them, or
    a profile over depth, as PNG; None where nothing has a value.

    The metrics are those of one family: geometry, unless none of its metrics was measured.
    """
    with suppress(ValueError):  # nothing is measured
        if isinstance(shown, Store):
            data = described_runs(shown)
            lines = [f"{run.label}, {run.insights.headline}" for run in data.runs[:_MAX_HEADLINES]]
            told = "\n".join(textwrap.fill(line, _WIDTH) for line in lines)
        else:
            data, told = DescribedRuns(stacks_of_run(shown.to_pandas()), {}), ""
        return _png(_drawn(data), told)
    return None


def _drawn(data: DescribedRuns) -> Figure:
    runs = with_seeds(data.runs, data.seeds)
    first = data.runs[0]
    valued = in_registry_order({metric for run in runs for metric in run.metrics()})
    if not valued:
        raise ValueError("expected a measured value, got none")
    family = display_of(valued[0]).family
    metrics = [metric for metric in valued if display_of(metric).family == family]
    title = FAMILIES.get(family, family)
    in_training = [run for run in runs if len(run.steps) > 1]
    if len(runs) > 1 and in_training:
        return comparison.means_over_layers(runs, metrics)
    if len(runs) > 1:
        return comparison.over_depth(runs, metrics, title, LARGE)
    return (
        of_run.mean_over_layers(first, metrics)
        if in_training
        else of_run.over_depth(first, metrics, title, LARGE)
    )


def _png(figure: Figure, told: str) -> bytes:
    file = BytesIO()
    figure.text(0.02, -0.01, told, va="top")
    figure.savefig(file, format="png", dpi=100, bbox_inches="tight", pad_inches=0.1)
    return file.getvalue()
