"""The rates of a core: the fit finds those that made-up timings have, and the script measures."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest
import torch

from repdyn.checkpoints.run import Timing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("hardware_rates")


def test_examples_in_docstrings(benchmark):
    assert doctest.testmod(benchmark).failed == 0


def test_rates_of_made_up_timings(benchmark):
    def measured(shape):
        n_weights, width = 12 * shape.n_layers * shape.width**2, shape.width
        forward = 1000 * (2 * n_weights / 50e9 + shape.n_layers * width * 30e-9)
        kernels = 2 * (shape.n_layers + 1) * (width * 1e-3 + 0.5)
        loss = 8192 * shape.vocabulary * (2 * width / 50e9 + 20e-9)
        timings = (Timing(0, 0.5, forward, kernels + extra) for extra in (loss, 0.0))
        return benchmark.Measured(shape, 10**8, *timings)

    found = {name: measured(shape) for name, shape in benchmark.SHAPES.items()}
    lines = benchmark.report(found, n_tokens=1000, max_vectors=8192)
    for line in (
        "load: 0.2 GB/s",
        "products: 50 GFLOP/s",
        "states: 30 ns for each block, coordinate and token",
        "kernels: 1 ms for each layer, coordinate and 4,096 vectors",
        "layers: 5e+02 ms for each layer and 4,096 vectors",
        "logits: 20 ns for each vector and entry of the vocabulary",
    ):
        assert line in lines


@pytest.mark.extended
@pytest.mark.slow
def test_the_script(benchmark, monkeypatch, capsys):
    shapes = {name: benchmark.Shape(300, width, 2, 2, torch.float32) for name, width in (("narrow", 16), ("wide", 32))}
    monkeypatch.setattr(benchmark, "SHAPES", shapes)
    monkeypatch.setattr(sys, "argv", ["hardware_rates.py", "--models", "narrow", "wide", "--max-vectors", "512"])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines[7:9], shapes, strict=True):
        label, forward, _, kernels, *_ = line.split()
        assert label == name
        assert float(forward) > 0
        assert float(kernels) > 0
