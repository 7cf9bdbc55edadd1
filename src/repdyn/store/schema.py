"""The row: one number together with everything needed to know what it is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import pandas as pd
import pyarrow as pa

from repdyn.utils.redaction import redacted

RENAMED_METRICS = {"token_kept": "token_top1_match"}
"""Metrics that older files of a store hold under another name, with the name they have now."""

FINISHED = "finished"
"""The stage of a model of which only the end is published; its step is 0 for want of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value at one checkpoint.

    A row with a ``layer`` is a measurement of the model's geometry. A row whose ``layer`` is None is a scalar
    of the run at the same step (its training loss, say), kept so that a figure can show both from one store.
    """

    run: str
    """Name of the training run or sweep the checkpoint belongs to."""
    model: str
    """Class of the measured model, or the name it is published under."""
    causal: bool | None
    """True when no position sees a later one (a decoder), False when it does (an encoder), None when not known."""
    step: int
    """Optimizer steps taken."""
    tokens_seen: int | None
    """Training tokens consumed so far, over all devices; None when not known."""
    stage: str | None
    """Stage of the training, where a published checkpoint names one; or :data:`FINISHED`."""
    revision: str | None
    """Branch, tag or folder the checkpoint is published under; None for a live model."""
    checkpoint: str | None
    """Where exactly the weights came from: repository@commit, or a path; None for a live model."""
    parameters: int | None
    """Number of the measured model's parameters."""
    weights: str | None
    """Fingerprint of a sample of a live model's weights: a resumed training that differs is measured anew."""
    layer: int | None
    """0 is the embedding output, l the output of block l; None for a scalar of the run."""
    depth: float | None
    """layer / number of blocks, in [0, 1]."""
    module: str | None
    """Qualified name of the module whose output (for layer 0: input) was taken."""
    layers: str
    """How the blocks were chosen: name patterns as JSON, "" where they were found; with the token positions, where they
    were chosen too. Layers of different choices do not compare."""
    stack: str | None
    """Name of the stack of blocks, "encoder" or "decoder", in a model that has several; None in any other. Each stack
    counts its layers from 0."""
    head: int | None
    """Number of the attention head the value is of; None for the layer's own value."""
    metric: str
    """Name in the table of metrics, or of the scalar."""
    subset: str | None
    """Which tokens: "all", or "no_sink" (without first positions and special tokens)."""
    settings: str
    """The metric's parameters as JSON, "{}" when it has none."""
    compared_to: int | None
    """Step of the earlier checkpoint that the value compares this one with; None for a value of one checkpoint."""
    value: float
    """Mean over the batches; NaN when undefined or not comparable, and then ``reason`` says why."""
    std: float
    """Standard deviation over the batches (n - 1); NaN for a single batch."""
    std_error: float | None = None
    """Standard error of the mean, std / sqrt(n_batches); None where it is not known: for a single batch, and where
    batches share windows, so that their spread says nothing of another probe."""
    low: float | None = None
    """Lower end of the 95 % interval for the value on another probe of the same design from the same text."""
    high: float | None = None
    """Upper end of that interval."""
    n_batches: int
    """Batches the mean is taken over."""
    n_vectors: int
    """Vectors in each batch."""
    n_unique: int
    """Distinct vectors in the batch that has fewest of them."""
    on_distinct: bool
    """True where equal vectors count once, so that ``n_unique`` is the size of the sample."""
    design: str | None = None
    """Name of the probe's sampling design; None in rows from before designs had names."""
    n_windows: int | None = None
    """Windows of text that a batch's vectors come from, in the batch that has fewest."""
    vectors_per_window: int | None = None
    """Vectors of one window in a batch, at most."""
    window_tokens: int | None = None
    """Tokens in the longest window."""
    own_window_excluded: bool | None = None
    """Whether neighbours in a point's own window are left out; None for a metric that looks at no neighbours."""
    same_window_share: float | None = None
    """Share of points whose nearest neighbour is, or would be, one of their own window, in the batch where that is
    highest; None for a metric that looks at no neighbours."""
    near_duplicate_share: float | None = None
    """Share of points with another one closer than a hundredth of the cloud's radius, in the batch where that is
    highest; None for a metric that looks at no neighbours."""
    reason: str | None
    """Why ``value`` is NaN; None otherwise. Secrets are taken out of it: a store may be shared."""
    dim: int
    """Dimension of the layer's vectors."""
    dtype: str
    """Precision the states were captured in, for example "float32"."""
    device: str | None
    """What the model ran on: "cpu", or the GPU's name. The last bits of a value depend on it."""
    attention: str | None
    """Attention implementation of a transformers model, such as "sdpa"."""
    probe: str
    """Content hash of the probe: equal hashes mean equal tokens and an equal sampling plan."""
    seconds: float
    """Wall-clock time of the kernel over all batches."""
    measured_at: str
    """UTC time of the measurement, ISO 8601."""
    repdyn_version: str
    torch_version: str
    transformers_version: str

    def __post_init__(self) -> None:
        if self.reason is not None:
            # an error's text may quote bytes that no text can hold
            storable = redacted(self.reason).encode(errors="backslashreplace").decode()
            object.__setattr__(self, "reason", storable)


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Row))


_ARROW_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
SCHEMA = pa.schema(
    [
        pa.field(name, _ARROW_TYPES[annotation.removesuffix(" | None")], nullable=annotation.endswith("None"))
        for name, annotation in Row.__annotations__.items()
    ]
)
# Integers and booleans that may be missing stay what they are; in float columns NaN stays a value.
_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def to_table(rows: Iterable[Row]) -> pa.Table:
    """Rows as an Arrow table, one column for each field."""
    return pa.Table.from_pylist([{name: getattr(row, name) for name in COLUMNS} for row in rows], schema=SCHEMA)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert a table of rows to the data frame that every view works on, fresh from a measurement or from a store.

    Rows from before :func:`too_few_distinct` was applied on measuring are judged by it here.
    """
    frame = table.to_pandas(types_mapper=_PANDAS_TYPES.get)
    few = frame["on_distinct"].astype(bool) & (2 * frame["n_unique"] < frame["n_vectors"])
    old = (frame["design"].isna() & few & frame["value"].notna()).astype(bool)
    if old.any():
        frame.loc[old, ["value", "std"]] = math.nan
        counts = zip(frame.loc[old, "n_unique"], frame.loc[old, "n_vectors"], strict=True)
        frame.loc[old, "reason"] = [too_few_distinct(True, n_unique, n_vectors) for n_unique, n_vectors in counts]
    return frame


def too_few_distinct(
    on_distinct: bool, n_unique: int, n_vectors: int, near_duplicate_share: float | None = None
) -> str | None:
    """Say why a value rests on too few different vectors to compare with any other, or return None.

    Estimates from neighbour distances change with the number of points, and vectors that are nearly the same measure
    the rounding or the spread inside their cluster. Layer 0 of a byte-level decoder with rotary positions has as many
    distinct vectors as the text has byte values.

    Args:
        on_distinct: whether equal vectors count once in the metric; any other metric always compares.
        n_unique: distinct vectors in the batch that has fewest.
        n_vectors: vectors in the batch.
        near_duplicate_share: share of vectors with another one closer than a hundredth of the cloud's radius.

    >>> too_few_distinct(True, 75, 4096)
    'fewer than half of the vectors are distinct: 75 of 4096'
    >>> too_few_distinct(True, 4096, 4096, 0.75)
    'more than half of the vectors (75%) are nearly the same as another one'
    >>> too_few_distinct(False, 75, 4096) is None
    True
    """
    if not on_distinct:
        return None
    if 2 * n_unique < n_vectors:
        return f"fewer than half of the vectors are distinct: {n_unique} of {n_vectors}"
    if near_duplicate_share is not None and near_duplicate_share > 0.5:
        return f"more than half of the vectors ({near_duplicate_share:.0%}) are nearly the same as another one"
    return None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was measured, as the rows name it; fields as in :class:`Row`."""

    run: str = "model"
    model: str = ""
    step: int = 0
    tokens_seen: int | None = None
    stage: str | None = None
    revision: str | None = None
    checkpoint: str | None = None
    causal: bool | None = None
    parameters: int | None = None
    weights: str | None = None
    device: str | None = None
    attention: str | None = None


def provenance() -> dict[str, Any]:
    """The columns that say when and with what a row was made."""
    return {"measured_at": datetime.now(UTC).isoformat(timespec="milliseconds"), **_versions()}


def scalar_row(checkpoint: Checkpoint, name: str, value: float, *, probe: str, reason: str | None = None) -> Row:
    """A row for a scalar of the run, such as its training loss."""
    return Row(
        **asdict(checkpoint),
        layer=None,
        depth=None,
        module=None,
        layers="",
        stack=None,
        head=None,
        metric=name,
        subset=None,
        settings="{}",
        compared_to=None,
        value=value,
        std=math.nan,
        n_batches=1,
        n_vectors=0,
        n_unique=0,
        on_distinct=False,
        reason=reason,
        dim=0,
        dtype="float64",
        probe=probe,
        seconds=0.0,
        **provenance(),
    )


def failure_rows(checkpoint: Checkpoint, metrics: Iterable[str], reason: str, *, probe: str) -> list[Row]:
    """A row for each metric that says why it is missing at a checkpoint."""
    return [scalar_row(checkpoint, name, math.nan, probe=probe, reason=reason) for name in sorted(set(metrics))]


@cache
def _versions() -> dict[str, str]:
    return {f"{package}_version": version(package) for package in ("repdyn", "torch", "transformers")}
