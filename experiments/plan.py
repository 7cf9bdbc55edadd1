"""A plan: which models are trained on which text, with which seeds, and on which probes they are
measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repdyn.metrics import DEFAULT_METRICS
from repdyn.probe.design import resolve_design
from repdyn.tracking.schedule import Schedule
from repdyn.utils.mistyped import closest
from repdyn.utils.records import read_yaml

SPLITS = ("train", "validation", "test")
BPE, BYTES = "bpe", "bytes"


@dataclass(frozen=True)
class PlannedProbe:
    """The split of the text and the sampling design of a probe."""

    split: str
    design: str
    max_vectors: int = 16384
    batch_vectors: int = 4096

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(
                f"expected the split of a probe to be one of {', '.join(SPLITS)}, got "
                f"{self.split!r}"
            )
        resolve_design(self.design)


@dataclass(frozen=True)
class Run:
    """One training of a plan."""

    arm: str
    seed: int
    weights_seed: int
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    training: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the run in the rows, in which repdyn recognises the runs of an arm as seeds of
        one model.
        """
        return f"seed{self.seed}/{self.arm}"


@dataclass(frozen=True)
class Arm:
    """Trainings that differ in the seed alone."""

    seeds: tuple[int, ...]
    weights_seed: int = 0
    """Added to the seed to give that of the initial weights."""
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"expected different seeds, at least one, got {list(self.seeds)}")


@dataclass(frozen=True)
class Plan:
    """Runs that share a text, a tokenizer, a schedule and probes."""

    name: str
    text: Mapping[str, Any]
    training: Mapping[str, Any]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    schedule: Schedule
    probes: Mapping[str, PlannedProbe]
    arms: Mapping[str, Arm]
    vocab_size: int | None = None
    """Number of tokens of a BPE tokenizer that is trained on the text."""
    tokenizer: str = BPE
    metrics: tuple[str, ...] = DEFAULT_METRICS

    def __post_init__(self) -> None:
        if self.tokenizer not in (BPE, BYTES) or (self.tokenizer == BPE) == (
            self.vocab_size is None
        ):
            raise ValueError(
                f"expected tokenizer: {BPE} with a vocab_size, or tokenizer: {BYTES} without, got "
                f"{self.tokenizer} with {self.vocab_size}"
            )

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Read a plan from a YAML file such as experiments/plans/matched_pair.yaml.

        Raises:
            ValueError: an unknown or missing field, or a value out of range.
            OSError: the file cannot be read.
        """
        content = read_yaml(Path(path))
        try:
            fields = _fields(cls, content)
            fields["schedule"] = Schedule(**_fields(Schedule, fields["schedule"]))
            fields["probes"] = {
                name: PlannedProbe(**_fields(PlannedProbe, probe))
                for name, probe in fields["probes"].items()
            }
            fields["arms"] = {name: _arm(arm) for name, arm in fields["arms"].items()}
            if "metrics" in fields:
                fields["metrics"] = tuple(fields["metrics"])
            return cls(**fields)
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def runs(self) -> list[Run]:
        """Return the runs, seed by seed, so that the arms of a seed are finished together."""
        by_seed: dict[int, list[Run]] = {}
        for name, arm in self.arms.items():
            for seed in arm.seeds:
                run = Run(
                    arm=name,
                    seed=seed,
                    weights_seed=seed + arm.weights_seed,
                    model={**self.model, **arm.model},
                    data={**self.data, **arm.data},
                    training={**self.training, **arm.training},
                )
                by_seed.setdefault(seed, []).append(run)
        return [run for seed in sorted(by_seed) for run in by_seed[seed]]

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify everything in the plan that decides a value:
        all but the seeds.
        """
        content = asdict(self)
        if self.tokenizer == BPE:  # as before there was another
            del content["tokenizer"]
        if self.metrics == DEFAULT_METRICS:  # likewise
            del content["metrics"]
        for arm in content["arms"].values():
            del arm["seeds"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _arm(content: Mapping[str, Any]) -> Arm:
    fields = _fields(Arm, content)
    return Arm(**{**fields, "seeds": tuple(fields["seeds"])})


def _fields(cls: type, content: Any) -> dict[str, Any]:
    """Return the content of a mapping whose keys are fields of a data class."""
    if not isinstance(content, Mapping):
        raise ValueError(
            f"expected a mapping with {', '.join(cls.__dataclass_fields__)}, got {content!r}"
        )
    for name in content:
        if name not in cls.__dataclass_fields__:
            close = closest(str(name), cls.__dataclass_fields__)
            raise ValueError(
                f"unknown field {name!r}" + (f"; did you mean {close!r}?" if close else "")
            )
    return dict(content)
