"""The measurements: dimension by sampling design against independent vectors, and coverage of intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, permutations

import numpy as np
import torch

from repdyn import Probe, measure
from repdyn.capture.capture import capture, causality
from repdyn.capture.prepared_model import prepare
from repdyn.kernels import Cloud, anisotropy, full_precision, same_group_share, two_nn
from repdyn.probe.design import DENSE, INDEPENDENT, Design
from sampling.models import FreshWindows, LoadedModel

BATCH = 4096
REFERENCE_LENGTH = INDEPENDENT.window_tokens
METRICS = (
    "two_nn",
    "gride_2",
    "gride_8",
    "levina_bickel",
    "anisotropy",
    "participation_ratio",
    "effective_rank",
    "alpha_req",
    "components_90",
    "isoscore",
    "mean_cosine",
    "norm",
    "alignment",
    "step_cosine",
    "linearity",
    "cka_next",
)
"""Metrics whose dependence on density and whose coverage are reported."""


@dataclass(frozen=True)
class Cell:
    """The dimension and the anisotropy of one block by one design, mean over batches."""

    model: str
    layer: int
    window_tokens: int
    vectors_per_window: int
    n_vectors: int
    n_batches: int
    own_window_excluded: bool
    two_nn: float
    std: float
    anisotropy: float
    same_window_share: float
    tokens_read: int
    """Tokens in the forward passes, for each batch."""
    seconds: float
    """Seconds of the forward passes, for each batch."""


def cells(
    subject: LoadedModel, windows: FreshWindows, length: int, share: int, n: int, n_batches: int
) -> Iterator[Cell]:
    """Measure every block on ``share`` vectors of each window, with the own window's neighbours and without them."""
    n_windows = -(-n // share)
    found = list(islice(windows.sets(length, n_windows, seed=length * 1000 + share), n_batches))
    for_layers: dict[tuple[int, bool], list[tuple[float, float, float]]] = {}
    tokens_read, seconds = 0, 0.0
    for ids in found:
        settings = {"special_ids": windows.special_ids, "max_vectors": n, "batch_vectors": n}
        probe = Probe.from_tokens(ids, design=_alone(), **settings)
        causal = all(causality(prepare(subject.model), probe).values())
        tokens_read += int(probe.tokens_needed(probe.sample("all").ravel(), causal).sum())
        start = time.perf_counter()
        states = capture(prepare(subject.model), probe, ["all"], causal=causal)
        seconds += time.perf_counter() - start
        groups = torch.from_numpy(probe.window_of_token[probe.sample("all")[0]])
        for layer in states.layers[1:]:
            with full_precision("cpu"):
                excluded = Cloud(layer.states, groups=groups)
                whole = anisotropy(layer.states).item()
                share_of_own = same_group_share(excluded) if share > 1 else 0.0
                for_layers.setdefault((layer.index, True), []).append((two_nn(excluded).item(), whole, share_of_own))
                if share > 1:
                    both = for_layers.setdefault((layer.index, False), [])
                    both.append((two_nn(layer.states).item(), whole, share_of_own))
    for (layer_number, is_excluded), values in for_layers.items():
        dimension, spread, own = np.array(values).T
        yield Cell(
            model=subject.name,
            layer=layer_number,
            window_tokens=length,
            vectors_per_window=share,
            n_vectors=n,
            n_batches=len(found),
            own_window_excluded=is_excluded,
            two_nn=float(dimension.mean()),
            std=float(dimension.std(ddof=1)) if len(values) > 1 else float("nan"),
            anisotropy=float(spread.mean()),
            same_window_share=float(own.mean()),
            tokens_read=tokens_read // len(found),
            seconds=seconds / len(found),
        )


def _alone() -> Design:
    return replace(INDEPENDENT, name="study", vectors_per_window=None)


@dataclass(frozen=True)
class Value:
    """One metric of one layer on one fresh probe."""

    model: str
    design: str
    probe: int
    metric: str
    layer: int
    value: float
    std: float
    low: float
    high: float


def fresh_values(
    subject: LoadedModel, windows: FreshWindows, design: Design, n_probes: int, n_batches: int
) -> Iterator[list[Value]]:
    """Measure several probes of one design, drawn from disjoint windows of the text; one list for each."""
    length = min(design.window_tokens or 128, subject.context)
    n_windows = design.required_windows(n_batches, BATCH, length)
    for number, ids in enumerate(islice(windows.sets(length, n_windows, seed=7), n_probes)):
        settings = {"special_ids": windows.special_ids, "max_vectors": n_batches * BATCH}
        probe = Probe.from_tokens(ids, design=design, **settings)
        rows = [row for row in measure(subject.model, probe, METRICS).rows if row.subset == "all" and row.layer]
        yield [
            Value(
                subject.name,
                design.name,
                number,
                row.metric,
                row.layer or 0,
                row.value,
                row.std,
                float("nan") if row.low is None else row.low,
                float("nan") if row.high is None else row.high,
            )
            for row in rows
        ]


def reference_design() -> Design:
    """Return the reference: one vector of each window, so that points are independent."""
    return replace(INDEPENDENT, name="one vector per window", vectors_per_window=1)


def dense_design() -> Design:
    """Return the design of dense windows of the default length."""
    return replace(DENSE, window_tokens=INDEPENDENT.window_tokens)


def coverage(values: Sequence[Value]) -> dict[str, tuple[float, int]]:
    """Return for each metric the share of ordered pairs of probes, over all layers, in which the interval of one covers
    the value of the other, and the number of pairs."""
    table: dict[tuple[str, int], dict[int, Value]] = {}
    for value in values:
        table.setdefault((value.metric, value.layer), {})[value.probe] = value
    hits: dict[str, list[bool]] = {}
    for (metric, _), by_probe in table.items():
        for one, other in permutations(by_probe.values(), 2):
            if not np.isnan([one.low, other.value]).any():
                hits.setdefault(metric, []).append(one.low <= other.value <= one.high)
    return {metric: (float(np.mean(found)), len(found)) for metric, found in hits.items()}


def as_rows(items: Sequence[Cell | Value]) -> list[dict]:
    return [asdict(item) for item in items]
