"""What the second cloud of TwoNN adds to a measurement, as ratios of processor time interleaved
within one process.

    OMP_NUM_THREADS=1 python benchmarks/cloud_cost.py

A decoder with random weights on tokens by Zipf's law, 8 vectors of each of 512 windows of 80.
"Before" measures all vectors alone; "uncapped" types as many as there are, "capped" at most 2,048
of them, as by default.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
from machine import facts
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repdyn import Probe, measure
from repdyn.probe import sampled_tokens

measuring = import_module("repdyn.measurement.measure")  # "repdyn.measure" is the function
N_TOKENS = 30_000
MOST = {"capped": 2048, "uncapped": 4096}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="(default: %(default)s)")
    n_repeats = parser.parse_args().repeats
    for name, fact in facts("cloud_cost.py").items():
        print(f"{name}: {fact}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=N_TOKENS,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=128,
    )
    model = GPTNeoXForCausalLM(config).eval()
    probes = {name: probe_of(most) for name, most in MOST.items()}
    for name, probe in probes.items():
        print(f"{name}: {probe.sample('types').shape[1]:,} types, default {probe.without_repeats}")
    jobs = {
        "before": (probes["capped"], ["anisotropy", "two_nn@all"]),
        **{name: (probe, ["anisotropy", "two_nn"]) for name, probe in probes.items()},
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for repeat in range(n_repeats + 1):
        for name, (probe, metrics) in jobs.items():
            spent = seconds_of(model, probe, metrics)
            if repeat:  # the first warms up
                seconds[name].append(spent)
    for name in MOST:
        for index, what in enumerate(("metrics alone", "with the forward passes")):
            ratios = [
                after[index] / before[index]
                for after, before in zip(seconds[name], seconds["before"], strict=True)
            ]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{name}, {what}: {statistics.median(ratios):.2f} times before ({spread})")


def seconds_of(model: nn.Module, probe: Probe, metrics: list[str]) -> tuple[float, float]:
    """Return the processor time of the metrics of a measurement, and that of all of it."""
    of_metrics = 0.0
    rows_of_layer = measuring.rows_of_layer

    def clocked(*arguments: Any, **named: Any) -> Any:
        nonlocal of_metrics
        start = time.process_time()
        rows = rows_of_layer(*arguments, **named)
        of_metrics += time.process_time() - start
        return rows

    start = time.process_time()
    with mock.patch.object(measuring, "rows_of_layer", clocked):
        measure(model, probe, metrics)
    return of_metrics, time.process_time() - start


def probe_of(most_types: int) -> Probe:
    """Return the probe, its types drawn with another largest number than the package's."""
    tokens = np.minimum(np.random.RandomState(0).zipf(1.15, (512, 80)), N_TOKENS - 1)
    probe = Probe.from_tokens(tokens)
    with mock.patch.object(sampled_tokens, "MOST_VECTORS", most_types):
        probe.sample("types")
    return probe


if __name__ == "__main__":
    main()
