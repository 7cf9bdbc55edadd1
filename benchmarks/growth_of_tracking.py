"""Measure whether a measurement costs more, the more there are before it: each tenth of many measurements.

    OMP_NUM_THREADS=1 python benchmarks/growth_of_tracking.py
    OMP_NUM_THREADS=1 python benchmarks/growth_of_tracking.py --measurements 40 --stored 2000
    OMP_NUM_THREADS=1 python benchmarks/growth_of_tracking.py --measurements 200 --everything

A tiny decoder on random tokens is measured at each step by a Tracker with store, alerts, live page and a CSV logger.
Seconds are those that a processor worked, in all threads. "own share" is what is neither forward passes nor kernels:
rows, files, loggers, alerts, the page. With --stored the run goes on from a store that has so many measurements
already, copies of its first, which takes less time than to make them; its first tenth then has the reading of the
history. With --everything there are all metrics, the loss on the probe, a TensorBoard logger and uploads to a remote
store (fsspec's in memory) as well.
"""

from __future__ import annotations

import argparse
import time
from contextlib import chdir
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from machine import facts
from tqdm import tqdm

import repdyn
from repdyn import Probe, Tracker
from repdyn.metrics import DEFAULT_METRICS
from repdyn.models import build_model
from repdyn.store import MeasurementKey, read_rows

_PARTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=int, default=2000, help="default: %(default)s")
    parser.add_argument(
        "--metrics", nargs="+", default=list(DEFAULT_METRICS), metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument("--layers", type=int, default=4, help="of the model (default: %(default)s)")
    parser.add_argument("--stored", type=int, default=0, help="measurements stored before (default: %(default)s)")
    parser.add_argument(
        "--everything", action="store_true", help="all metrics, the probe's loss, TensorBoard and a remote store too"
    )
    options = parser.parse_args()
    about = facts("")
    print(f"{about['machine']}, threads: {about['threads']}, {about['versions']}, {about['date']}")
    metrics = "all" if options.everything else options.metrics
    names = "all metrics" if options.everything else ", ".join(metrics)
    print(f"{options.measurements} measurements of {names}, {options.layers} blocks, {options.stored} stored before")
    seconds, own = measure(options.measurements, metrics, options.layers, options.stored, options.everything)
    print(f"{'measurements':>14} {'seconds each':>12} {'own share':>10}")
    bounds = [round(part * len(seconds) / _PARTS) for part in range(_PARTS + 1)]
    means = []
    for start, stop in pairwise(bounds):
        total = sum(seconds[start:stop])
        means.append(total / (stop - start))
        print(f"{start + 1:>6} - {stop:<5} {means[-1]:12.4f} {sum(own[start:stop]) / total:10.1%}")
    print(f"last tenth / first tenth: {means[-1] / means[0]:.2f}")


def measure(
    n_measurements: int, metrics: str | list[str], n_layers: int, n_stored: int, everything: bool
) -> tuple[list[float], list[float]]:
    """Return the seconds of each measurement, and those of them that are neither forward passes nor kernels."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 32, "n_layers": n_layers, "n_heads": 2, "context_length": 64}
    model = build_model("gpt_neox", **sizes)
    probe = Probe.from_tokens(torch.randint(3, 256, (256, 64)), max_vectors=512)
    seconds, measuring = [], []

    def clocked(*given: Any, **options: Any) -> Any:
        clock, worked = time.perf_counter(), time.process_time()
        profile = repdyn.measure(*given, **options)
        share = (profile.forward_seconds + profile.kernel_seconds) / (time.perf_counter() - clock)
        measuring.append(share * (time.process_time() - worked))
        return profile

    # views of a remote store are written into the current folder
    with TemporaryDirectory() as folder, chdir(folder), patch("repdyn.tracking.tracked_run.measure", clocked):
        given = {"metrics": metrics, "schedule": 1, "store": f"{folder}/store", "loggers": [CSVLogger(folder, "csv")]}
        if everything:
            given["loggers"].append(TensorBoardLogger(folder, "tensorboard"))
            given |= {"probe_loss": True, "store": f"memory:/{folder}/store"}
        if n_stored:
            fill(Tracker(model, probe, **given), n_stored)
        tracker = Tracker(model, probe, start=max(n_stored - 1, 0), **given)
        measuring.clear()
        with tracker:
            for _ in tqdm(range(n_measurements), unit="measurement", disable=None):
                for parameter in model.parameters():
                    parameter.data.mul_(1.0001)
                start = time.process_time()
                tracker.step(loss=torch.rand(()))
                seconds.append(time.process_time() - start)
        for logger in given["loggers"]:
            logger.finalize("success")  # its thread would write into a folder that is gone
    # of the steps: with an empty store, the first one measured is the model before them
    return seconds, [whole - part for whole, part in zip(seconds, measuring[-len(seconds) :], strict=True)]


def fill(tracker: Tracker, n_stored: int) -> None:
    """Measure once, and store it as so many steps."""
    tracker.start()
    store, (file,) = tracker.store, tracker.store.path.glob("*/step*.parquet")
    rows = read_rows(file)
    for step in tqdm(range(1, n_stored), desc="filling", disable=None):
        key = MeasurementKey(rows[0].run, step, rows[0].probe, file.stem.rpartition("-")[2])
        store.write(key, [replace(row, step=step) for row in rows])


if __name__ == "__main__":
    main()
