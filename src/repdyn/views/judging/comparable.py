"""Which runs can be the baselines of a run."""

import fnmatch
from collections.abc import Iterable, Sequence
from itertools import chain, starmap

import numpy as np

from repdyn.utils.printing import shorten_list
from repdyn.views.judging.run import DescribedRun
from repdyn.views.tables.bands import FEWEST
from repdyn.views.tables.runs import MeasuredRun, differences
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.words import layer_names

_NAMES_OF_TOKENIZER = ("tokenizer", "tokenizer_name", "tokenizer_name_or_path", "data.tokenizer")
"""Settings in which trainings name their tokenizer."""


def require_comparable(run: DescribedRun, baselines: Sequence[DescribedRun]) -> None:
    """Refuse baselines of which a band would say nothing of this run.

    Raises:
        ValueError: how many there are, or what differs in which of them.
    """
    if len(baselines) < FEWEST:
        raise ValueError(
            f"expected at least {FEWEST} baselines for {run.name}, got {len(baselines)}; give more "
            "sound runs of the same recipe"
        )
    # a failed run widens the band by the very thing that the band is to show
    if failed := [other.name for other in baselines if other.insights.status == "failed"]:
        raise ValueError(
            f"expected sound baselines, got {', '.join(failed)} with the status failed; leave them "
            "out"
        )
    # a run among its own baselines pulls their median towards itself
    if copies := [other.name for other in baselines if _is_copy(run, other)]:
        raise ValueError(
            f"expected baselines other than {run.name} itself, got {', '.join(copies)} with the "
            "same values to the last bit; leave the copy out"
        )
    reasons = (_difference(run, other) for other in baselines)
    if different := next(filter(None, reasons), None):
        raise ValueError(
            f"expected baselines that compare with {run.name}, got {different}; leave them out, or "
            "measure them in the same way"
        )


def _difference(run: DescribedRun, other: DescribedRun) -> str | None:
    """Return what makes a run no baseline, other values of which mean other things; None if
    nothing does.
    """
    facts = (
        ("tokenizer", _tokenizer(run), _tokenizer(other)),
        ("model", _model(run), _model(other)),
        ("stack", run.stack, other.stack),
        ("number of parameters", run.parameters, other.parameters),
        ("layers", _layers(run), _layers(other)),
        ("probe", run.probe[:8], other.probe[:8]),
    )
    for what, of_run, of_other in facts:
        if of_run != of_other:
            return f"{other.name} with another {what}: {of_other}, not {of_run}"
    return differences([run, other])


def _is_copy(run: MeasuredRun, other: MeasuredRun) -> bool:
    """Return whether two runs have the same values wherever both have one, beyond the weights that
    they may begin with."""
    keys = [key for key in run.series if key in other.series]
    pairs = [(run.series[key], other.series[key]) for key in keys]
    shared = [*chain.from_iterable(starmap(_equal_steps, pairs))]
    return bool(shared) and all(shared)


def _equal_steps(series: MetricSeries, other: MetricSeries) -> list[bool]:
    """Return for each step of both above 0 whether all layers have the same values."""
    if series.layers != other.layers:
        return []
    steps = sorted({step for step in series.steps if step > 0} & set(other.steps))
    pairs = ((series.at(step)[0], other.at(step)[0]) for step in steps)
    return [
        np.array_equal(values, of_other, equal_nan=True)
        for values, of_other in pairs
        # a step at which nothing has a value would equal any other such step
        if np.isfinite(values).any()
    ]


def _tokenizer(run: MeasuredRun) -> str | None:
    return next((run.settings[name] for name in _NAMES_OF_TOKENIZER if name in run.settings), None)


def _model(run: MeasuredRun) -> str:
    return ", ".join(map(str, run.rows["model"].unique()))


def _layers(run: MeasuredRun) -> str:
    return layer_names(sorted(map(int, run.rows["layer"].unique())))


def named_like(names: Iterable[str], patterns: Sequence[str] | None) -> list[str]:
    """Return the names that match a pattern, with * for any characters; all, without patterns.

    Raises:
        ValueError: a pattern that matches none.
    """
    names = list(names)
    if patterns is None:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"expected a pattern of baselines, got {pattern!r}, which none is named like; they "
                f"are {shorten_list(names)}"
            )
    return [name for name in names if any(fnmatch.fnmatchcase(name, one) for one in patterns)]


def same_part(run: DescribedRun, stacks: Sequence[DescribedRun]) -> DescribedRun:
    """Return the part of a baseline that was measured on the run's probe and is of its stack; any,
    where there is none.
    """
    # False is less than True: the same probe counts more than the same stack
    return min(stacks, key=lambda other: (other.probe != run.probe, other.stack != run.stack))
