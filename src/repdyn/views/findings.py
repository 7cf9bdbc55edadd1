"""The published findings, judged on one run by criteria whose words and arithmetic share their numbers.

Where a model has several stacks each is judged for itself. "Not shown" means that this run does not show it by the
stated criterion, not that it shows the contrary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import pandas as pd

from repdyn.views.frames import SUBSETS, causality, layer_mean, measurements, metrics_of, of_metric, subsets_of

Verdict = Literal["shown", "not shown", "cannot be judged"]
"""What a criterion says of a run."""

COLOURS: dict[Verdict, str] = {"shown": "green", "not shown": "yellow", "cannot be judged": "bright_black"}
"""Of verdicts in a terminal."""

PAPER = "Internal Representation Dynamics in Transformers / The Shape of Learning (Findings of EACL 2024)"

SPREADS = 2.0
"""Combined standard deviations over batches that a difference has to exceed."""
RELATIVE = 0.10
"""Share of the smaller value that a difference has to exceed."""
MIDDLE = (0.25, 0.75)
"""Relative depths between which a layer counts as a middle one, and shares of the steps that count as near half."""
UNIFORM = 0.50
"""(max - min) / mean, at most, of a profile that is roughly uniform: about a quarter to either side."""
SETTLED = 0.20
"""Share of the whole growth, at most, that the second half of the training may add or take."""
EARLY = 0.10
"""Share of the last step by which the first measurement must have been taken."""

_NOISE = f"{SPREADS:g} combined standard deviations over batches"
_MORE = f"by more than {_NOISE} and more than {RELATIVE:.0%}"
BELL = (
    "at the last measured step the highest layer lies strictly between the embedding output and the last layer and "
    f"exceeds both {_MORE}; the middle layers (relative depth {MIDDLE[0]:g} to {MIDDLE[1]:g}) are higher on average "
    "than the rest"
)
UNIFORM_PROFILE = (
    "at the last measured step the range over the mean, (max - min) / mean over the blocks without the embedding "
    f"output, is at most {UNIFORM:g}; cannot be judged where {_NOISE} are as much"
)
GROWTH = (
    f"the mean over layers exceeds at the last measured step that at the first {_MORE}; from the measured step nearest "
    f"to half of the last one it changes by no more than {SETTLED:.0%} of this growth or {_NOISE}; cannot be judged "
    f"where the first measured step lies beyond {EARLY:.0%} of the last, or none between {MIDDLE[0]:.0%} and "
    f"{MIDDLE[1]:.0%} of it"
)
RISE_AND_FALL = (
    "the mean over layers is highest after the first measured step and no later than half of the last one, and exceeds "
    f"there both the first and the last measured value {_MORE}; cannot be judged where it is highest at the first "
    "measured step and that is not step 0"
)


MEANINGS = {
    "shape": "bell-shaped anisotropy over depth (decoders), roughly uniform (encoders)",
    "growth": "anisotropy grows, then stabilises (decoders)",
    "dimension": "intrinsic dimension rises, then declines",
}
"""The findings by name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A published finding and what one run says about it."""

    name: str
    """A key of :data:`MEANINGS`."""
    subset: str
    """The tokens it is judged on."""
    title: str
    source: str
    criterion: str
    """In words, with its numbers."""
    verdict: Verdict
    evidence: str
    """The numbers behind the verdict, or why there is none; one line."""


class _CannotBeJudgedError(Exception):
    """Carries the reason; never leaves this module."""


@dataclass(frozen=True, slots=True)
class _Point:
    at: int
    """Layer or step."""
    value: float
    std: float
    depth: float = math.nan
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.value:.3g}" if math.isnan(self.std) else f"{self.value:.3g}±{self.std:.1g}"


def findings(frame: pd.DataFrame) -> list[Finding]:
    """Judge each published finding on one run.

    A decoder is held against the bell, an encoder against the uniform profile.

    Args:
        frame: rows of one run.

    Returns:
        Five: profile of anisotropy over depth and its growth, each on all tokens and without sinks; rise and fall of
        the dimension.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none.
    """
    rows = measurements(frame)
    if causality(rows) is False:
        shape, criterion, judge = "roughly uniform anisotropy over depth (encoders)", UNIFORM_PROFILE, _uniform
    else:
        shape, criterion, judge = "bell-shaped anisotropy over depth (decoders)", BELL, _bell
    growth, dimension = MEANINGS["growth"], MEANINGS["dimension"]
    return [
        *(_judge("shape", shape, criterion, judge, rows, "anisotropy", subset) for subset in SUBSETS),
        *(_judge("growth", growth, GROWTH, _growth, rows, "anisotropy", subset) for subset in SUBSETS),
        _judge("dimension", dimension, RISE_AND_FALL, _rise_and_fall, rows, "two_nn", "all"),
    ]


def _judge(
    name: str,
    words: str,
    criterion: str,
    judge: Callable[[pd.DataFrame, str, str], tuple[bool, str]],
    rows: pd.DataFrame,
    metric: str,
    subset: str,
) -> Finding:
    title = f"{words}, {subset}"
    try:
        if metric not in metrics_of(rows) or subset not in subsets_of(rows, metric):
            raise _CannotBeJudgedError(f"{metric} was not measured on {subset}")
        shown, evidence = judge(rows, metric, subset)
    except _CannotBeJudgedError as reason:
        return Finding(name, subset, title, PAPER, criterion, "cannot be judged", str(reason))
    return Finding(name, subset, title, PAPER, criterion, "shown" if shown else "not shown", evidence)


def _bell(rows: pd.DataFrame, metric: str, subset: str) -> tuple[bool, str]:
    _require_decoder(rows)
    layers = _last_profile(rows, metric, subset)
    embedding, last, peak = layers[0], layers[-1], max(layers, key=lambda layer: layer.value)
    inside = [layer.value for layer in layers if MIDDLE[0] <= layer.depth <= MIDDLE[1]]
    if embedding.depth != 0 or last.depth != 1 or not inside:
        raise _CannotBeJudgedError(f"needs the embedding output, a middle and the last layer; got {_listed(layers)}")
    _require_values(layers)
    middle = fmean(inside)
    rest = fmean(layer.value for layer in layers if not MIDDLE[0] <= layer.depth <= MIDDLE[1])
    shown = embedding.at < peak.at < last.at and _exceeds(peak, embedding) and _exceeds(peak, last) and middle > rest
    return shown, (f"{peak} at layer {peak.at}; ends {embedding}, {last}; middle/rest {middle / rest:.2f}")


def _uniform(rows: pd.DataFrame, metric: str, subset: str) -> tuple[bool, str]:
    layers = _last_profile(rows, metric, subset)
    blocks = [layer for layer in layers if layer.depth > 0]
    if len(blocks) < 3:
        raise _CannotBeJudgedError(f"needs three blocks; got {_listed(layers)}")
    _require_values(blocks)
    low, high = min(blocks, key=lambda layer: layer.value), max(blocks, key=lambda layer: layer.value)
    mean = fmean(block.value for block in blocks)
    if _noise(high, low) >= UNIFORM * mean:
        raise _CannotBeJudgedError(f"the batches spread too far: {low} to {high}; enlarge the probe")
    ratio = (high.value - low.value) / mean
    extent = f"{low} (layer {low.at}) to {high} (layer {high.at})"
    return ratio <= UNIFORM, f"range/mean {ratio:.2f}: {extent}"


def _growth(rows: pd.DataFrame, metric: str, subset: str) -> tuple[bool, str]:
    course = _course(rows, metric, subset, at_least=2)
    first, last = course[0], course[-1]
    evidence = f"{first} at step {first.at:,}, {last} at {last.at:,}"
    _require_decoder(rows, f"here {evidence}")
    if first.at > EARLY * last.at:
        raise _CannotBeJudgedError(f"measured only from step {first.at:,} of {last.at:,}; the growth may lie before")
    half = min(course, key=lambda point: abs(point.at - last.at / 2))
    if not MIDDLE[0] * last.at <= half.at <= MIDDLE[1] * last.at:
        raise _CannotBeJudgedError(f"no step measured near half of step {last.at:,}")
    _require_spread(first, half, last)
    growth, late = last.value - first.value, last.value - half.value
    settled = abs(late) <= max(SETTLED * growth, _noise(half, last))
    share = f" ({late / growth:+.0%} of the growth after {half.at:,})" if growth > 0 else ""
    return _exceeds(last, first) and settled, evidence + share


def _rise_and_fall(rows: pd.DataFrame, metric: str, subset: str) -> tuple[bool, str]:
    course = _course(rows, metric, subset, at_least=3)
    first, last, peak = course[0], course[-1], max(course, key=lambda point: point.value)
    if peak is first and first.at > 0:
        raise _CannotBeJudgedError(f"highest at step {first.at:,}, the first measured; a rise may lie before")
    _require_spread(first, peak, last)
    shown = peak is not first and peak.at <= last.at / 2 and _exceeds(peak, first) and _exceeds(peak, last)
    return shown, f"{first} at step {first.at:,}, highest {peak} at {peak.at:,}, {last} at {last.at:,}"


def _exceeds(high: _Point, low: _Point) -> bool:
    return high.value - low.value > max(_noise(high, low), RELATIVE * low.value)


def _noise(one: _Point, other: _Point) -> float:
    return SPREADS * math.hypot(one.std, other.std)


def _last_profile(rows: pd.DataFrame, metric: str, subset: str) -> list[_Point]:
    """The layers, by depth, at the last one the metric was measured at."""
    cells = of_metric(rows, metric, subset)
    step = max(cells["step"].tolist())
    columns = (cells.loc[cells["step"] == step, name].tolist() for name in ("layer", "value", "std", "depth", "reason"))
    return [_Point(*cell) for cell in zip(*columns, strict=True)]


def _course(rows: pd.DataFrame, metric: str, subset: str, at_least: int) -> list[_Point]:
    """The mean over layers at every step that has one."""
    means = layer_mean(rows, metric, subset)
    if means.n_used == 0:
        raise _CannotBeJudgedError(f"no layer has a value of {metric} at every measured step")
    columns = means.mean.index.tolist(), means.mean.tolist(), means.std.tolist()
    course = [_Point(*cell) for cell in zip(*columns, strict=True)]
    if len(of_metric(rows, metric, subset)["step"].unique()) == 1:
        raise _CannotBeJudgedError("one checkpoint")
    if len(course) < at_least:
        raise _CannotBeJudgedError(f"needs {at_least} measured steps; got {len(course)}")
    return course


def _require_decoder(rows: pd.DataFrame, *evidence: str) -> None:
    causal = causality(rows)
    if causal:
        return
    kind = "not known whether this is a decoder" if causal is None else "a finding on decoders"
    raise _CannotBeJudgedError("; ".join([kind, *evidence]))


def _require_values(layers: Sequence[_Point]) -> None:
    missing = [layer for layer in layers if math.isnan(layer.value)]
    if missing:
        raise _CannotBeJudgedError(f"no value at {_listed(missing)}: {missing[0].reason}")
    _require_spread(*layers)


def _require_spread(*points: _Point) -> None:
    if any(math.isnan(point.std) for point in points):
        raise _CannotBeJudgedError("a single batch, so no spread to judge by; enlarge the probe")


def _listed(layers: Sequence[_Point]) -> str:
    return f"layer{'s' * (len(layers) > 1)} {', '.join(str(layer.at) for layer in layers)}"
