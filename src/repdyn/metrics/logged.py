"""Values of a checkpoint by the names under which they are logged, and monitored by callbacks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from typing import TypeAlias

from repdyn.metrics.registry import metric_info
from repdyn.probe.design import DISTINCT
from repdyn.store.schema import LEARNING_RATE, LOSS, PROBE_SCALARS, VALIDATION_LOSS, Row

LOGGED_SCALARS = {
    LOSS: "repdyn/loss",
    VALIDATION_LOSS: "repdyn/val_loss",
    LEARNING_RATE: "repdyn/learning_rate",
}
"""Names beside the metrics of what the training did at the step; it may log the stored ones itself,
on another axis.
"""

LogLayers: TypeAlias = str | Sequence[str]
"""Metrics of which every layer is logged: "default", "all", "none", or patterns such as
``("two_nn", "cka_*")``.
"""

ALL_TOKENS = "all"
_EVERY_LAYER: dict[str, tuple[str, ...]] = {
    "default": (
        f"anisotropy@{ALL_TOKENS}",
        *(f"two_nn@{subset}" for subset in (ALL_TOKENS, *DISTINCT)),
    ),
    "all": ("*",),
    "none": (),
}


def validate_log_layers(log_layers: LogLayers, measured: Iterable[tuple[str, str]]) -> None:
    """Check a choice of layers against the name and subset of each measured metric.

    >>> validate_log_layers(["tow_nn"], [("two_nn", "all")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: expected patterns of log_layers that match a measured metric, got 'tow_nn'; ...
    """
    patterns = _patterns(log_layers)
    if isinstance(log_layers, str):
        return
    names = [f"{metric}@{subset}" for metric, subset in measured]
    for layer, pattern in zip(log_layers, patterns, strict=True):
        if not any(map(pattern.match, names)):
            raise ValueError(
                f"expected patterns of log_layers that match a measured metric, got {layer!r}; "
                f"measured are {', '.join(names)}"
            )


def logged_values(rows: Sequence[Row], log_layers: LogLayers = "default") -> dict[str, float]:
    """Return the values of one checkpoint by the names under which they are logged.

    ``anisotropy/layer_03`` on all tokens, ``anisotropy_no_sink/layer_03`` on the subset: the part
    before the slash is a section in W&B and TensorBoard. In a model with several stacks the stack
    precedes the subset: ``anisotropy_decoder/layer_03``, ``anisotropy_decoder_no_sink/layer_03``.
    ``anisotropy/mean``, ``anisotropy/min`` and ``anisotropy/max`` are taken over the blocks of a
    stack that have a value at this step, without the embeddings, NaN if none has. Values of single
    attention heads are in a section without them: ``attention_topic_gap_heads/layer_03_head_05``.
    The loss on the probe and what belongs to it have their own names, ``probe/loss`` for example,
    unless they have no value; loss, validation loss and learning rate of the training those of
    :data:`LOGGED_SCALARS`. Other scalar rows are left out.

    Args:
        rows: of one run and one step, each of another layer, head, metric or subset.
        log_layers: the metrics of which every layer and head is logged. "default" is anisotropy on
            all tokens and TwoNN on these and without repeats, "all" every metric; a sequence of
            patterns names them: ``"cka_*"`` on all its subsets, ``"anisotropy@no_sink"`` on one,
            with ``*`` for any characters. The other metrics have the first, the middle and the last
            layer and no heads. "none" leaves out every layer.

    Returns:
        Finite values and NaN; numbers of layers and heads are padded to the width of the largest,
        at least two digits.

    Raises:
        ValueError: ``log_layers`` is another word.
    """
    patterns = _patterns(log_layers)
    width = _width(rows, "layer")
    width_of_heads = _width(rows, "head")
    values: dict[str, float] = {}
    sections: defaultdict[str, dict[int, float]] = defaultdict(dict)
    of_blocks: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.layer is None:
            continue
        section = _section(row)
        layer = f"layer_{row.layer:0{width}d}"
        key = f"{section}/{layer}"
        if row.head is not None:
            key = f"{section}_heads/{layer}_head_{row.head:0{width_of_heads}d}"
        if _matches(patterns, row.metric, row.subset or ALL_TOKENS):
            values[key] = row.value
        # statistics are those of layers: a layer's value is the mean over its heads
        if row.head is None:
            sections[section][row.layer] = row.value
            if metric_info(row.metric).enters_means(row.layer):
                of_blocks[section].append(row.value)
    values |= _scalars(rows)
    for section, layers in sections.items():
        for layer in _ends(layers) if log_layers != "none" else ():
            values[f"{section}/layer_{layer:0{width}d}"] = layers[layer]
        values |= _statistics(section, of_blocks[section])
    return values


def values_of_evaluation(values: Mapping[str, float], monitor: str | None) -> dict[str, float]:
    """Return what stands among the metrics of an evaluation: means over layers, the loss on the
    probe and what belongs to it, and the value that others decide by.

    >>> names = ("eval_two_nn/layer_01", "eval_two_nn/layer_02", "eval_two_nn/mean")
    >>> list(values_of_evaluation(dict.fromkeys(names, 1.0), "two_nn/layer_02"))
    ['eval_two_nn/layer_02', 'eval_two_nn/mean']

    Args:
        values: by the names of :func:`logged_values` behind ``eval_``.
        monitor: the name of one, with ``eval_`` or without; None where nothing is decided.
    """
    monitored = f"eval_{(monitor or '').removeprefix('eval_')}"
    shown = ("/mean", *PROBE_SCALARS)
    return {
        name: value for name, value in values.items() if name == monitored or name.endswith(shown)
    }


def logs_every_layer(metric: str, subset: str, log_layers: LogLayers) -> bool:
    """Return whether every layer of a metric on a subset is logged.

    >>> logs_every_layer("two_nn", "all", "default"), logs_every_layer("norm", "all", ["cka_*"])
    (True, False)
    """
    return _matches(_patterns(log_layers), metric, subset)


def _matches(patterns: Iterable[re.Pattern[str]], metric: str, subset: str) -> bool:
    return any(pattern.match(f"{metric}@{subset}") for pattern in patterns)


def _section(row: Row) -> str:
    """Return the part of a name before the slash."""
    subset = row.subset or ALL_TOKENS
    shown_subset = None if subset == ALL_TOKENS else subset
    return "_".join(filter(None, [row.metric, row.stack, shown_subset]))


def _ends(layers: Iterable[int]) -> tuple[int, int, int]:
    """Return the first, the middle and the last layer."""
    ordered = sorted(layers)
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]


def _width(rows: Sequence[Row], column: str) -> int:
    """Return how many digits the largest number of a column has, at least two."""
    numbers = (getattr(row, column) for row in rows)
    return max(2, len(str(max(filter(None, numbers), default=0))))


def _scalars(rows: Sequence[Row]) -> dict[str, float]:
    """Return the logged values that are of no layer."""
    values = {}
    for row in rows:
        is_logged = row.metric in (*PROBE_SCALARS, *LOGGED_SCALARS)
        if row.layer is None and is_logged and row.reason is None:
            values[LOGGED_SCALARS.get(row.metric, row.metric)] = row.value
    return values


def _statistics(section: str, values: Iterable[float]) -> dict[str, float]:
    """Return mean, minimum and maximum of the values that are defined; NaN if none is."""
    defined = [value for value in values if not math.isnan(value)] or [math.nan]
    return {
        f"{section}/mean": sum(defined) / len(defined),
        f"{section}/min": min(defined),
        f"{section}/max": max(defined),
    }


def _patterns(log_layers: LogLayers) -> list[re.Pattern[str]]:
    """Return the patterns of METRIC@SUBSET."""
    if isinstance(log_layers, str) and log_layers not in _EVERY_LAYER:
        raise ValueError(
            'expected log_layers "default", "all", "none" or a sequence of patterns such as '
            '("two_nn", "cka_*"), '
            f"got {log_layers!r}"
        )
    given = _EVERY_LAYER[log_layers] if isinstance(log_layers, str) else log_layers
    named = (pattern if "@" in pattern else f"{pattern}@*" for pattern in given)
    # brackets are those of a metric's settings
    return [re.compile(translate(pattern.replace("[", "[[]"))) for pattern in named]
