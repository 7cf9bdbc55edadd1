"""The options of a sweep, as they are asked for and complete, and how a model is loaded.

They are the arguments of :func:`repdyn.sweep`; ``repdyn sweep`` has them as flags, see
:mod:`repdyn.cli.sweep_options`.
"""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repdyn.probe.design import class_names
from repdyn.utils.choices import Dtype

if TYPE_CHECKING:
    from torch import nn

    from repdyn.capture.blocks import LayerPatterns
    from repdyn.checkpoints.suites import ModelLike
    from repdyn.measurement.options import Measurement
    from repdyn.metrics import MetricLike
    from repdyn.probe import Probe

    Loads: TypeAlias = Iterable[tuple[int, Callable[[], nn.Module]]]
    """Pairs of a step and a function that returns the model of that step."""
else:
    # the command line has types of its own, and resolves these too
    LayerPatterns = Loads = Measurement = MetricLike = ModelLike = Probe = Any

DeviceMap: TypeAlias = Literal["auto", "balanced", "sequential"]
Engine: TypeAlias = Literal["serial", "ray"]


def available_device(device: str) -> str:
    """Return a device of this machine, the one that "auto" stands for; raise ValueError unless
    there is such a one.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    # the only way to ask that knows every kind of device
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise ValueError(
            f"expected an available device, such as cpu, cuda or cuda:1, got {device!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return device


def is_here(source: str | Path) -> bool:
    """Return whether a source is a local folder or file.

    The folder that a store has for the rows of a repository has its name, and holds no checkpoint:
    the repository is meant.
    """
    from repdyn.store.files import has_row_files

    # with store=".", the rows of a repository lie in a folder of its name
    path = Path(source)
    return path.exists() and not (isinstance(source, str) and has_row_files(path))


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Says how a model is loaded; kernels always compute in float32 and float64."""

    device: str = "cpu"
    dtype: Dtype = "auto"
    """Precision of the weights; auto keeps the one they were saved in."""
    device_map: DeviceMap | None = None
    """Distribute a large model over devices and disk."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""
    attention: str | None = None
    """Implementation of the attention, such as "eager"; None for that of the configuration."""


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options that sweeps and reproductions of papers share."""

    text: str | None = None
    """Text of the probe: enwik8, builtin, hf:DATASET, or a path (default: enwik8)."""
    sequence_length: int | None = None
    """Tokens in a window (default: as the design has it, at most the model's context)."""
    max_vectors: int | None = None
    """Vectors measured per layer, in batches of 4096 (default: 4096)."""
    batch_vectors: int | None = None
    """Vectors in a batch (default: all, at most 4096)."""
    device: str = "auto"
    """Device to run models on, such as cpu, cuda or cuda:1; auto is cuda if available."""
    dtype: Dtype | None = None
    """Precision of the weights (default: a live run's, else float32, also where they are stored in
    half precision).
    """
    device_map: DeviceMap | None = None
    """Distribute a large model over devices and disk."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""
    tokenizer: str | None = None
    """Folder or hub repository of the tokenizer (default: the model's own)."""
    tokens_per_forward: int | None = None
    """Tokens of one forward pass (default: 2048 on a CPU, else 8192)."""
    retry_failed: bool = False
    """Retry checkpoints that failed before."""
    max_disk: int | None = None
    """Disk space for weights, in bytes (default: no limit)."""
    downloads: Path | None = None
    """Folder of the weights until they are measured (default: ~/.cache/repdyn/downloads)."""
    timeout: int = 4 * 3600
    """Seconds for one download or listing."""
    engine: Engine = "serial"
    """Measure one checkpoint after another, or several at once with Ray."""
    workers: int = 2
    """Concurrent checkpoints on each machine, with Ray."""
    shard: tuple[int, int] | None = None
    """Measure the I-th of N equal parts, counted from 1 (default: all)."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(SharedOptions):
    """Options of a sweep, as they are asked for; docs/sweeps.md describes them."""

    source: str | Path | Loads | None = None
    """A run's folder, a folder of save_pretrained or train.py's .ckpt files, a .gguf file, or a hub
    repository.
    """
    store: str | Path | None = None
    """Folder or URL of the results (default: FOLDER/sweep, or sweeps)."""
    suite: str | Path | Sequence[ModelLike] = ()
    """Suites, their models, patterns, or YAML files."""
    revisions: str = "all"
    """Use all, log (closest to powers of two), every:10, or names or steps separated by commas."""
    pattern: str | None = None
    """Regular expression for names of revisions or folders, with a group "step"."""
    name: str | None = None
    """Name of the run (default: the repository, or the last two parts of the path)."""
    like: str | Path | None = None
    """Live run whose attention, precision, probe and metrics to use (default: the one whose folder
    it is).
    """
    probe: Probe | str | Path | None = None
    """A probe, or its file (default: the live run's own, or one made of the text)."""
    encoding: str | None = None
    """Encoding of the text file, such as cp1251 (default: by its byte order mark, or UTF-8)."""
    design: str | None = None
    """Sampling design, see docs/sampling.md (default: independent)."""
    classes: str | Sequence[str] = ()
    """Word classes to measure as subsets, as in token_rank@rare."""
    metrics: str | Sequence[MetricLike] = ()
    """Names, see repdyn metrics, or all; as 'two_nn[discard=0.8]@no_sink' (default: a live run's,
    or the usual two; of finished models alone anisotropy@no_massive too).
    """
    layers: LayerPatterns = None
    """Pattern of the blocks' names, as "layers.*", or one for each stack (default: detected)."""
    loss: bool | None = None
    """Measure the loss on the probe too (default: where a model has its output head)."""
    load: str | None = None
    """Function of your own, as module:function, that returns the model of a checkpoint's path."""
    attention: str | None = None
    """Implementation of the attention, such as "eager" (default: the live run's, or that of the
    configuration).
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
        settings = (
            self.text,
            self.encoding,
            self.tokenizer,
            self.sequence_length,
            self.max_vectors,
            self.batch_vectors,
            self.design,
        )
        return bool(class_names(self.classes)) or any(value is not None for value in settings)

    def place(self) -> str | Path:
        """Return the store: next to local checkpoints, or one for all published models, which can
        be compared there.
        """
        if self.store is not None:
            return self.store
        # beside the checkpoints of a file as well
        if isinstance(self.source, str | Path) and self.is_local:
            source = Path(self.source)
            return (source if source.is_dir() else source.parent) / "sweep"
        return Path("sweeps")


@dataclass(frozen=True, kw_only=True)
class CompleteOptions(SweepOptions):
    """Options of a sweep with what a live run or else a default says about what was not asked for;
    :func:`repdyn.checkpoints.sweep.completed` makes them.

    What is still None is decided for each model, by its context, its device or its head.
    """

    metrics: tuple[MetricLike, ...] = field()
    dtype: Dtype = field()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process takes over: it resolves what is measured by itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _measurements(self) -> dict[str, Measurement]:
        """Return what is measured on each probe, by its hash."""
        return {}

    def measurement_on(self, probe: Probe) -> Measurement:
        """Return what is measured on a probe, and how, resolved once for all its checkpoints; a
        probe of inputs other than tokens has no loss.
        """
        # with torch, which plans do without
        from repdyn.measurement.options import Measurement, MeasurementOptions

        if probe.hash not in self._measurements:
            options = MeasurementOptions(
                metrics=self.metrics,
                layers=self.layers,
                probe_loss=self.loss is not False and probe.inputs is None,
                tokens_per_forward=self.tokens_per_forward,
            )
            self._measurements[probe.hash] = Measurement(
                probe=probe, options=options, dtype=self.dtype
            )
        return self._measurements[probe.hash]

    @cached_property
    def without_loss(self) -> CompleteOptions:
        """Return the same options, but for the loss."""
        return replace(self, loss=False)

    @property
    def loading(self) -> Loading:
        """Return the settings with which each model is loaded."""
        return Loading(
            device=self.device,
            dtype=self.dtype,
            device_map=self.device_map,
            trust_remote_code=self.trust_remote_code,
            attention=self.attention,
        )
