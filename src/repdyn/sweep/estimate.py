"""How long a sweep would take, and what it would cost: an estimate from the sizes and shapes of the models."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from math import ceil
from pathlib import Path

from repdyn.hub.model_config import ModelShape
from repdyn.metrics import DEFAULT_METRICS, resolve
from repdyn.probe.design import BATCH_VECTORS, INDEPENDENT, MAX_VECTORS, resolve_design

_ASPECT = 100
"""Assumed width of a model over its number of blocks."""
_VOCABULARY = 50_000
"""Assumed."""
_WINDOW_TOKENS = 128
"""Assumed number of tokens in a window that is cut by characters: 4 characters a token."""
_PER_FURTHER_METRIC = 0.3
"""Time of a metric over that of the default two: 11.14 for these and 33 others together."""
_REQUEST_SECONDS = 0.1
"""Assumed time until the hub answers."""
_REQUESTS_PER_FILE = 2
_CONNECTIONS = 4

# On the processor of the AMD EPYC below, also where the model is on a GPU.
START_SECONDS = 9.0
"""From the start of the command to the first download."""
CHECKPOINT_SECONDS = 0.4
"""Between two checkpoints: rows are written, memory is freed."""
VIEWS_SECONDS = 5.0
"""Figures, summary and report at the end, for each model."""


@dataclass(frozen=True)
class Hardware:
    """Rates of a machine, and a price to begin with."""

    title: str
    source: str
    """Where the rates come from."""
    load: float
    """Bytes of weights per second."""
    products: float
    """Operations of matrix products per second, 2 for each weight and token."""
    states: float
    """Seconds of a forward pass beside its products, for each block, coordinate and token."""
    kernels: float
    """Seconds of the default two metrics, for each layer, coordinate and batch of 4096 vectors."""
    layers: float
    """Seconds of the default two metrics that do not depend on the width, for each layer and batch."""
    logits: float
    """Seconds of the loss beside its products, for each vector and entry of the vocabulary."""
    price: float
    """US dollars per hour, assumed."""


HARDWARE = {
    "cpu": Hardware(
        "one processor core",
        "measured on an AMD EPYC, 2.4 GHz, 2026-11-25",
        load=0.2e9,
        products=79e9,
        states=24e-9,
        kernels=5.6e-4,
        layers=0.039,
        logits=11e-9,
        price=0.05,
    ),
    "gpu": Hardware(
        "one data-centre GPU",
        "assumed, not measured",
        load=1e9,
        products=20e12,
        states=2.6e-10,
        kernels=2e-5,
        layers=2e-3,
        logits=1e-10,
        price=2.50,
    ),
}


@dataclass(frozen=True)
class CheckpointFiles:
    """The number and sizes of the files of a checkpoint."""

    n_bytes: int
    """Of the weights and what is loaded with them."""
    download_bytes: int
    """0 for a checkpoint on this machine."""
    n_files: int = 1


@dataclass(frozen=True)
class ModelFiles:
    """The files of the remaining checkpoints of a model, and its shape."""

    checkpoints: Sequence[CheckpointFiles]
    shape: ModelShape | None = None
    """None if it is not known."""


@dataclass(frozen=True)
class Estimate:
    """Hours of a sweep in one process."""

    download: float = 0.0
    load: float = 0.0
    forward: float = 0.0
    kernels: float = 0.0
    """With the loss."""
    fixed: float = 0.0
    """Start, views, and what each checkpoint takes whatever its size."""
    elapsed: float = 0.0
    """While a checkpoint is measured, the next one is downloaded."""

    @property
    def measurement(self) -> float:
        return self.load + self.forward + self.kernels


@dataclass(frozen=True)
class Assumptions:
    """The rates and prices that the estimates of a plan are computed from."""

    hardware: Hardware
    bandwidth: float
    """Bytes per second."""
    price: float
    """US dollars per hour."""
    n_tokens: int
    """Read by the model, for each checkpoint."""
    max_vectors: int
    """Measured in each layer."""
    kernel_factor: float
    """Time of the metrics over that of the default two."""
    with_loss: bool = True

    @classmethod
    def from_options(cls, options: Namespace) -> Assumptions:
        """Return the assumptions that the options of a sweep name."""
        hardware = HARDWARE[options.hardware]
        design, max_vectors = resolve_design(options.design or INDEPENDENT.name), options.max_vectors or MAX_VECTORS
        window_tokens = options.sequence_length or design.window_tokens or _WINDOW_TOKENS
        sizes = design.batch_plan(max_vectors, None, n_tokens=0)
        n_windows = design.required_windows(**sizes, window_tokens=window_tokens)
        # the subsets that a metric is measured on by default are in the measured times, any other is one more cloud
        clouds = {
            (metric.name, "" if subset in metric.subsets else subset) for metric, subset in resolve(options.metrics)
        }
        further = len(clouds - {(name, "") for name in DEFAULT_METRICS})
        price = hardware.price if options.price_per_hour is None else options.price_per_hour
        return cls(
            hardware,
            options.bandwidth,
            price,
            n_windows * window_tokens,
            max_vectors,
            1 + _PER_FURTHER_METRIC * further,
            options.loss is not False,
        )

    def of(self, models: Sequence[ModelFiles]) -> list[Estimate]:
        """Estimate the hours of each model in turn, the first with the start of the sweep.

        The first checkpoint is waited for, each other one is downloaded while the one before it is measured.
        """
        estimates, before, start = [], 0.0, START_SECONDS
        for model in models:
            stages = Estimate()
            for files in model.checkpoints:
                one = self._seconds(files, model.shape)
                waited = max(0.0, one.download - before)
                before = one.measurement + one.fixed
                stages = sum_of([stages, replace(one, elapsed=waited + before)])
            if model.checkpoints:
                around = start + VIEWS_SECONDS
                stages = replace(stages, fixed=stages.fixed + around, elapsed=stages.elapsed + around)
                start = 0.0
            estimates.append(Estimate(*(seconds / 3600 for seconds in astuple(stages))))
        return estimates

    def dollars(self, estimate: Estimate) -> float:
        """Return the price of the elapsed hours."""
        return self.price * estimate.elapsed

    def lines(self) -> list[str]:
        """State the assumptions, a line each."""
        hardware = self.hardware
        loss = f"the loss {hardware.logits * 1e9:.2g} ns for each vector and entry of the vocabulary"
        return [
            f"download: {self.bandwidth / 1e6:g} MB/s (--bandwidth), {_REQUEST_SECONDS:g} s until the hub answers; the "
            "first checkpoint is waited for, each other one is downloaded while the one before is measured",
            f"measurement: {hardware.title} (--hardware), {hardware.source}: load {hardware.load / 1e9:g} GB/s, "
            f"products {hardware.products / 1e9:,.0f} GFLOP/s, beside them {hardware.states * 1e9:.2g} ns for each "
            f"block, coordinate and token; kernels {hardware.kernels * 1e3:.3g} ms for each layer, coordinate and "
            f"{BATCH_VECTORS:,} vectors and {hardware.layers * 1e3:.3g} ms for each layer; "
            f"{loss if self.with_loss else 'no loss'}",
            "models: blocks, width, vocabulary and precision of config.json; where it does not name them, 2 bytes a "
            f"weight, {_ASPECT} times as wide as deep, a vocabulary of {_VOCABULARY:,}",
            f"each checkpoint: {self.n_tokens:,} tokens, {self.max_vectors:,} vectors of each layer, metrics that take "
            f"{self.kernel_factor:.1f} times the default two, {CHECKPOINT_SECONDS:g} s whatever its size; the start "
            f"{START_SECONDS:g} s, the views {VIEWS_SECONDS:g} s for each model",
            f"price: {dollars_text(self.price)} per hour (--price-per-hour), for the hours elapsed; no storage, no "
            "retries",
        ]

    def _seconds(self, files: CheckpointFiles, shape: ModelShape | None) -> Estimate:
        """Return the seconds of the stages of a checkpoint, without those elapsed."""
        hardware, (n_weights, shape) = self.hardware, _weights_in_blocks(files.n_bytes, shape)
        forward = 2 * n_weights / hardware.products + shape.n_layers * shape.width * hardware.states
        of_layers = (shape.n_layers + 1) * (shape.width * hardware.kernels + hardware.layers)
        of_logit = 2 * shape.width / hardware.products + hardware.logits
        loss = self.max_vectors * shape.vocabulary * of_logit if self.with_loss else 0.0
        requests = _REQUESTS_PER_FILE * ceil(files.n_files / _CONNECTIONS) * _REQUEST_SECONDS
        return Estimate(
            files.download_bytes / self.bandwidth + requests if files.download_bytes else 0.0,
            files.n_bytes / hardware.load,
            forward * self.n_tokens,
            of_layers * self.max_vectors / BATCH_VECTORS * self.kernel_factor + loss,
            CHECKPOINT_SECONDS,
        )


def _weights_in_blocks(n_bytes: int, shape: ModelShape | None) -> tuple[float, ModelShape]:
    """Return the number of weights that multiply each token in the blocks, and the shape or what is assumed of it.

    Embeddings multiply nothing, and there are one or two of them: whichever leaves nearer the 12 * width**2 weights of
    a usual block.
    """
    if shape is None:
        n_weights = n_bytes / 2
        # a block has 12 width**2 weights, and there are width / _ASPECT of them
        width = max(1, round((n_weights * _ASPECT / 12) ** (1 / 3)))
        return n_weights, ModelShape(max(1, round(width / _ASPECT)), width, _VOCABULARY, 2)
    usual = 12 * shape.n_layers * shape.width**2
    without = [n_bytes / shape.weight_bytes - n * shape.vocabulary * shape.width for n in (1, 2)]
    return max(0.0, min(without, key=lambda n_weights: abs(n_weights - usual))), shape


def sum_of(estimates: Iterable[Estimate]) -> Estimate:
    """Return the hours of several estimates, one after the other."""
    columns = zip(astuple(Estimate()), *map(astuple, estimates), strict=True)
    return Estimate(*(sum(column) for column in columns))


def weights_on_disk(path: Path) -> int:
    """Return the bytes of the weights of a local checkpoint, a file or a folder; of one format if it has two."""
    if path.is_file():
        return path.stat().st_size
    by_format = [sum(file.stat().st_size for file in path.glob(f"*{end}")) for end in (".safetensors", ".bin", ".ckpt")]
    return next(filter(None, by_format), 0)


def hours_text(hours: float) -> str:
    """Return a duration in a few characters.

    >>> [hours_text(hours) for hours in (0.0, 0.004, 0.5, 3.21, 4321.0)]
    ['0 h', '0.004 h', '0.5 h', '3.2 h', '4,321 h']
    """
    return f"{hours:,.0f} h" if hours >= 99.5 else f"{hours:.2g} h"


def dollars_text(dollars: float) -> str:
    """Return a price with cents below a hundred dollars.

    >>> [dollars_text(dollars) for dollars in (0.004, 12.345, 12345.6)]
    ['$0.00', '$12.35', '$12,346']
    """
    return f"${dollars:,.0f}" if dollars >= 99.995 else f"${dollars:.2f}"
