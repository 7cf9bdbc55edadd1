"""The row: one value together with everything needed to interpret it.

A :class:`Row` is composed of a :class:`Checkpoint`, a :class:`PointCloud`, a :class:`Quantity` and
an :class:`Estimate`, whose fields are the columns of a file. :data:`SCHEMA` is made of these, and
their docstrings are what a file says of its columns (:mod:`repdyn.store.meanings`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa

from repdyn.utils.redaction import redacted

FINISHED = "finished"
"""The stage of a model that is published without intermediate checkpoints; its step is recorded as
0.
"""

LOSS = "train/loss"
"""The training loss of the step before the measurement."""
VALIDATION_LOSS = "val/loss"
"""The validation loss at the measured step, or the last one since the measurement before; stored if
there is one.
"""
LEARNING_RATE = "train/learning_rate"
"""The learning rate of the optimizer's first parameter group at the time of the measurement."""

PROBE_LOSS = "probe/loss"
"""The mean loss on the probe's tokens in nats: of the next token, or of masked ones for an encoder.
"""
PROBE_BITS_PER_BYTE = "probe/bits_per_byte"
"""The loss on the probe in bits per byte of text, comparable between vocabularies; of decoders
only.
"""
PROBE_ACCURACY = "probe/accuracy"
"""The share of the probe's predicted tokens that are the most probable ones, in [0, 1]."""
PROBE_CALIBRATION_ERROR = "probe/calibration_error"
"""The expected calibration error of these predictions, in [0, 1]."""
PROBE_SCALARS = (PROBE_LOSS, PROBE_BITS_PER_BYTE, PROBE_ACCURACY, PROBE_CALIBRATION_ERROR)


class ReasonCode(StrEnum):
    """Kinds of reasons why a value is NaN, by which views decide; the text is for people."""

    NOT_FINITE = "not_finite"
    """States, weights or gradients hold NaN or infinity."""
    FEW_DISTINCT = "few_distinct"
    """Too few distinct vectors, or too many nearly the same."""
    ROUNDING = "rounding"
    """Vectors differ by rounding alone."""
    UNDEFINED = "undefined"
    """The quantity does not exist for another reason."""
    NO_REASON = "no_reason"
    """The kernel returned NaN, which says nothing of the model."""
    ERROR = "error"
    """The kernel raised an error, or the checkpoint could not be measured."""


_CODES_OF_TEXTS = (
    # an error quotes anything
    (r"[A-Za-z_.]*(Error|Exception|Interrupt)\b|the model cannot be measured", ReasonCode.ERROR),
    (r"the kernel returned NaN without a reason", ReasonCode.NO_REASON),
    (r".*\b(NaN|inf)\b|.*not (all .*)?finite", ReasonCode.NOT_FINITE),
    (r".*(differ by less than rounding|equal up to rounding)", ReasonCode.ROUNDING),
    (r".*(distinct|vectors are equal|nearly the same)", ReasonCode.FEW_DISTINCT),
)


def code_of_text(reason: str) -> ReasonCode:
    """Return the code of a reason in a store that was written before reasons had codes: the one
    place where such a text is interpreted.

    >>> code_of_text("batch 0: the points contain NaN").name
    'NOT_FINITE'
    >>> code_of_text("batch 0: 1 distinct of 2048 points, at least 3 needed").name
    'FEW_DISTINCT'
    >>> code_of_text("ValueError: NaN").name, code_of_text("no attention weights").name
    ('ERROR', 'UNDEFINED')
    """
    for pattern, code in _CODES_OF_TEXTS:
        if re.match(pattern, reason, re.DOTALL):
            return code
    return ReasonCode.UNDEFINED


DESCRIPTIONS: dict[str, dict[str, Any]] = {}
"""What views need of metrics of users, by name, as fields of their definition and display: of those
that this process knows, and of those in the files that it has read, which have them in their
metadata."""
METRICS_KEY = b"repdyn.metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint, as each of its rows describes it."""

    run: str = "model"
    """Name of the training run or sweep the checkpoint belongs to; in frames, of the history that a
    row is in.
    """
    run_id: str | None = None
    """Id of the run that measured the row, which a history shares with the runs that continue it.
    """
    model: str = ""
    """Class of the measured model, or the name it is published under."""
    causal: bool | None = None
    """True if no position attends to a later one (a decoder), False if it does (an encoder), None
    if unknown.
    """
    step: int = 0
    """Optimizer steps taken."""
    trainer_step: int | None = None
    """The trainer's own counter at that time, as its checkpoints have it; it differs from ``step``
    with two optimizers or none that the trainer knows."""
    tokens_seen: int | None = None
    """Training tokens consumed so far, over all devices; None if unknown."""
    stage: str | None = None
    """Training stage of a published checkpoint that names one, or :data:`FINISHED`; None otherwise.
    """
    revision: str | None = None
    """Branch, tag or folder under which the checkpoint is published; None for a live model."""
    checkpoint: str | None = None
    """Source of the weights: repository@commit, or a path; None for a live model."""
    parameters: int | None = None
    """Number of the measured model's parameters."""
    weights: str | None = None
    """Fingerprint of a sample of a live model's weights; equal ones of two runs are measured once.
    """
    weights_kind: str | None = None
    """"raw" for the weights that are trained, "averaged" for their moving average, the quantisation
    of a GGUF file such as "Q4_K_M"; None if unknown."""
    device: str | None = None
    """Device the model ran on: "cpu", or the GPU's name. The last bits of a value depend on it."""
    attention: str | None = None
    """Attention implementation of a transformers model, such as "sdpa"."""
    way: str | None = None
    """How the model was left unchanged: "shadow" if a copy of its modules ran, "restored" if its
    own did.
    """
    rank: int | None = None
    """Rank of the process that measured alone; None if there was a single one, or several measured
    together.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PointCloud:
    """The vectors that a value is of: those of a layer at a subset of the probe's tokens."""

    layer: int | None = None
    """0 is the embedding output, l the output of block l; None for a scalar of the run."""
    depth: float | None = None
    """layer / number of blocks, in [0, 1]."""
    module: str | None = None
    """Qualified name of the module whose output (for layer 0: input) was taken."""
    layers: str = ""
    """Name patterns of the selected blocks as JSON; "" if the blocks were detected. Layers of
    different selections are not comparable."""
    stack: str | None = None
    """Name of the stack of blocks, such as "encoder" or "decoder"; None in a model with a single
    stack. The layers of each stack are numbered from 0."""
    subset: str | None = None
    """Subset of the probe's tokens: "all", "no_sink" (without first positions and special tokens),
    or another.
    """
    n_vectors: int = 0
    """Number of vectors in each batch."""
    n_unique: int = 0
    """Number of distinct vectors in the batch with the fewest."""
    design: str | None = None
    """Name of the probe's sampling design; None if it was not recorded."""
    n_windows: int | None = None
    """Number of text windows in the batch with the fewest."""
    vectors_per_window: int | None = None
    """Largest number of vectors of one window in a batch."""
    window_tokens: int | None = None
    """Number of tokens in the longest window."""
    own_window_excluded: bool | None = None
    """Whether neighbours from a point's own window are excluded; None for a metric without a
    neighbour search.
    """
    same_window_share: float | None = None
    """Share of points whose nearest neighbour is in their own window, excluded or not, in [0, 1],
    in the batch where it is highest; None for a metric without a neighbour search."""
    same_token_fraction: float | None = None
    """Fraction of vectors whose nearest neighbour outside of their own window is the same token, in
    [0, 1], mean over the batches; None for a metric without a neighbour search and for inputs that
    are no tokens."""
    same_input_fraction: float | None = None
    """Fraction of vectors whose nearest neighbour outside of their own window is the same token at
    the same position, as ``same_token_fraction``."""
    near_duplicate_share: float | None = None
    """Share of points with a neighbour closer than a hundredth of the cloud's radius, in [0, 1], in
    the batch where it is highest; None for a metric without a neighbour search."""
    dim: int = 0
    """Dimension of the layer's vectors."""
    dtype: str = "float64"
    """Precision in which the states were computed, for example "float32"; "bfloat16 autocast" where
    the model's own forward pass enters autocast."""
    probe: str
    """Content hash of the probe; equal hashes mean equal tokens and an equal sampling plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Names the metric that a value is of, or the scalar of a run."""

    metric: str
    """Name of the metric or scalar."""
    settings: str = "{}"
    """The metric's parameters as JSON, "{}" if it has none."""
    head: int | None = None
    """Index of the attention head; None for a value of the whole layer."""
    compared_to: int | None = None
    """Step of the earlier checkpoint with which the value compares this one; None for a metric of
    one checkpoint.
    """
    on_distinct: bool = False
    """Whether equal vectors count once, so that ``n_unique`` is the sample size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its uncertainty, or why there is none, and when and by what it was computed."""

    value: float
    """Mean over the batches; NaN if undefined or not comparable, for the ``reason`` given."""
    std: float = math.nan
    """Standard deviation over the batches (n - 1); NaN for a single batch."""
    std_error: float | None = None
    """Standard error of the value over probes: std / sqrt(n_batches), or of a single batch computed
    from the variation between its windows, for the metrics that have such a formula; None if
    unknown, also for batches that share windows."""
    low: float | None = None
    """Lower end of the 95% interval for the value on another probe of the same design and text,
    within the range of the metric, and so not symmetric where that has two ends."""
    high: float | None = None
    """Upper end of that interval."""
    n_batches: int = 1
    """Number of batches that the mean is taken over."""
    reason: str | None = None
    """Why ``value`` is NaN; None otherwise. See :func:`storable` for texts of errors."""
    reason_code: str | None = None
    """Of what kind the reason is, a :class:`ReasonCode`; None without a reason."""
    same_as: str | None = None
    """Name of the checkpoint of the same history that has the same weights, in a row that marks a
    copy, which has no value; None in all others."""
    mixed_with: str | None = None
    """Name of the checkpoint of the same history that some files of the weights belong to, in a row
    that marks such a mixture, which has no value; None in all others."""
    seconds: float = 0.0
    """Wall-clock time of the kernel over all batches."""
    measured_at: str
    """UTC time of the measurement, ISO 8601."""
    repdyn_version: str | None
    """Version of repdyn that measured."""
    torch_version: str | None
    """Version of PyTorch that computed the states and the value."""
    transformers_version: str | None
    """Version of transformers; None where it is not installed: a model of plain modules needs none.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of one checkpoint: a line of the store.

    A row with a ``layer`` is a measurement of the model's geometry. A row whose ``layer`` is None
    is a scalar of the run at the same step, such as its training loss, stored so that a figure can
    show both.

    The fields of its parts are the columns of the file, and can be read of the row itself:
    ``row.step`` is ``row.checkpoint.step``.
    """

    checkpoint: Checkpoint
    cloud: PointCloud
    quantity: Quantity
    estimate: Estimate

    @classmethod
    def of(cls, **columns: Any) -> Row:
        """Return the row with these columns, and the defaults of the others."""
        by_record: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
        for name, value in columns.items():
            if name not in _PART_OF:
                raise TypeError(f"expected columns of a row, got {name!r}")
            by_record[_PART_OF[name]][name] = value
        return cls(**{name: kind(**by_record[name]) for name, kind in _PARTS.items()})

    def with_columns(self, **columns: Any) -> Row:
        """Return the row with some columns changed."""
        return Row.of(**self.columns() | columns)

    def columns(self) -> dict[str, Any]:
        """Return the columns by name, in the order of the file."""
        return {name: getattr(getattr(self, _PART_OF[name]), name) for name in COLUMNS}

    def __getattr__(self, name: str) -> Any:
        """Return a column, which is a field of one of the parts."""
        if name not in _PART_OF:
            raise AttributeError(f"a row has no column {name!r}")
        # of a row that is being copied, and has no parts yet, self.PART would come here again
        return getattr(object.__getattribute__(self, _PART_OF[name]), name)


_PARTS: dict[str, type] = {
    "checkpoint": Checkpoint,
    "cloud": PointCloud,
    "quantity": Quantity,
    "estimate": Estimate,
}
_PART_OF = {field.name: part for part, kind in _PARTS.items() for field in fields(kind)}
COLUMNS: tuple[str, ...] = (
    *(field.name for field in fields(Checkpoint)),
    *("layer", "depth", "module", "layers", "stack", "head", "metric", "subset", "settings"),
    *("compared_to", "value", "std", "std_error", "low", "high", "n_batches", "n_vectors"),
    *("n_unique", "on_distinct", "design", "n_windows", "vectors_per_window"),
    *("window_tokens", "own_window_excluded", "same_window_share", "same_token_fraction"),
    *("same_input_fraction", "near_duplicate_share", "reason", "reason_code", "same_as"),
    *("mixed_with", "dim", "dtype", "probe", "seconds", "measured_at", "repdyn_version"),
    *("torch_version", "transformers_version"),
)
"""The columns in the order of the file, which is older than the parts of a row."""

_ARROW_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def _arrow_field(name: str) -> pa.Field:
    """Return the column of a field, which may be empty where the field may be None."""
    (field,) = (field for field in fields(_PARTS[_PART_OF[name]]) if field.name == name)
    kind = str(field.type)
    type_name = kind.removesuffix(" | None")
    return pa.field(name, _ARROW_TYPES[type_name], nullable=type_name != kind)


SCHEMA = pa.schema([_arrow_field(name) for name in COLUMNS])


def storable(text: str) -> str:
    """Return the text of an error without secrets, since a store may be shared, and without invalid
    Unicode.
    """
    return redacted(text).encode(errors="backslashreplace").decode()


def shown_reason(reason: str, code: str | None, n_unique: int, n_vectors: int) -> str:
    """Return a stored reason as it is told: without the number of the batch, and with equal vectors
    called so. The arguments are columns of :class:`Row`.

    >>> text = "batch 0: 1 distinct of 2048 points, at least 3 needed"
    >>> shown_reason(text, ReasonCode.FEW_DISTINCT, 1, 2048)
    'all 2048 vectors are equal'
    >>> shown_reason("batch 1: not enough of them", ReasonCode.UNDEFINED, 9, 9)
    'not enough of them'
    """
    if code == ReasonCode.FEW_DISTINCT and n_unique == 1:
        return f"all {n_vectors} vectors are equal"
    # what an error says is its own
    return reason if code == ReasonCode.ERROR else re.sub(r"^batch \d+: ", "", reason)


def to_table(rows: Iterable[Row]) -> pa.Table:
    """Return rows as an Arrow table with one column per field, and with the :data:`DESCRIPTIONS` of
    their metrics.
    """
    rows = list(rows)
    # of metrics of users alone: views know those of this package
    described = {row.metric.partition("[")[0] for row in rows} & DESCRIPTIONS.keys()
    metadata = None
    if described:
        texts = {name: DESCRIPTIONS[name] for name in sorted(described)}
        metadata = {METRICS_KEY: json.dumps(texts)}
    schema = SCHEMA.with_metadata(metadata)
    return pa.Table.from_pylist([row.columns() for row in rows], schema=schema)


def too_few_distinct(
    on_distinct: bool, n_unique: int, n_vectors: int, near_duplicate_share: float | None = None
) -> str | None:
    """Return why a value rests on too few distinct vectors to be comparable with others, or None.

    Estimates from neighbour distances change with the number of points, and for nearly equal
    vectors they measure rounding or the spread within a cluster. Layer 0 of a byte-level decoder
    with rotary positions has as many distinct vectors as the text has byte values. The arguments
    are columns of :class:`Row`.

    >>> too_few_distinct(True, 75, 4096)
    'fewer than half of the vectors are distinct: 75 of 4096'
    """
    # where equal vectors count as often as they occur, all of them are the sample
    if not on_distinct:
        return None
    if 2 * n_unique < n_vectors:
        return f"fewer than half of the vectors are distinct: {n_unique} of {n_vectors}"
    if near_duplicate_share is not None and near_duplicate_share > 0.5:
        return (
            f"more than half of the vectors ({near_duplicate_share:.0%}) are nearly the same as "
            "another one"
        )
    return None


def provenance() -> dict[str, Any]:
    """Return the columns for the time and the package versions of a measurement."""
    return {"measured_at": datetime.now(UTC).isoformat(timespec="milliseconds"), **_versions()}


def scalar_row(
    checkpoint: Checkpoint,
    name: str,
    value: float,
    *,
    probe: str,
    reason: str | None = None,
    reason_code: ReasonCode | None = None,
) -> Row:
    """Return the row of a scalar of the run, such as its training loss, at a checkpoint."""
    return Row(
        checkpoint=checkpoint,
        cloud=PointCloud(probe=probe),
        quantity=Quantity(metric=name),
        estimate=Estimate(value=value, reason=reason, reason_code=reason_code, **provenance()),
    )


def failure_rows(
    checkpoint: Checkpoint, metrics: Iterable[str], reason: str, *, probe: str, **marks: str | None
) -> list[Row]:
    """Return a row per metric with the reason why it is missing at a checkpoint.

    ``marks`` are the columns ``same_as`` or ``mixed_with``, of a checkpoint that is a copy or a
    mixture.
    """
    # one for each metric, so that a later measurement of some of them makes good these alone
    reason = storable(reason)
    rows = [
        scalar_row(
            checkpoint,
            name,
            math.nan,
            probe=probe,
            reason=reason,
            reason_code=ReasonCode.ERROR,
        )
        for name in sorted(set(metrics))
    ]
    return [row.with_columns(**marks) for row in rows]


@cache  # a process does not change its packages, and every row has them
def _versions() -> dict[str, str | None]:
    """Return the columns with the versions of the packages that determine a value."""
    versions: dict[str, str | None] = {}
    for package in ("repdyn", "torch", "transformers"):
        try:
            versions[f"{package}_version"] = version(package)
        except PackageNotFoundError:
            versions[f"{package}_version"] = None
    return versions
