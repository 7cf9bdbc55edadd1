"""Each benchmark runs at a small size and prints what the documentation quotes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
RUNS = {
    "kernel_comparison.py --sizes 64x8 --clouds gaussian --only repdyn --repeats 1": "/ product",
    "measurement_cost.py --config configs/quickstart.yaml --repeats 1": "/ training step",
    "cloud_cost.py --repeats 1": "capped, metrics alone: ",
    "cube_bias.py --repeats 1 --help": "repeats",
    "interval_coverage.py --probes 10": "covers another",
    "phases.py --repeats 1": "| random walk |",
    "sample_size.py --repeats 2 --sizes 500": "effective_rank_of_variance,1.0,",
    "reference_clouds.py": "large step: step_cosine 0.303",
    "large_store.py --checkpoints 3 --only list": "| list |",
    "measurement_cost.py --handed 100x80 --repeats 1": "| 100 | 80 | 100 | 100 | 8,000 | 7,975 |",
    "forward_cost.py --size 2x64 --repeats 1": "tokens, needed: 37,335",
    "measurement_cost.py --table 2x64 --repeats 1": "| 2x64 | 0.133 M",
    "sampling.py --models decoder-0 --probes 2": "| decoder-0 | two_nn |",
}


@pytest.mark.parametrize("command", RUNS)
def test_a_benchmark_runs(command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "REPDYN_DATA"}
    done = subprocess.run(
        [sys.executable, *f"benchmarks/{command}".split()],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert RUNS[command] in done.stdout
