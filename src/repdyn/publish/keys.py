"""Names and values of one checkpoint in the loggers, and the choice of layers that have a curve each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from repdyn.store.schema import PROBE_SCALARS, Row, too_few_distinct

LogLayers: TypeAlias = str | Sequence[str]
"""Metrics of which every layer is logged: "default", "all", "none", or patterns such as ``("two_nn", "cka_*")``."""

ALL_TOKENS = "all"
_EVERY_LAYER: dict[str, tuple[str, ...]] = {
    "default": (f"anisotropy@{ALL_TOKENS}", f"two_nn@{ALL_TOKENS}"),
    "all": ("*",),
    "none": (),
}


def validate_log_layers(log_layers: LogLayers, measured: Iterable[tuple[str, str]]) -> None:
    """Check a choice of layers.

    Args:
        log_layers: the choice, as for :func:`logged_values`.
        measured: name and token subset of each metric.

    Raises:
        ValueError: another word than "default", "all" and "none", or a pattern that matches no measured metric.

    >>> validate_log_layers(["tow_nn"], [("two_nn", "all")])
    Traceback (most recent call last):
    ValueError: expected patterns of log_layers that match a measured metric, got 'tow_nn'; measured are two_nn@all
    """
    patterns = _patterns(log_layers)
    if isinstance(log_layers, str):
        return
    pairs = list(measured)
    for given, pattern in zip(log_layers, patterns, strict=True):
        if not any(_matches(pattern, metric, subset) for metric, subset in pairs):
            names = ", ".join(f"{metric}@{subset}" for metric, subset in pairs)
            raise ValueError(
                f"expected patterns of log_layers that match a measured metric, got {given!r}; measured are {names}"
            )


def logged_values(rows: Sequence[Row], log_layers: LogLayers = "default") -> dict[str, float]:
    """Return the values of one checkpoint by the names under which they are logged.

    ``anisotropy/layer_03`` on all tokens, ``anisotropy_no_sink/layer_03`` on the subset: the part before the slash is
    a section in W&B and TensorBoard. In a model with several stacks the stack precedes the subset:
    ``anisotropy_decoder/layer_03``, ``anisotropy_decoder_no_sink/layer_03``. ``anisotropy/mean``, ``anisotropy/min``
    and ``anisotropy/max`` are taken over the layers of a stack that have a value at this step, NaN if none has. Values
    of single attention heads are in a section without them: ``attention_topic_gap_heads/layer_03_head_05``. The loss on
    the probe and what belongs to it have their own names, ``probe/loss`` for example, unless they have no value. Other
    scalar rows are left out: the training logs them itself.

    Args:
        rows: of one run and one step.
        log_layers: the metrics of which every layer and head is logged. "default" is anisotropy and TwoNN on all
            tokens, "all" every metric; a sequence of patterns names them: ``"cka_*"`` on all its token subsets,
            ``"anisotropy@no_sink"`` on one, with ``*`` for any characters. The other metrics have the first, the middle
            and the last layer and no heads. "none" leaves out every layer.

    Returns:
        Finite values and NaN; numbers of layers and heads are padded to the width of the largest, at least two digits.

    Raises:
        ValueError: two rows have the same name, or ``log_layers`` is another word.
    """
    patterns = _patterns(log_layers)
    width = _width(row.layer for row in rows)
    width_of_heads = _width(row.head for row in rows)
    every: dict[str, float] = {}
    sections: defaultdict[str, dict[int, str]] = defaultdict(dict)
    logged: set[str] = set()
    for row in rows:
        if row.layer is None:
            continue
        subset = row.subset or ALL_TOKENS
        section = "_".join(filter(None, [row.metric, row.stack, None if subset == ALL_TOKENS else subset]))
        key = f"{section}/layer_{row.layer:0{width}d}"
        if row.head is not None:
            key = f"{section}_heads/layer_{row.layer:0{width}d}_head_{row.head:0{width_of_heads}d}"
        if key in every:
            raise ValueError(
                f"expected one row for each name, got two for {key!r} (the second: step {row.step}, settings "
                f"{row.settings}); log one step at a time, and one setting of a metric"
            )
        # rows stored by earlier versions have not been checked for this
        few = too_few_distinct(row.on_distinct, row.n_unique, row.n_vectors, row.near_duplicate_share)
        every[key] = math.nan if few else row.value
        if row.head is None:
            sections[section][row.layer] = key
        if any(_matches(pattern, row.metric, subset) for pattern in patterns):
            logged.add(key)
    if log_layers != "none":
        logged.update(key for layers in sections.values() for key in _first_middle_last(layers))
    values = {key: value for key, value in every.items() if key in logged}
    values |= {row.metric: row.value for row in rows if row.metric in PROBE_SCALARS and row.reason is None}
    for section, layers in sections.items():
        values |= _statistics(section, [every[key] for key in layers.values()])
    return values


def _patterns(log_layers: LogLayers) -> tuple[str, ...]:
    """Return patterns of METRIC@SUBSET."""
    if isinstance(log_layers, str):
        if log_layers not in _EVERY_LAYER:
            raise ValueError(
                'expected log_layers "default", "all", "none" or a sequence of patterns such as ("two_nn", "cka_*"), '
                f"got {log_layers!r}"
            )
        return _EVERY_LAYER[log_layers]
    return tuple(pattern if "@" in pattern else f"{pattern}@*" for pattern in log_layers)


def _matches(pattern: str, metric: str, subset: str) -> bool:
    # brackets are those of a metric's settings
    return fnmatchcase(f"{metric}@{subset}", pattern.replace("[", "[[]"))


def _first_middle_last(layers: Mapping[int, str]) -> set[str]:
    ordered = [layers[layer] for layer in sorted(layers)]
    return {ordered[0], ordered[len(ordered) // 2], ordered[-1]}


def _statistics(section: str, values: Sequence[float]) -> dict[str, float]:
    known = [value for value in values if not math.isnan(value)] or [math.nan]
    return {
        f"{section}/mean": sum(known) / len(known),
        f"{section}/min": min(known),
        f"{section}/max": max(known),
    }


def _width(numbers: Iterable[int | None]) -> int:
    """Return the number of digits of the largest number, at least two."""
    return max(2, len(str(max((number for number in numbers if number is not None), default=0))))


def monitored_values(rows: Sequence[Row], prefix: str = "") -> dict[str, float]:
    """Return what other callbacks may monitor of one step: means, minima, maxima and every layer, where defined.

    The names are those of :func:`logged_values`; values of heads are left out.

    Args:
        rows: of one run and one step.
        prefix: put before each name.
    """
    values = logged_values([row for row in rows if row.head is None], "all") if rows else {}
    return {f"{prefix}{name}": value for name, value in values.items() if not math.isnan(value)}
