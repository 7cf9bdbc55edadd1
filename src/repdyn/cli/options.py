"""The options that several commands share: groups of them, and what the text of an option stands for."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from repdyn.checkpoints.options import Shard
from repdyn.utils.arguments import Count, Dtype, Place, at_least, converted
from repdyn.utils.records import print_records

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

OPTIONS = Group.create_ordered("Options")
PROBE, MEASUREMENT, MODELS, EXECUTION = map(Group.create_ordered, ("Probe", "Measurement", "Models", "Execution"))
"""Titles of the help, in their order."""
Port: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Run: TypeAlias = Annotated[Place, Parameter(name="RUN")]
Runs: TypeAlias = Annotated[Sequence[Place], Parameter(name="RUN")]


def n_bytes(text: str) -> int:
    """Parse a size in bytes.

    >>> n_bytes("20GB"), n_bytes("1.5 TB"), n_bytes("300m"), n_bytes("1024")
    (20000000000, 1500000000000, 300000000, 1024)
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)b?\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size == 0:
        raise ValueError(f"expected a size such as 20GB or 500MB, got {text!r}")
    return size


def shard_of(text: str) -> Shard:
    """Parse the part of a sweep, such as 1/8."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"expected I/N with 1 <= I <= N, such as 1/8, got {text!r}")
    return Shard(int(match[1]), int(match[2]))


def layer_patterns(text: str) -> str | dict[str, str]:
    """Parse one pattern, or one for each stack as ``stack=pattern``, separated by commas."""
    if "=" not in text:
        return text
    parts = [part.partition("=") for part in text.split(",")]
    if not all(stack and pattern for stack, _, pattern in parts):
        raise ValueError(f'expected "stack=pattern,stack=pattern", got {text!r}')
    return {stack.strip(): pattern.strip() for stack, _, pattern in parts}


def token_positions(text: str) -> slice:
    """Parse the positions of tokens, such as 2: for all but the first two."""
    from repdyn.capture.token_states import positions_from  # with torch, which other options do without

    return positions_from(text)


def seeds_of(patterns: Sequence[str] | None) -> Sequence[str] | None:
    """Return the patterns of runs that are seeds of one model; an empty list for the word none."""
    return [] if patterns == ["none"] else patterns


Layers: TypeAlias = Annotated[str | dict[str, str] | None, converted(layer_patterns, "PATTERN")]
Positions: TypeAlias = Annotated[slice | None, converted(token_positions, "SLICE")]


@Parameter(name="*")
@dataclass(frozen=True)
class Records:
    """The formats that other programs read."""

    json: bool = False
    """Print JSON; docs/cli.md describes its fields."""
    csv: bool = False
    """Print CSV, with the same fields as columns."""

    def __post_init__(self) -> None:
        if self.json and self.csv:
            raise ValueError("expected --json or --csv, got both; leave one of them out")

    def __bool__(self) -> bool:
        return self.json or self.csv

    def print(self, records: Sequence[Mapping[str, Any]], each: str | None = None) -> None:
        """Print records; see :func:`repdyn.utils.records.print_records`."""
        print_records(records, as_csv=self.csv, each=each)


@Parameter(name="*")
@dataclass(frozen=True)
class Rows:
    """The part of a store that is shown."""

    run: Annotated[list[str] | None, Parameter(name="--run")] = None
    """Names of runs to include (default: all)."""
    probe: str | None = None
    """Hash of the probe to include, or its first digits (default: all)."""


@Parameter(name="*", group=PROBE)
@dataclass(frozen=True)
class Sampling:
    """The text, and the number of vectors of it."""

    text: str | None = None
    """Use enwik8, builtin, or a path."""
    sequence_length: Annotated[int | None, at_least(2)] = None
    """Tokens in a window (default: as the design has it, at most the model's context)."""
    max_vectors: Annotated[int | None, at_least(3)] = None
    """Vectors measured per layer, in batches of 4096 (default: 4096)."""


@Parameter(name="*", group=MODELS)
@dataclass(frozen=True)
class Forward:
    """Set how a model is loaded and run."""

    tokenizer: str | None = None
    """Folder or hub repository of the tokenizer (default: the model's own)."""
    device: str = "auto"
    """Device to run models on, such as cpu, cuda or cuda:1; auto is cuda if available."""
    dtype: Dtype | None = None
    """Precision of the weights (default: float32 for published models, their own for local ones)."""
    device_map: Literal["auto", "balanced", "sequential"] | None = None
    """Distribute a large model over devices and disk."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""
    tokens_per_forward: Count = 8192
    """Tokens of one forward pass."""


@Parameter(name="*", group=EXECUTION)
@dataclass(frozen=True)
class Running:
    """Set how checkpoints are downloaded and measured; no value depends on it."""

    retry_failed: bool = False
    """Retry checkpoints that failed before."""
    max_disk: Annotated[int | None, converted(n_bytes, "SIZE")] = None
    """Disk space for weights, such as 20GB."""
    downloads: Path | None = None
    """Folder of the weights until they are measured (default: ~/.cache/repdyn/downloads)."""
    timeout: Count = 3600
    """Seconds for one download or listing."""
    engine: Literal["serial", "ray"] = "serial"
    """Measure one checkpoint after another, or several at once with Ray."""
    workers: Count = 2
    """Concurrent checkpoints on each machine, with Ray."""
    shard: Annotated[Shard | None, converted(shard_of, "I/N")] = None
    """Measure the I-th of N equal parts, such as 1/8."""
