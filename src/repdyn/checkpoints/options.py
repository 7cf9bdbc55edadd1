"""The options of a sweep, filled by :func:`repdyn.sweep` and the command line: what is measured, how, and where to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repdyn.checkpoints.loading import Loading, check_device, resolved_device
from repdyn.metrics import DEFAULT_METRICS, MetricLike, resolve
from repdyn.probe.design import INDEPENDENT, MAX_VECTORS, SUBSETS, class_names
from repdyn.text.corpus import cache_directory

if TYPE_CHECKING:
    from torch import nn

    from repdyn.capture.blocks import LayerPatterns
    from repdyn.capture.token_states import TokenPositions
    from repdyn.probe import Probe

Loads: TypeAlias = "Iterable[tuple[int, Callable[[], nn.Module]]]"
"""Pairs of a step and a function that returns the model of that step."""


@dataclass(frozen=True)
class Shard:
    """The i-th of N equal parts of a sweep, i from 1."""

    index: int
    count: int


@dataclass(frozen=True)
class SweepOptions:
    """Options of a sweep, named as those of ``repdyn sweep``; docs/sweeps.md describes them."""

    source: str | Path | Loads | None = None
    """A local folder or file, a hub repository, or pairs of a step and a function that loads the model."""
    suite: Sequence[str] = ()
    """Suites, their models, patterns, or YAML files."""
    revisions: str = "all"
    pattern: str | None = None
    name: str | None = None
    probe: Probe | Path | None = None
    """Probe, or file of one; None for that of the live run, or one made of ``text``."""
    text: str | None = None
    tokenizer: str | None = None
    sequence_length: int | None = None
    max_vectors: int | None = None
    design: str | None = None
    classes: Sequence[str] = ()
    metrics: Sequence[MetricLike] = DEFAULT_METRICS
    loss: bool | None = None
    """Whether to measure the loss on the probe; None to do so, though not again at checkpoints measured without it."""
    layers: LayerPatterns = None
    token_positions: TokenPositions | None = None
    device: str = "auto"
    dtype: str | None = None
    """Precision of the weights; None for float32 for published models, and their own for local ones."""
    device_map: str | None = None
    trust_remote_code: bool = False
    tokens_per_forward: int = 8192
    store: str | Path | None = None
    retry_failed: bool = False
    max_disk: int | None = None
    """Bytes of weights on the disk at any time; None for no limit."""
    downloads: Path | None = None
    timeout: float = 3600
    """Seconds for one download or listing."""
    engine: Literal["serial", "ray"] = "serial"
    workers: int = 2
    shard: Shard | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SweepOptions:
        """Return the options among named values, of which there may be others."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in names})

    def resolved(self) -> SweepOptions:
        """Return the options with the precision that a default stands for, checked as far as no hub is needed.

        Raises:
            ValueError: an unknown metric.
        """
        # the probe of a run or file may have other classes
        has_own_probe = self.probe is not None or self.is_local
        resolve(self.metrics, subsets=None if has_own_probe else (*SUBSETS, *class_names(self.classes)))
        # Live runs are measured in the precision of their weights. Published weights are often stored in half precision
        # to reduce their size; rounding the states as well would affect the estimated dimension.
        return replace(self, dtype=self.dtype or ("auto" if self.is_local else "float32"))

    def on_device(self) -> SweepOptions:
        """Return the options with the device that "auto" stands for.

        Raises:
            ValueError: this machine has not the device.
        """
        if self.engine == "serial" and self.device != "auto":
            check_device(self.device)
        return replace(self, device=resolved_device(self.device))

    @property
    def is_local(self) -> bool:
        """Return whether the source is a local folder or file, or loads its models itself."""
        if isinstance(self.source, str | Path):
            return Path(self.source).exists()
        return self.source is not None

    def loading(self, attention: str | None = None) -> Loading:
        """Return how a model is loaded, with an implementation of the attention."""
        return Loading(self.device, self.dtype or "auto", self.device_map, self.trust_remote_code, attention)

    @property
    def in_order(self) -> bool:
        """Return whether one process measures all checkpoints in order, as metrics that compare checkpoints require."""
        return self.engine == "serial" and self.shard is None

    @property
    def has_probe_text(self) -> bool:
        """Return whether an option was given that determines how the probe is made."""
        given = (self.text, self.tokenizer, self.sequence_length, self.max_vectors, self.design)
        return bool(class_names(self.classes)) or any(option is not None for option in given)

    @property
    def sampling(self) -> tuple[str, int]:
        """Name of the sampling design of a probe that is made, and number of vectors."""
        return self.design or INDEPENDENT.name, self.max_vectors or MAX_VECTORS

    def place(self) -> str | Path:
        """Return the store: next to local checkpoints, or one for all published models, which can be compared there."""
        if self.store is not None:
            return self.store
        if isinstance(self.source, str | Path) and self.is_local:
            source = Path(self.source)
            return (source if source.is_dir() else source.parent) / "sweep"
        return Path("sweeps")

    def downloads_folder(self) -> Path:
        """Return the folder that all processes share for their downloads.

        Raises:
            FileNotFoundError: none is given, and the user has no home directory for the default one.
        """
        return (self.downloads or cache_directory() / "downloads").absolute() / "repdyn-downloads"
