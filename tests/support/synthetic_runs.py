"""Rows and stores of made-up runs, shaped like real ones."""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from repdyn.store import MeasurementKey, Store, open_store
from repdyn.store.frame import to_pandas
from repdyn.store.schema import COLUMNS, Row, code_of_text, to_table
from repdyn.views.judging import DescribedRun, stacks_of_run
from repdyn.views.tables.runs import in_comparison_order, is_measured, run_labels, split


def measured_runs(frame: pd.DataFrame) -> list[DescribedRun]:
    """Return the runs of a frame, each stack for itself, in the order of a comparison."""
    frames = {name: rows for name, rows in split(frame, "run").items() if is_measured(rows)}
    labels = run_labels(frames)
    return in_comparison_order(
        one for name, rows in frames.items() for one in stacks_of_run(rows, label=labels[name])
    )


INDEPENDENT = {
    "design": "independent",
    "n_windows": 512,
    "vectors_per_window": 8,
    "window_tokens": 64,
}
DENSE = {"design": "dense", "n_windows": 80, "vectors_per_window": 76, "window_tokens": 256}
SAMPLED = "independent design: 8 batches of 4,096 vectors, 8 of each of 512 windows of 64 tokens"
"""What views say of the sampling of made-up rows."""
NO_DESIGN: dict[str, Any] = dict.fromkeys(INDEPENDENT)
"""What rows say that were measured before designs had names, or of which nothing was sampled."""
COSTS = {
    "seconds/download": 3.1,
    "seconds/load": 0.5,
    "seconds/forward": 2.1,
    "seconds/kernels": 1.4,
    "bytes/download": 140e6,
}
LOG_STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def make_row(**changes: Any) -> Row:
    """A measured row of a decoder with 6 blocks, its batches of disjoint windows; any field can be
    given.
    """
    fields: dict[str, Any] = {
        "run": "decoder-quickstart",
        "model": "GPTNeoXForCausalLM",
        "causal": True,
        "step": 0,
        "tokens_seen": None,
        "stage": None,
        "revision": None,
        "checkpoint": None,
        "parameters": 1_234_567,
        "weights": None,
        "layer": 0,
        "depth": 0.0,
        "module": "gpt_neox.layers.0",
        "layers": "",
        "stack": None,
        "head": None,
        "metric": "anisotropy",
        "subset": "all",
        "settings": "{}",
        "compared_to": None,
        "value": 0.5,
        "std": 0.01,
        "n_batches": 8,
        "n_vectors": 4096,
        "n_unique": 4000,
        "on_distinct": False,
        **INDEPENDENT,
        "own_window_excluded": None,
        "same_window_share": None,
        "near_duplicate_share": None,
        "reason": None,
        "dim": 128,
        "dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "probe": "3f2ab1c09d77e412",
        "seconds": 0.01,
        "measured_at": "2025-01-01T00:00:00+00:00",
        "repdyn_version": "0.1.0",
        "torch_version": "2.13.0",
        "transformers_version": "5.23.0",
    }
    fields |= changes
    if fields["reason"] is not None:
        fields.setdefault("reason_code", code_of_text(fields["reason"]))
    n_independent = fields["n_batches"] if fields["design"] in {"independent", "shuffled"} else 1
    return Row.of(**(interval_of(fields["value"], fields["std"], n_independent) | fields))


@cache
def quantile_of_t(degrees: int) -> float:
    """The 97.5% quantile, which many thousand rows share."""
    return float(student_t.ppf(0.975, degrees))


def interval_of(value: float, std: float, n_batches: int) -> dict[str, float | None]:
    """The columns of the standard error, as they are measured."""
    if n_batches < 2 or math.isnan(std):
        return {"std_error": None, "low": None, "high": None}
    half = quantile_of_t(n_batches - 1) * math.sqrt(2 / n_batches) * std
    return {"std_error": std / math.sqrt(n_batches), "low": value - half, "high": value + half}


def make_scalar(step: int, value: float, metric: str = "train/loss", **changes: Any) -> Row:
    """A scalar of the run, such as its loss."""
    geometry = {
        "layer": None,
        "depth": None,
        "module": None,
        "subset": None,
        "std": math.nan,
        "n_batches": 1,
    }
    counts = {"n_vectors": 0, "n_unique": 0, "dim": 0, "dtype": ""} | NO_DESIGN
    return make_row(step=step, metric=metric, value=value, **(geometry | counts | changes))


def to_frame(rows: Sequence[Row]) -> pd.DataFrame:
    return to_pandas(to_table(rows))


def anisotropy_at(step: int, depth: float, peak: float = 0.55) -> float:
    """A bell over depth that grows with training and then stays."""
    grown = 1 - math.exp(-step / 60)
    return 0.05 + peak * grown * math.sin(math.pi * (0.1 + 0.8 * depth)) ** 2


def dimension_at(step: int, depth: float) -> float:
    """A dimension that rises to step 64 and then falls, lower in the middle layers."""
    bump = math.exp(-(((math.log1p(step) - math.log1p(64)) / 1.6) ** 2))
    late = 2 * (1 - bump) if step > 64 else 0
    return 9 + 8 * bump + late - 1.5 * math.sin(math.pi * depth)


def make_rows(
    *,
    n_blocks: int = 6,
    steps: Sequence[int] = LOG_STEPS,
    anisotropy: Callable[[int, float], float] = anisotropy_at,
    no_sink: Callable[[int, float], float] = lambda step, depth: anisotropy_at(
        step, depth, peak=0.2
    ),
    dimension: Callable[[int, float], float] = dimension_at,
    distinct: Callable[[int, float], float] | None = None,
    without_repeats: str = "distinct_inputs",
    noise: float = 0.01,
    loss: bool = True,
    **changes: Any,
) -> list[Row]:
    """All rows of one run, without repeats too where they have a curve.

    Each value has a standard deviation of ``noise`` times itself and no
    noise added.
    """
    curves = [
        ("anisotropy", "all", anisotropy),
        ("anisotropy", "no_sink", no_sink),
        ("two_nn", "all", dimension),
    ]
    if distinct is not None:
        curves.append(("two_nn", without_repeats, distinct))
    rows = []
    for step in steps:
        for layer in range(n_blocks + 1):
            for metric, subset, curve in curves:
                value = curve(step, layer / n_blocks)
                settings = json.dumps({"discard": 0.1}) if metric == "two_nn" else "{}"
                neighbours = {"own_window_excluded": metric == "two_nn" or None}
                cell = {
                    "step": step,
                    "layer": layer,
                    "depth": layer / n_blocks,
                    "metric": metric,
                    "subset": subset,
                }
                measured = {"value": value, "std": noise * abs(value), "settings": settings}
                missing = (
                    {"std": math.nan, "reason": "2 distinct vectors, 3 needed"}
                    if math.isnan(value)
                    else {}
                )
                rows.append(make_row(**(cell | measured | neighbours | missing | changes)))
        if loss:
            of_run = changes | {"stack": None, "own_window_excluded": None} | NO_DESIGN
            rows.append(make_scalar(step, 1.2 + 4.4 * float(np.exp(-step / 80)), **of_run))
    return rows


def make_run(**given: Any) -> pd.DataFrame:
    return to_frame(make_rows(**given))


def make_published(
    name: str = "lab/model-70m", *, steps: Sequence[int] = LOG_STEPS, **changes: Any
) -> list[Row]:
    """A swept training history of a published model: 1000 tokens in each step, and what each
    checkpoint cost.
    """
    rows = []
    for step in steps:
        origin = {
            "run": name,
            "checkpoint": f"{name}@0123abcd",
            "revision": f"step{step}",
            "tokens_seen": 1000 * step,
        }
        fields = {"probe": f"{zlib.crc32(name.encode()):016x}"} | origin | changes
        rows += make_rows(steps=(step,), loss=False, **fields)
        columns = {name: value for name, value in fields.items() if name in COLUMNS}
        rows += [make_scalar(step, value, scalar, **columns) for scalar, value in COSTS.items()]
    return rows


def make_finished(name: str = "lab/bert", **changes: Any) -> list[Row]:
    """A published encoder of which only the end is known."""
    kind = {
        "causal": False,
        "model": "BertModel",
        "stage": "finished",
        "revision": "main",
        "tokens_seen": None,
    }
    level = {"anisotropy": lambda step, depth: 0.3, "no_sink": lambda step, depth: 0.2}
    return make_published(name, steps=(0,), **(kind | level | changes))


def make_two_stacks(name: str = "lab/t5", **changes: Any) -> list[Row]:
    """A live run of a model with an encoder of 4 blocks and a decoder of 6, each with layers and
    values of its own.
    """
    fields = {"run": name, "model": "T5ForConditionalGeneration"} | changes
    flat = {"anisotropy": lambda step, depth: 0.3, "no_sink": lambda step, depth: 0.2}
    encoder = flat | fields | {"stack": "encoder", "causal": False, "loss": False}
    return make_rows(n_blocks=4, **encoder) + make_rows(
        n_blocks=6, **fields | {"stack": "decoder", "causal": True}
    )


def make_failures(
    step: int, reason: str = "the model cannot be measured: ValueError: no", **changes: Any
) -> list[Row]:
    """What is filed where a checkpoint could not be measured."""
    fields = {
        "value": math.nan,
        "reason": reason,
        "run": "lab/model-70m",
        "revision": f"step{step}",
    } | changes
    return [make_scalar(step, metric=metric, **fields) for metric in ("anisotropy", "two_nn")]


def fill(path: Path, *runs: Sequence[Row]) -> Store:
    """A store of these rows, one file for each checkpoint, as tracker and sweep write them."""
    store = open_store(path)
    checkpoints: defaultdict[MeasurementKey, list[Row]] = defaultdict(list)
    for row in (row for rows in runs for row in rows):
        key = MeasurementKey(run=row.run, step=row.step, probe=row.probe, metrics="0123abcd")
        checkpoints[key.failed if row.layer is None and row.reason else key].append(row)
    for key, rows in checkpoints.items():
        store.write(key, rows)
    return store
