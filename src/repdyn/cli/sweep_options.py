"""The options of ``repdyn sweep`` and ``repdyn reproduce``: those of a sweep in Python as flags,
each with its place in the help and how its text is read.

Help and defaults are those of :mod:`repdyn.checkpoints.options`.
"""

# Imports only what is quick to import: --help must not wait for torch.
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from repdyn.checkpoints.options import DeviceMap, Engine, SharedOptions, SweepOptions
from repdyn.probe.design import CLASS_OPTIONS, DESIGNS
from repdyn.utils.arguments import (
    EXECUTION,
    MEASUREMENT,
    MODELS,
    PROBE,
    Count,
    Place,
    at_least,
    converted,
)
from repdyn.utils.choices import Dtype

_PROBE = Parameter(group=PROBE)
_MEASUREMENT = Parameter(group=MEASUREMENT)
_MODELS = Parameter(group=MODELS)
_EXECUTION = Parameter(group=EXECUTION)
_IN_PYTHON = Parameter(parse=False)


def n_bytes(text: str) -> int:
    """Parse a size in bytes.

    >>> n_bytes("20GB"), n_bytes("1.5 TB"), n_bytes("1024")
    (20000000000, 1500000000000, 1024)
    """
    from pydantic import ByteSize, Field, TypeAdapter  # of the extra for sweeps

    try:
        return TypeAdapter(Annotated[ByteSize, Field(gt=0)]).validate_python(text)
    except ValueError as error:
        raise ValueError(f"expected a size such as 20GB or 500MB, got {text!r}") from error


def shard_of(text: str) -> tuple[int, int]:
    """Parse the part of a sweep, such as 1/8."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"expected I/N with 1 <= I <= N, such as 1/8, got {text!r}")
    return int(match[1]), int(match[2])


def layer_patterns(text: str) -> str | dict[str, str]:
    """Parse one pattern, or one for each stack as ``stack=pattern``, separated by commas."""
    if "=" not in text:
        return text
    parts = [part.partition("=") for part in text.split(",")]
    if not all(stack and pattern for stack, _, pattern in parts):
        raise ValueError(f'expected "stack=pattern,stack=pattern", got {text!r}')
    return {stack.strip(): pattern.strip() for stack, _, pattern in parts}


@dataclass(frozen=True, kw_only=True)
class SharedFlags(SharedOptions):
    """The flags that sweeps and reproductions of papers share."""

    text: Annotated[str | None, _PROBE] = None
    sequence_length: Annotated[int | None, _PROBE, at_least(2)] = None
    max_vectors: Annotated[int | None, _PROBE, at_least(3)] = None
    batch_vectors: Annotated[int | None, _PROBE, at_least(3)] = None
    device: Annotated[str, _MODELS] = "auto"
    dtype: Annotated[Dtype | None, _MODELS] = None
    device_map: Annotated[DeviceMap | None, _MODELS] = None
    trust_remote_code: Annotated[bool, _MODELS] = False
    tokenizer: Annotated[str | None, _MODELS] = None
    tokens_per_forward: Annotated[Count | None, _MODELS] = None
    retry_failed: Annotated[bool, _EXECUTION] = False
    max_disk: Annotated[int | None, _EXECUTION, converted(n_bytes, "SIZE")] = None
    """Disk space for weights, such as 20GB."""
    downloads: Annotated[Path | None, _EXECUTION] = None
    timeout: Annotated[Count, _EXECUTION] = 4 * 3600
    engine: Annotated[Engine, _EXECUTION] = "serial"
    workers: Annotated[Count, _EXECUTION] = 2
    shard: Annotated[tuple[int, int] | None, _EXECUTION, converted(shard_of, "I/N")] = None
    """Measure the I-th of N equal parts, such as 1/8."""


@dataclass(frozen=True, kw_only=True)
class SweepFlags(SharedFlags, SweepOptions):
    """The flags of a sweep."""

    source: Annotated[Any, _IN_PYTHON] = None  # the first argument of the command
    store: Place | None = None
    suite: Sequence[str] = ()
    revisions: str = "all"
    pattern: str | None = None
    name: Annotated[str | None, Parameter(name="--name")] = None
    like: Place | None = None
    probe: Annotated[Any, _PROBE, converted(Path, "FILE")] = None
    """File of a probe (default: the live run's own, or one made of the text)."""
    encoding: Annotated[str | None, _PROBE] = None
    design: Annotated[str | None, _PROBE, Parameter(choices=tuple(DESIGNS))] = None
    classes: Annotated[Sequence[str], _PROBE, Parameter(choices=CLASS_OPTIONS)] = ()
    metrics: Annotated[Sequence[str], _MEASUREMENT, Parameter(name="--metrics")] = ()
    layers: Annotated[Any, _MEASUREMENT, converted(layer_patterns, "PATTERN")] = None
    """Pattern of the blocks' names, as "layers.*", or "text=text_model.*,vision=..." (default:
    detected).
    """
    loss: Annotated[bool | None, _MEASUREMENT, Parameter(negative="--no-loss")] = None
    load: Annotated[str | None, _MODELS] = None
    attention: Annotated[str | None, _IN_PYTHON] = None
