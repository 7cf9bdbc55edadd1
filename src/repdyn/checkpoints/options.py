"""The options of a sweep, declared once: fields for Python, and options of ``repdyn sweep`` with
their help.
"""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from repdyn.probe.design import CLASS_OPTIONS, DESIGNS, class_names
from repdyn.utils.arguments import (
    EXECUTION,
    MEASUREMENT,
    MODELS,
    PROBE,
    Count,
    Dtype,
    Place,
    at_least,
    converted,
)

if TYPE_CHECKING:
    from torch import nn

    from repdyn.checkpoints.suites import ModelLike
    from repdyn.metrics import MetricLike
else:
    ModelLike = MetricLike = str  # on a command line

Loads: TypeAlias = "Iterable[tuple[int, Callable[[], nn.Module]]]"
"""Pairs of a step and a function that returns the model of that step."""

_PROBE, _MEASUREMENT, _MODELS, _EXECUTION = (
    Parameter(group=group) for group in (PROBE, MEASUREMENT, MODELS, EXECUTION)
)
_IN_PYTHON = Parameter(parse=False)


def available_device(device: str) -> str:
    """Return a device of this machine, the one that "auto" stands for; raise ValueError unless
    there is such a one.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise ValueError(
            f"expected an available device, such as cpu, cuda or cuda:1, got {device!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return device


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


def is_here(source: str | Path) -> bool:
    """Return whether a source is a local folder or file.

    The folder that a store has for the rows of a repository has its name, and holds no checkpoint:
    the repository is meant.
    """
    from repdyn.store.files import has_row_files

    path = Path(source)
    return path.exists() and not (isinstance(source, str) and has_row_files(path))


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


@dataclass(frozen=True)
class Loading:
    """Set how a model is loaded; kernels always compute in float32 and float64."""

    device: Annotated[str, _MODELS] = "cpu"
    """Device to run models on, such as cpu, cuda or cuda:1; auto is cuda if available."""
    dtype: Annotated[Dtype | None, _MODELS] = None
    """Precision of the weights (default: a live run's, else float32, also where they are stored in
    half precision).
    """
    device_map: Annotated[Literal["auto", "balanced", "sequential"] | None, _MODELS] = None
    """Distribute a large model over devices and disk."""
    trust_remote_code: Annotated[bool, _MODELS] = False
    """Run Python code that comes with a model."""
    attention: Annotated[str | None, _IN_PYTHON] = None
    """Implementation of the attention, such as "eager"; None for the live run's, or that of the
    configuration.
    """


@dataclass(frozen=True)
class SharedOptions(Loading):
    """The options that sweeps and reproductions of papers share."""

    device: Annotated[str, _MODELS] = "auto"
    """Device to run models on, such as cpu, cuda or cuda:1; auto is cuda if available."""
    text: Annotated[str | None, _PROBE] = None
    """Text of the probe: enwik8, builtin, hf:DATASET, or a path (default: enwik8)."""
    sequence_length: Annotated[int | None, _PROBE, at_least(2)] = None
    """Tokens in a window (default: as the design has it, at most the model's context)."""
    max_vectors: Annotated[int | None, _PROBE, at_least(3)] = None
    """Vectors measured per layer, in batches of 4096 (default: 4096)."""
    batch_vectors: Annotated[int | None, _PROBE, at_least(3)] = None
    """Vectors in a batch (default: all, at most 4096)."""
    tokenizer: Annotated[str | None, _MODELS] = None
    """Folder or hub repository of the tokenizer (default: the model's own)."""
    tokens_per_forward: Annotated[Count | None, _MODELS] = None
    """Tokens of one forward pass (default: 2048 on a CPU, else 8192)."""
    retry_failed: Annotated[bool, _EXECUTION] = False
    """Retry checkpoints that failed before."""
    max_disk: Annotated[int | None, _EXECUTION, converted(n_bytes, "SIZE")] = None
    """Disk space for weights, such as 20GB."""
    downloads: Annotated[Path | None, _EXECUTION] = None
    """Folder of the weights until they are measured (default: ~/.cache/repdyn/downloads)."""
    timeout: Annotated[Count, _EXECUTION] = 4 * 3600
    """Seconds for one download or listing."""
    engine: Annotated[Literal["serial", "ray"], _EXECUTION] = "serial"
    """Measure one checkpoint after another, or several at once with Ray."""
    workers: Annotated[Count, _EXECUTION] = 2
    """Concurrent checkpoints on each machine, with Ray."""
    shard: Annotated[tuple[int, int] | None, _EXECUTION, converted(shard_of, "I/N")] = None
    """Measure the I-th of N equal parts, such as 1/8."""


@dataclass(frozen=True)
class SweepOptions(SharedOptions):
    """Options of a sweep; docs/sweeps.md describes them."""

    source: Annotated[Any, _IN_PYTHON] = None
    """A local folder or file, a hub repository, or :data:`Loads`."""
    suite: Sequence[ModelLike] = ()
    """Suites, their models, patterns, or YAML files."""
    revisions: str = "all"
    """Use all, log (closest to powers of two), every:10, or names or steps separated by commas."""
    pattern: str | None = None
    """Regular expression for names of revisions or folders, with a group "step"."""
    name: Annotated[str | None, Parameter(name="--name")] = None
    """Name of the run (default: the repository, or the last two parts of the path)."""
    store: Place | None = None
    """Folder or URL of the results (default: FOLDER/sweep, or sweeps)."""
    like: Place | None = None
    """Live run whose attention, precision, probe and metrics to use (default: the one whose folder
    it is).
    """
    probe: Annotated[Any, _PROBE, converted(Path, "FILE")] = None
    """File of a probe (default: the live run's own, or one made of --text)."""
    load: Annotated[str | None, _MODELS] = None
    """Function of your own, as module:function, that returns the model of a checkpoint's path."""
    encoding: Annotated[str | None, _PROBE] = None
    """Encoding of the text file, such as cp1251 (default: by its byte order mark, or UTF-8)."""
    design: Annotated[str | None, _PROBE, Parameter(choices=tuple(DESIGNS))] = None
    """Sampling design, see docs/sampling.md (default: independent)."""
    classes: Annotated[Sequence[str], _PROBE, Parameter(choices=CLASS_OPTIONS)] = ()
    """Word classes to measure as subsets, as in token_rank@rare."""
    metrics: Annotated[Sequence[MetricLike], _MEASUREMENT, Parameter(name="--metrics")] = ()
    """Names, see repdyn metrics, or all; as 'two_nn[discard=0.8]@no_sink' (default: a live run's,
    or the usual two; of finished models alone anisotropy@no_massive too).
    """
    loss: Annotated[bool | None, _MEASUREMENT, Parameter(negative="--no-loss")] = None
    """Measure the loss on the probe too (default: where a model has its output head)."""
    layers: Annotated[Any, _MEASUREMENT, converted(layer_patterns, "PATTERN")] = None
    """Pattern of the blocks' names, as "layers.*", or "text=text_model.*,vision=..." (default:
    detected).
    """

    @property
    def is_local(self) -> bool:
        """Return whether the source is a local folder or file, or loads its models itself."""
        if isinstance(self.source, str | Path):
            return is_here(self.source)
        return self.source is not None

    @property
    def in_order(self) -> bool:
        """Return whether one process measures all checkpoints in order, as metrics that compare
        checkpoints require.
        """
        return self.engine == "serial" and self.shard is None

    @property
    def has_probe_text(self) -> bool:
        """Return whether an option was given that determines how the probe is made."""
        given = (
            self.text,
            self.encoding,
            self.tokenizer,
            self.sequence_length,
            self.max_vectors,
            self.batch_vectors,
            self.design,
        )
        return bool(class_names(self.classes)) or any(option is not None for option in given)

    def place(self) -> str | Path:
        """Return the store: next to local checkpoints, or one for all published models, which can
        be compared there.
        """
        if self.store is not None:
            return self.store
        if isinstance(self.source, str | Path) and self.is_local:
            source = Path(self.source)
            return (source if source.is_dir() else source.parent) / "sweep"
        return Path("sweeps")
