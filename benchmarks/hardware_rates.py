"""Measure the rates of one core that the plan of a sweep is computed from.

    OMP_NUM_THREADS=1 python benchmarks/hardware_rates.py
    OMP_NUM_THREADS=1 python benchmarks/hardware_rates.py --models 14m wide deep float32 70m --max-vectors 1024

Models of several shapes with weights at random are measured once with the loss and once without. Seconds are those of
the processor, so that a busy machine hardly changes them. The rates are the least-squares fit of relative errors, by
the terms of :mod:`repdyn.checkpoints.estimate`; what they give for each model is printed beside what it took.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from machine import facts
from plan_accuracy import MODELS, Shape, save_model

from repdyn import Probe, open_store
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.checkpoints.loading import Loading
from repdyn.probe.design import BATCH_VECTORS
from repdyn.checkpoints.run import Timing, measure_checkpoint
from repdyn.checkpoints.downloads import LocalFiles
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.plan import Settings, Task
from repdyn.text.source import load_corpus

SHAPES = MODELS | {"70m": Shape(50304, 512, 6, 8, torch.float16), "160m": Shape(50304, 768, 12, 12, torch.float16)}


class Measured(NamedTuple):
    """A model, and the processor seconds of its stages."""

    shape: Shape
    n_bytes: int
    with_loss: Timing
    without_loss: Timing


def measure(name: str, probe: Probe, folder: Path) -> Measured:
    """Measure a model as a sweep does, with and without the loss."""
    path = save_model(SHAPES[name], 0, folder / name / "step0")
    (target,) = find_checkpoints(path.parent, name)

    def once(probe_loss: bool) -> Timing:
        settings = Settings(loading=Loading(dtype="float32"), probe_loss=probe_loss)
        with patch("time.perf_counter", time.process_time):
            return measure_checkpoint(Task(target, probe), LocalFiles(path, 0, 0.0), open_store(folder / "s"), settings)

    n_bytes = (path / "model.safetensors").stat().st_size
    return Measured(SHAPES[name], n_bytes, once(True), once(False))


def fit(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return the factors of the terms for which their sums are nearest to the seconds, by relative error.

    >>> [round(factor, 6) for factor in fit([[1.0, 2.0], [2.0, 1.0]], [8.0, 7.0])]
    [2.0, 3.0]
    """
    rows = np.array(terms) / np.array(seconds)[:, None]
    return [float(factor) for factor in np.linalg.lstsq(rows, np.ones(len(seconds)), rcond=None)[0]]


def report(found: dict[str, Measured], n_tokens: int, max_vectors: int) -> list[str]:
    """Return the rates, and for each model the seconds that they give and those that it took."""
    shapes, n_batches = [each.shape for each in found.values()], max_vectors / BATCH_VECTORS
    blocks = [12 * shape.n_layers * shape.width**2 for shape in shapes]
    forward_terms = [
        [2 * n_weights * n_tokens, shape.n_layers * shape.width * n_tokens]
        for n_weights, shape in zip(blocks, shapes, strict=True)
    ]
    kernel_terms = [
        [(shape.n_layers + 1) * shape.width * n_batches, (shape.n_layers + 1) * n_batches] for shape in shapes
    ]
    timings = [each.without_loss for each in found.values()]
    forward, kernels = [timing.forward for timing in timings], [timing.kernels for timing in timings]
    (per_operation, states), (per_coordinate, layers) = fit(forward_terms, forward), fit(kernel_terms, kernels)
    n_logits = [max_vectors * shape.vocabulary for shape in shapes]
    loss = [each.with_loss.kernels - each.without_loss.kernels for each in found.values()]
    of_products = sum(2 * shape.width * n * per_operation for shape, n in zip(shapes, n_logits, strict=True))
    loads = [timing for each in found.values() for timing in (each.with_loss.load, each.without_loss.load)]
    lines = [
        f"load: {2 * sum(each.n_bytes for each in found.values()) / sum(loads) / 1e9:.2g} GB/s",
        f"products: {1 / per_operation / 1e9:.0f} GFLOP/s",
        f"states: {states * 1e9:.2g} ns for each block, coordinate and token",
        f"kernels: {per_coordinate * 1e3:.2g} ms for each layer, coordinate and {BATCH_VECTORS:,} vectors",
        f"layers: {layers * 1e3:.2g} ms for each layer and {BATCH_VECTORS:,} vectors",
        f"logits: {(sum(loss) - of_products) / sum(n_logits) * 1e9:.2g} ns for each vector and entry of the vocabulary",
        f"{'':>10} {'forward':>8} {'by rates':>8} {'kernels':>8} {'by rates':>8} {'loss':>8}",
    ]
    for number, name in enumerate(found):
        by_rates = np.dot(forward_terms[number], [per_operation, states])
        of_kernels = np.dot(kernel_terms[number], [per_coordinate, layers])
        lines.append(
            f"{name:>10} {forward[number]:8.2f} {by_rates:8.2f} {kernels[number]:8.2f} {of_kernels:8.2f} "
            f"{loss[number]:8.2f}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(MODELS), help="(default: %(default)s)")
    parser.add_argument("--max-vectors", type=int, default=BATCH_VECTORS, help="per layer (default: %(default)s)")
    options = parser.parse_args()
    probe = Probe.from_texts(
        [load_corpus("builtin").data.decode()],
        byte_tokenizer(),
        max_vectors=options.max_vectors,
        batch_vectors=min(BATCH_VECTORS, options.max_vectors),
    )
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(name, probe, Path(folder)) for name in options.models}
    print(*report(found, len(probe.tokens), options.max_vectors), sep="\n")
    given = f"--models {' '.join(options.models)} --max-vectors {options.max_vectors}"
    for what, text in facts(f"python benchmarks/hardware_rates.py {given}").items():
        print(f"{what}: {text}")


if __name__ == "__main__":
    main()
