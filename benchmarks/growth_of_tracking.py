"""Measure whether a measurement costs more, the more there are before it: seconds of each tenth of many measurements.

    OMP_NUM_THREADS=1 python benchmarks/growth_of_tracking.py
    OMP_NUM_THREADS=1 python benchmarks/growth_of_tracking.py --measurements 400 --metrics anisotropy two_nn

A tiny decoder on random tokens is measured at each step by a Tracker with store, alerts, live page and a CSV logger.
"own share" is what is neither forward passes nor kernels: rows, files, loggers, alerts, the page.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.loggers import CSVLogger
from machine import facts
from tqdm import tqdm

import repdyn
from repdyn import Probe, Tracker
from repdyn.metrics import DEFAULT_METRICS
from repdyn.models import build_model

_PARTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=int, default=2000, help="default: %(default)s")
    parser.add_argument(
        "--metrics", nargs="+", default=list(DEFAULT_METRICS), metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument("--layers", type=int, default=4, help="of the model (default: %(default)s)")
    options = parser.parse_args()
    about = facts("")
    print(f"{about['machine']}, threads: {about['threads']}, {about['versions']}, {about['date']}")
    print(f"{options.measurements} measurements of {', '.join(options.metrics)}, {options.layers} blocks")
    seconds, own = measure(options.measurements, options.metrics, options.layers)
    print(f"{'measurements':>14} {'seconds each':>12} {'own share':>10}")
    bounds = [round(part * len(seconds) / _PARTS) for part in range(_PARTS + 1)]
    means = []
    for start, stop in pairwise(bounds):
        total = sum(seconds[start:stop])
        means.append(total / (stop - start))
        print(f"{start + 1:>6} - {stop:<5} {means[-1]:12.4f} {sum(own[start:stop]) / total:10.1%}")
    print(f"last tenth / first tenth: {means[-1] / means[0]:.2f}")


def measure(n_measurements: int, metrics: list[str], n_layers: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each measurement, and those of them that are neither forward passes nor kernels."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 32, "n_layers": n_layers, "n_heads": 2, "context_length": 64}
    model = build_model("gpt_neox", **sizes)
    probe = Probe.from_tokens(torch.randint(3, 256, (256, 64)), max_vectors=512)
    seconds, measuring = [], []

    def clocked(*given: Any, **options: Any) -> Any:
        profile = repdyn.measure(*given, **options)
        measuring.append(profile.forward_seconds + profile.kernel_seconds)
        return profile

    with TemporaryDirectory() as folder, patch("repdyn.tracking.tracked_run.measure", clocked):
        logger = CSVLogger(folder, name="csv")
        tracker = Tracker(model, probe, metrics=metrics, schedule=1, store=Path(folder) / "store", loggers=[logger])
        with tracker:
            for _ in tqdm(range(n_measurements), unit="measurement", disable=None):
                for parameter in model.parameters():
                    parameter.data.mul_(1.0001)
                start = time.perf_counter()
                tracker.step(loss=torch.rand(()))
                seconds.append(time.perf_counter() - start)
    return seconds, [whole - part for whole, part in zip(seconds, measuring[1:], strict=False)]


if __name__ == "__main__":
    main()
