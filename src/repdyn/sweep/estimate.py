"""How long a sweep would take, and what it would cost: an estimate from the sizes of the weights alone."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repdyn.metrics import DEFAULT_METRICS, resolve
from repdyn.probe.design import BATCH_VECTORS, INDEPENDENT, MAX_VECTORS, resolve_design

BYTES_PER_WEIGHT = 2
_ASPECT = 100
"""Assumed width of a model over its number of blocks."""
_WINDOW_TOKENS = 128
"""Assumed number of tokens in a window that is cut by characters: 4 characters a token."""
_PER_FURTHER_METRIC = 0.3
"""Time of a metric over that of the default two: docs/metric_cost.md has 11.14 for these and 33 others together."""


@dataclass(frozen=True)
class Hardware:
    """Rates of a machine, and a price to begin with."""

    title: str
    source: str
    """Where the rates come from."""
    load: float
    """Bytes of weights per second."""
    forward: float
    """Operations per second, 2 for each weight and token."""
    kernels: float
    """Seconds of the default two metrics, for each layer, coordinate and batch of 4096 vectors."""
    price: float
    """US dollars per hour, assumed."""


HARDWARE = {
    "cpu": Hardware(
        "one processor core",
        "measured by benchmarks/checkpoint_cost.py on an Intel Xeon, 2.8 GHz, 2026-11-23",
        load=0.34e9,
        forward=173e9,
        kernels=2.13e-4,
        price=0.05,
    ),
    "gpu": Hardware("one data-centre GPU", "assumed, not measured", load=1e9, forward=20e12, kernels=2e-5, price=2.50),
}


@dataclass(frozen=True)
class Estimate:
    """Hours of a sweep in one process."""

    download: float
    measurement: float
    elapsed: float
    """Of both: while a checkpoint is measured, the next one is downloaded."""


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

    @classmethod
    def from_options(cls, options: Namespace) -> Assumptions:
        """Return the assumptions that the options of a sweep name."""
        hardware = HARDWARE[options.hardware]
        design, max_vectors = resolve_design(options.design or INDEPENDENT.name), options.max_vectors or MAX_VECTORS
        window_tokens = options.sequence_length or design.window_tokens or _WINDOW_TOKENS
        batch_vectors = min(BATCH_VECTORS, max_vectors)
        n_windows = design.required_windows(max_vectors // batch_vectors, batch_vectors, window_tokens)
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
        )

    def of(self, download_bytes: Sequence[int], weight_bytes: Sequence[int]) -> Estimate:
        """Estimate the hours of checkpoints from what is downloaded for each, and from the size of its weights."""
        downloads = [n_bytes / self.bandwidth / 3600 for n_bytes in download_bytes]
        measurements = [self._seconds(n_bytes) / 3600 for n_bytes in weight_bytes]
        return sum_of(Estimate(*pair, max(pair)) for pair in zip(downloads, measurements, strict=True))

    def dollars(self, estimate: Estimate) -> float:
        """Return the price of the elapsed hours."""
        return self.price * estimate.elapsed

    def lines(self) -> list[str]:
        """State the assumptions, a line each."""
        hardware = self.hardware
        return [
            f"download: {self.bandwidth / 1e6:g} MB/s (--bandwidth), while the checkpoint before is measured",
            f"measurement: {hardware.title} (--hardware), {hardware.source}: load {hardware.load / 1e9:g} GB/s, "
            f"forward {hardware.forward / 1e9:,.0f} GFLOP/s, kernels {hardware.kernels * 1e3:.3g} ms for each layer, "
            f"coordinate and {BATCH_VECTORS:,} vectors",
            f"models: {BYTES_PER_WEIGHT} bytes a weight in the files (where it is 4, the time is too long), 2 "
            f"operations for each weight and token, {_ASPECT} times as wide as deep",
            f"each checkpoint: {self.n_tokens:,} tokens, {self.max_vectors:,} vectors of each layer, metrics that take "
            f"{self.kernel_factor:.1f} times the default two",
            f"price: {dollars_text(self.price)} per hour (--price-per-hour), for the hours elapsed; no storage, no "
            "retries",
        ]

    def _seconds(self, weight_bytes: int) -> float:
        n_weights = weight_bytes / BYTES_PER_WEIGHT
        # a block has 12 width**2 weights: layers * width, for depth = width / _ASPECT
        layers_times_width = (n_weights / 12) ** (2 / 3) / _ASPECT ** (1 / 3)
        kernels = self.hardware.kernels * layers_times_width * self.max_vectors / BATCH_VECTORS * self.kernel_factor
        forward = 2 * n_weights * self.n_tokens / self.hardware.forward
        return weight_bytes / self.hardware.load + forward + kernels


def sum_of(estimates: Iterable[Estimate]) -> Estimate:
    """Return the hours of several estimates, one after the other."""
    numbers = [(each.download, each.measurement, each.elapsed) for each in estimates]
    return Estimate(*(sum(column) for column in zip((0.0, 0.0, 0.0), *numbers, strict=True)))


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
