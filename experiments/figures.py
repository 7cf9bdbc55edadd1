"""Figures of the matched pair, with bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.effects import ANISOTROPY, DIMENSION, RunRows
from experiments.inference import MARGIN, Test, Verdict, interval
from repdyn.views.tables.style import styled

COLOURS = {
    "causal": "#004C7F",
    "masked": "#E8820C",
}  # dark and light, so that greyscale tells them apart, too
RATIOS = {
    text: math.log(ratio)
    for text, ratio in (
        ("1/8", 0.125),
        ("1/4", 0.25),
        ("1/2", 0.5),
        ("0.8", 0.8),
        ("1", 1),
        ("1.25", 1.25),
        ("2", 2),
        ("4", 4),
        ("8", 8),
    )
}
"""Ticks of an axis of logarithms of ratios."""
VERDICT_COLOURS: dict[Verdict, str] = {
    "supported": "#0072B2",
    "contradicted": "#D55E00",
    "absent": "#CC79A7",
    "undecided": "0.55",
    "untestable": "0.55",
}
_LABELS = {ANISOTROPY: "Anisotropy", DIMENSION: "Intrinsic dimension (TwoNN)"}


FIGURES = {
    "over_training": "Anisotropy, dimension and loss over training",
    "over_depth": "Anisotropy and dimension over depth",
    "anisotropy_by_block": "Anisotropy of each block over training",
    "dimension_by_block": "Dimension of each block over training",
    "sinks": "Anisotropy with and without first positions, over training and depth",
    "designs": "The dimension by independent and by dense windows of the same checkpoints",
    "tests": "The effects of the hypotheses",
}
"""The figures by name, with what they show."""


def draw_figures(runs: Sequence[RunRows], tests: Sequence[Test]) -> dict[str, Figure]:
    """Return the figures of FIGURES."""
    drawn = (
        over_training(runs),
        over_depth(runs),
        by_block(runs, ANISOTROPY),
        by_block(runs, DIMENSION),
        sinks(runs),
        designs(runs),
        forest(tests),
    )
    return dict(zip(FIGURES, drawn, strict=True))


@styled
def over_training(runs: Sequence[RunRows]) -> Figure:
    """Draw the mean over blocks against the step, on probe a, and the loss."""
    figure = Figure(figsize=(11.5, 3.4))
    axes = figure.subplots(1, 3)
    for panel, metric in zip(axes[:2], (ANISOTROPY, DIMENSION), strict=True):
        for arm, members in _by_arm(runs).items():
            means = [run.course(metric, "a").mean(axis=1, skipna=False) for run in members]
            _band(panel, _joined(means), COLOURS[arm], f"{arm}, {_seeds(members)}")
        _title(panel, f"{_LABELS[metric]}, mean over blocks")
    for arm, members in _by_arm(runs).items():
        _band(axes[2], _joined([run.losses() for run in members]), COLOURS[arm], arm)
    _title(axes[2], "Loss, nats per predicted token")
    for panel in axes:
        _training_axis(panel)
    _from_zero(axes[:2])
    if runs:
        axes[0].legend()
    _entitle(figure, "Over training: mean over seeds, 95% interval, and each seed")
    return figure


@styled
def over_depth(runs: Sequence[RunRows]) -> Figure:
    """Draw the profiles over depth at the first and the last step."""
    figure = Figure(figsize=(9.0, 3.4))
    for panel, metric in zip(figure.subplots(1, 2), (ANISOTROPY, DIMENSION), strict=True):
        for arm, members in _by_arm(runs).items():
            courses = [run.course(metric, "a") for run in members]
            _band(
                panel,
                _joined([course.iloc[-1] for course in courses]),
                COLOURS[arm],
                f"{arm}, last step",
            )
            start = _joined([course.iloc[0] for course in courses])
            panel.plot(
                start.index,
                start.mean(axis=1),
                color=COLOURS[arm],
                linestyle=":",
                label=f"{arm}, step 0",
            )
        panel.set_xlabel("block")
        _title(panel, _LABELS[metric])
        panel.xaxis.get_major_locator().set_params(integer=True)
        _from_zero([panel])
    if runs:
        # of both panels; dimensions lie low in the first blocks and leave room for it
        panel.legend()
    _entitle(figure, "Over depth: mean over seeds, 95% interval, and each seed")
    return figure


@styled
def by_block(runs: Sequence[RunRows], metric: str) -> Figure:
    """Draw each block against the step, an arm to a panel."""
    arms = _by_arm(runs)
    figure, grid = _panels(len(arms))
    for panel, (arm, members) in zip(grid, arms.items(), strict=True):
        courses = [run.course(metric, "a") for run in members]
        blocks = courses[0].columns
        for block in blocks:
            shade = 0.3 + 0.7 * (block - blocks[0]) / max(1, blocks[-1] - blocks[0])
            values = _joined([course[block] for course in courses])
            panel.plot(
                values.index,
                values.mean(axis=1),
                color=_shade(COLOURS[arm], shade),
                label=f"block {block:.0f}",
            )
        _title(panel, f"{arm}, mean over {_seeds(members)}")
        _training_axis(panel)
        panel.legend(fontsize=7, ncols=2)
    _from_zero(grid)
    _entitle(figure, f"{_LABELS[metric]} of each block over training")
    return figure


@styled
def designs(runs: Sequence[RunRows]) -> Figure:
    """Draw the dimension by independent and by dense windows of the same checkpoints."""
    arms = _by_arm(runs)
    figure, grid = _panels(len(arms))
    for panel, (arm, members) in zip(grid, arms.items(), strict=True):
        for probe, colour, dash, label in (
            ("a", COLOURS[arm], "-", "independent"),
            ("dense", "0.45", "--", "dense windows"),
        ):
            _band(
                panel,
                _joined([_mean(run.course(DIMENSION, probe)) for run in members]),
                colour,
                label,
                dash,
            )
        _title(panel, arm)
        _training_axis(panel)
        panel.legend()
    _from_zero(grid)
    _entitle(
        figure,
        f"{_LABELS[DIMENSION]}, mean over blocks, of the same checkpoints by two sampling designs",
    )
    return figure


@styled
def sinks(runs: Sequence[RunRows]) -> Figure:
    """Draw the anisotropy of all tokens and of those after the first position, over training and at
    the last step.
    """
    figure = Figure(figsize=(9.0, 3.4))
    training, depth = figure.subplots(1, 2)
    for arm, members in _by_arm(runs).items():
        for subset, dash, label in (
            ("all", "-", "all tokens"),
            ("no_sink", "--", "without first positions"),
        ):
            courses = [run.course(ANISOTROPY, "a", subset) for run in members]
            colour = COLOURS[arm] if subset == "all" else "0.1" if arm == "causal" else "0.6"
            _band(
                training,
                _joined([_mean(course) for course in courses]),
                colour,
                f"{arm}, {label}",
                dash,
            )
            _band(
                depth,
                _joined([course.iloc[-1] for course in courses]),
                colour,
                f"{arm}, {label}",
                dash,
            )
    _training_axis(training)
    _title(training, "Mean over blocks")
    _title(depth, "Last step")
    depth.set_xlabel("block")
    depth.xaxis.get_major_locator().set_params(integer=True)
    _from_zero((training, depth))
    if runs:
        training.legend(fontsize=8)
    _entitle(figure, "Anisotropy with and without first positions")
    return figure


@styled
def forest(tests: Sequence[Test]) -> Figure:
    """Draw the effects of the hypotheses with their intervals, and the margin within which an
    effect counts as none.
    """
    figure = Figure(figsize=(8.0, 0.42 * len(tests) + 1.4))
    axes = figure.subplots()
    axes.axvspan(-MARGIN, MARGIN, color="0.9")
    axes.axvline(0, color="0.5", linewidth=1)
    for row, test in enumerate(reversed(tests)):
        if math.isnan(test.mean):
            continue
        colour = VERDICT_COLOURS[test.verdict]
        if not math.isnan(test.low):
            axes.plot([test.low, test.high], [row, row], color=colour, linewidth=2)
        axes.plot(test.mean, row, "o", color=colour)
    names = [
        f"{test.hypothesis.name}: {test.hypothesis.sentence} ({test.verdict})"
        for test in reversed(tests)
    ]
    axes.set_yticks(range(len(tests)), names, fontsize=8)
    for label, test in zip(axes.get_yticklabels(), reversed(tests), strict=True):
        label.set_color(VERDICT_COLOURS[test.verdict])
    ratio_ticks(axes)
    axes.set_xlabel("ratio")
    _entitle(figure, "Effects: mean over seeds and 95% interval; grey: ±10%")
    return figure


def ratio_ticks(axes: Axes, **style: float) -> None:
    """Label the horizontal axis, of logarithms of ratios, with those ratios of RATIOS that lie
    within its limits.
    """
    low, high = axes.get_xlim()
    shown = {text: place for text, place in RATIOS.items() if low <= place <= high}
    axes.set_xticks(list(shown.values()), list(shown), **style)


def _by_arm(runs: Sequence[RunRows]) -> dict[str, list[RunRows]]:
    return {arm: members for arm in COLOURS if (members := [run for run in runs if run.arm == arm])}


def _mean(course: pd.DataFrame) -> pd.Series:
    return course.mean(axis=1, skipna=False)


def _joined(series: Sequence[pd.Series]) -> pd.DataFrame:
    """Return the series as columns, at the places that all have."""
    return pd.concat(series, axis=1, join="inner", keys=range(len(series)))


def _band(axes: Axes, values: pd.DataFrame, colour: str, label: str, dash: str = "-") -> None:
    """Draw the mean over columns, its 95% interval, and each column."""
    x = values.index.to_numpy(float)
    limits = np.array([interval(row) for row in values.to_numpy()]).reshape(-1, 2)
    axes.fill_between(x, limits[:, 0], limits[:, 1], color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, values.to_numpy(), color=colour, linewidth=0.6, alpha=0.5)
    axes.plot(x, values.mean(axis=1), color=colour, linewidth=1.8, linestyle=dash, label=label)


def _training_axis(axes: Axes) -> None:
    # linear up to the first step, so that step 0 is seen
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.set_xlabel("step")


def _from_zero(panels: Iterable[Axes]) -> None:
    """Let values begin at 0; to be called when all panels with one axis are drawn."""
    for one in panels:
        one.set_ylim(bottom=0)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, on one scale."""
    figure = Figure(figsize=(1.0 + 4.0 * max(1, count), 3.4))
    return figure, list(figure.subplots(1, max(1, count), sharey=True, squeeze=False)[0][:count])


def _title(axes: Axes, text: str) -> None:
    # above the panel, since it is longer than the vertical axis
    axes.set_title(text, loc="left", fontsize=10)


def _seeds(members: Sequence[RunRows]) -> str:
    return "1 seed" if len(members) == 1 else f"{len(members)} seeds"


def _entitle(figure: Figure, title: str) -> None:
    figure.suptitle(title, fontsize=10.5)


def _shade(colour: str, strength: float) -> tuple[float, float, float]:
    """Return a colour mixed with white."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(1 - strength * (1 - part) for part in (red, green, blue))
