"""Rows of every metric in the table, made up but shaped like those of real decoders that train."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from synthetic_runs import LOG_STEPS, make_row, make_scalar, to_frame

from repdyn.metrics import METRICS, Metric
from repdyn.metrics.request import requested
from repdyn.store.schema import Row
from repdyn.views.display import display_of

CLASSES = ("function", "content", "frequent", "rare")
PYTHIA = (0, *(2**power for power in range(10)), *range(1000, 143001, 1000))

# what a class of tokens has more, or less, of each quantity
_SHIFTS = {
    "all": 0.0,
    "no_sink": -0.04,
    "function": 0.10,
    "content": -0.06,
    "frequent": 0.08,
    "rare": -0.10,
}
# seconds for all layers of a checkpoint; what metrics share is charged to the first that asks
_SECONDS = {
    "anisotropy": 2.1,
    "two_nn": 9.4,
    "participation_ratio": 4.2,
    "token_rank": 21.0,
    "linearity": 3.3,
}


_CURVES: dict[str, Callable[[float, float, float], float]] = {
    "anisotropy": lambda t, x, shift: (
        0.05 + 0.5 * t * math.sin(math.pi * (0.1 + 0.8 * x)) ** 2 + shift * t * 0.5
    ),
    "two_nn": lambda t, x, shift: 9 + 30 * t * (1 - t) - 2 * math.sin(math.pi * x),
    "levina_bickel": lambda t, x, shift: 9.5 + 26 * t * (1 - t) - 2 * math.sin(math.pi * x),
    "local_dimension": lambda t, x, shift: 7.5 + 12 * t * (1 - t) - 1.5 * math.sin(math.pi * x),
    "ph_dimension": lambda t, x, shift: 8.5 + 28 * t * (1 - t) - 2 * math.sin(math.pi * x),
    "participation_ratio": lambda t, x, shift: 12 + 40 * t * (1 - 0.8 * x) + 30 * shift,
    "effective_rank": lambda t, x, shift: 80 + 300 * t * (1 - 0.5 * x) + 200 * shift,
    "unbiased_participation_ratio": lambda t, x, shift: 13 + 42 * t * (1 - 0.8 * x) + 30 * shift,
    "effective_rank_of_variance": lambda t, x, shift: 30 + 150 * t * (1 - 0.5 * x) + 100 * shift,
    "lidar": lambda t, x, shift: 5 + 20 * t * x,
    "dime": lambda t, x, shift: 0.2 + 0.5 * t * x,
    "alpha_req": lambda t, x, shift: 1.9 - 0.9 * t + 0.4 * x + shift,
    "local_anisotropy": lambda t, x, shift: 0.1 + 0.1 * t * x + shift,
    "mean_cosine": lambda t, x, shift: 0.02 + 0.6 * t * x + shift,
    "sequence_entropy": lambda t, x, shift: 0.8 - 0.6 * t * math.sin(math.pi * x),
    "prompt_entropy": lambda t, x, shift: 0.83 - 0.4 * t * x,
    "curvature": lambda t, x, shift: -0.1 * t * x,
    "sequence_cosine": lambda t, x, shift: 0.03 + 0.5 * t * x,
    "largest_activation": lambda t, x, shift: (
        1 + x + 300 * t * math.exp(-t) * math.sin(math.pi * x)
    ),
    "isoscore": lambda t, x, shift: 0.3 - 0.28 * t * math.sqrt(x),
    "self_similarity": lambda t, x, shift: 0.9 - 0.5 * t * x + 0.1 * shift,
    "next_token_variance": lambda t, x, shift: 3.0 - 1.5 * t * x,
    "alignment": lambda t, x, shift: (
        1.0 if x == 1 else 0.09 + (0.8 - 0.2 * t) * x**1.5 + shift * (1 - x)
    ),
    "alignment_falls": lambda t, x, shift: 0.4 * t * (1 - x),
    "norm": lambda t, x, shift: 1.5 + 300 * t**2 * x**3 + 8 * x + 5 * shift,
    "step_length": lambda t, x, shift: 1.5 + 40 * t**2 * x**6 + x + shift,
    "step_cosine": lambda t, x, shift: 0.99 - 0.3 * t * (1 - x) ** 4 - 0.2 * x**8 + 0.1 * shift,
    "linearity": lambda t, x, shift: 0.995 - 0.03 * t * math.sin(3 * x) + 0.02 * shift,
    "linearity_step": lambda t, x, shift: 0.9 - 0.6 * t * math.sin(3 * x) + shift,
    "imbalance_next": lambda t, x, shift: 0.02 + 0.2 * t * x,
    "imbalance_previous": lambda t, x, shift: 0.05 + 0.3 * (1 - t),
    "cka_next": lambda t, x, shift: 0.98 - 0.2 * t * (1 - x) ** 2,
    "cka_previous": lambda t, x, shift: 0.45 + 0.53 * t - 0.1 * x,
    "svcca_next": lambda t, x, shift: 0.95 - 0.3 * t * (1 - x),
    "svcca_previous": lambda t, x, shift: 0.5 + 0.45 * t - 0.1 * x,
    "mutual_knn": lambda t, x, shift: 1.0 if x == 1 else 0.1 + 0.6 * x**2 - 0.05 * t + 0.2 * shift,
    "mutual_knn_previous": lambda t, x, shift: 0.3 + 0.6 * t - 0.1 * x,
    "procrustes_last": lambda t, x, shift: (1 - x) * (0.9 + 0.4 * t + shift),
    "procrustes_previous": lambda t, x, shift: 0.6 - 0.5 * t + 0.1 * x,
    "token_imbalance": lambda t, x, shift: 0.1 + 0.5 * t * x,
    "token_cosine": lambda t, x, shift: max(0.02, 0.95 - (0.3 + 0.6 * t) * x) + 0.3 * shift,
    "token_distance": lambda t, x, shift: 0.5 + 40 * t * x + shift,
    "token_rank": lambda t, x, shift: max(0.0, 30_000 * t * (x - 0.2 - shift) ** 3),
    "token_top1_match": lambda t, x, shift: min(1.0, max(0.0, 1.1 - (0.2 + t) * x + shift)),
    "lens_kl": lambda t, x, shift: (0.5 + 4 * t) * (1 - x) ** 2 * (1 + shift),
    "lens_agreement": lambda t, x, shift: min(1.0, max(0.0, 0.2 + 0.8 * x**3 - shift * (1 - x))),
    "sink_rate": lambda t, x, shift: min(1.0, max(0.0, 0.8 * t * (1 - (x - 0.5) ** 2))),
    "query_anisotropy": lambda t, x, shift: 0.1 + 0.4 * t * x + 0.2 * shift,
    "query_cosine": lambda t, x, shift: 0.05 + 0.3 * t * x,
    "key_anisotropy": lambda t, x, shift: 0.1 + 0.6 * t * x + 0.2 * shift,
    "key_cosine": lambda t, x, shift: 0.1 + 0.5 * t * x,
    "topic_gap": lambda t, x, shift: 0.12 * t * (0.5 + x) - 0.01 * (1 - t),
    "topic_gap_dot": lambda t, x, shift: 4.0 * t * (0.5 + x) - 0.2,
    "attention_topic_gap": lambda t, x, shift: 0.006 * t * math.sin(4 * x) + 0.001 * t,
    "attention_evenness": lambda t, x, shift: 1 - 0.6 * t * x,
    "weight_norm": lambda t, x, shift: 8 + 4 * t * x,
    "gradient_norm": lambda t, x, shift: 0.1 + math.exp(-5 * t),
    "update_ratio": lambda t, x, shift: 1e-4 + 0.01 * math.exp(-5 * t),
    "weight_stable_rank": lambda t, x, shift: 20 - 12 * t * x,
}
"""By metric, a curve against how far the training is and depth, both in [0, 1], and the shift of a
class of tokens."""


def curve_of(metric: str, subset: str) -> Callable[[float, float], float]:
    """Value against how far the training is and depth, both in [0, 1]."""
    shift = _SHIFTS.get(subset, 0.0)
    of_outliers = _curve_of_outliers(metric, subset)
    if of_outliers is not None:
        return of_outliers
    if metric.startswith("gride_"):
        k = int(metric.removeprefix("gride_"))
        return lambda t, x: (
            9.2 + 30 * t * (1 - t) - 1.2 * math.log2(k) * (0.3 + x) - 2 * math.sin(math.pi * x)
        )
    if "topic_same" in metric or "topic_different" in metric:
        share = 0.1 if "same" in metric else 0.0
        return lambda t, x: 0.02 + share * t * x
    if metric.startswith("components_"):
        percent = int(metric.removeprefix("components_"))
        return lambda t, x: float(
            round(3 + (percent / 20) ** 2.7 * (0.4 + t) * (1.2 - 0.6 * x) * (1 + shift))
        )
    if metric.endswith("_attention") or metric == "token_rank_distance":
        return lambda t, x: curve_of(metric.rpartition("_")[0], subset)(t, 0.8 * x)
    if metric == "alignment_gradient":
        # the difference over a twelfth of the depth, with a step that stands out
        return lambda t, x: (
            0.02 + 0.06 * (1 - t) + 0.09 * math.exp(-40 * x) + 0.05 * x**6 - 0.03 * math.sin(9 * x)
        )
    return lambda t, x: _CURVES[metric](t, x, shift)


def _curve_of_outliers(metric: str, subset: str) -> Callable[[float, float], float] | None:
    """Value of a metric of sinks and outliers, which depends on whether the subset has them."""
    if metric == "massive_activation_share":
        share = 0.0 if subset == "no_sink" else 0.97
        return lambda t, x: share if t > 0.3 and 0.15 < x < 0.95 else 0.0
    if metric == "outlier_kurtosis":
        share = 0.3 if subset == "no_sink" else 1.0
        return lambda t, x: 1.05 + 60 * t * x * share
    if metric == "top_norm_variance_share":
        share = 0.7 if subset == "all" else 0.0
        return lambda t, x: 0.02 + share * t * math.sin(3 * x) ** 2
    return None


def make_everything(
    *,
    n_blocks: int = 6,
    steps: Sequence[int] = LOG_STEPS,
    metrics: Sequence[str] = tuple(METRICS),
    classes: Sequence[str] = CLASSES,
    n_heads: int = 8,
    loss: bool = True,
    **changes: Any,
) -> list[Row]:
    """All rows of one run whose probe has topics and classes of tokens, each metric measured on its
    own subsets.

    Those of the families "convergence" and "tokens" are measured on the classes too. The first
    checkpoint has none before it to be compared with.
    """
    rows: list[Row] = []
    for number, step in enumerate(steps):
        before = list(steps)[:number]
        for name in metrics:
            metric = METRICS[name]
            rows += _of_metric(
                metric, step, before, max(steps), n_blocks, classes, n_heads, changes
            )
    return rows + [
        make_scalar(step, 2.5 + 8 / (1 + step / 50), **changes) for step in steps if loss
    ]


def make_run_of_everything(**given: Any) -> pd.DataFrame:
    return to_frame(make_everything(**given))


def _noisy(value: float, noise: float) -> float:
    size = abs(value)
    return value + 0.01 * noise * size if 0 < size < 0.99 else value


def _std_of(value: float) -> float:
    to_one = abs(1 - value) if 0 < value < 1 else 1.0
    return 0.03 * abs(value) * to_one + (1e-4 if value else 0.0)


def _of_metric(
    metric: Metric,
    step: int,
    before: Sequence[int],
    last: int,
    n_blocks: int,
    classes: Sequence[str],
    n_heads: int,
    changes: dict[str, Any],
) -> Iterator[Row]:
    t = math.log1p(step) / math.log1p(last) if last else 1.0
    family = display_of(metric.name).family
    split = classes if family in {"convergence", "tokens"} else ()
    for subset in (*metric.subsets, *split):
        request = requested(metric, subset, {})
        curve = curve_of(metric.name, subset)
        for layer in range(n_blocks + 1):
            if not metric.is_defined_at(layer, is_last=layer == n_blocks):
                continue
            noise = np.random.default_rng([len(metric.name), layer, step, len(subset)]).normal()
            value = curve(t, layer / n_blocks)
            compares = "previous_checkpoint" in metric.captures
            fields: dict[str, Any] = {
                "step": step,
                "layer": layer,
                "depth": layer / n_blocks,
                "metric": metric.name,
                "subset": subset,
                "settings": request.settings_json,
                "on_distinct": request.collapses_duplicates,
                "own_window_excluded": request.collapses_duplicates or None,
                "n_vectors": 1024 if family == "tokens" else 4096,
                "n_unique": 1000 if family == "tokens" else 4000,
                "compared_to": before[-1] if compares and before else None,
                "value": _noisy(value, noise),
                "std": _std_of(value),
                "seconds": _SECONDS.get(metric.name, 0.4) / (n_blocks + 1),
            }
            if compares and not before:
                reason = "batch 0: no earlier checkpoint of this run is at hand"
                fields |= {"value": math.nan, "std": math.nan, "reason": reason}
            yield make_row(**fields | changes)
            for head in range(n_heads if metric.per_head else 0):
                of_head = fields["value"] + 0.004 * math.sin(7 * head + layer) * t
                yield make_row(
                    **fields | {"head": head, "value": of_head, "seconds": 0.0} | changes
                )
