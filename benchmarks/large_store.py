"""Measure what the commands that show a large store cost, relative to reading its files with
pyarrow.

    python benchmarks/large_store.py                        1,000 checkpoints, 1.75 million values
    python benchmarks/large_store.py --checkpoints 100 --only list report
    python benchmarks/large_store.py --runs 400 --checkpoints 3 --layers 13 --metrics 2

Makes such a store in a temporary folder; of several runs, each four are seeds of one model. Each
command runs in a process of its own, first on a small store, so that imports do not count; then on
the large one; then pyarrow reads the same files there, in one thread. Prints processor time, which
other processes disturb less than the clock, and the largest memory of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.cli.main import main as repdyn
from repdyn.metrics import METRICS
from repdyn.metrics.request import requested
from repdyn.store import MeasurementKey, open_store
from repdyn.store.files import write_table
from repdyn.store.schema import Checkpoint, Row, provenance, scalar_row, to_table

PROBE = "0123456789abcdef"
STEPS_BETWEEN = 10
SEEDS = 4
COMMANDS = {
    "list": ["watch", "STORE", "--once"],
    "insights": ["insights", "STORE"],
    "alerts": ["insights", "STORE", "--alerts"],
    "report": ["report", "STORE", "-o", "OUT/report.html"],
    "figures": ["figures", "STORE", "-o", "OUT/figures"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {
        "runs": (1, "runs of the store"),
        "checkpoints": (1000, "files of each run"),
        "layers": (50, "layers of the model, with the embeddings"),
        "metrics": (36, "metrics of each checkpoint, of the first ones listed"),
    }
    for name, (default, what) in sizes.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)"
        )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=COMMANDS,
        default=list(COMMANDS),
        help="commands (default: all)",
    )
    parser.add_argument(
        "--in-process", nargs=3, metavar=("COMMAND", "LARGE", "SMALL"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(_cost(*options.in_process)))
        return
    from machine import facts  # with torch, which these commands do without

    print(*facts(" ".join(sys.argv)).values(), sep="; ")
    with tempfile.TemporaryDirectory() as folder:
        shape = {"n_layers": options.layers, "n_metrics": options.metrics}
        n_rows = make_store(Path(folder) / "large", options.runs, options.checkpoints, **shape)
        make_store(Path(folder) / "small", 1, 2, **shape)
        n_files = options.runs * options.checkpoints
        print(f"{n_rows:,} values in {n_files:,} files")
        print(
            "| command | processor time | relative to pyarrow | largest memory |\n|---|---|---|---|"
        )
        for name in options.only:
            command = [
                sys.executable,
                __file__,
                "--in-process",
                name,
                f"{folder}/large",
                f"{folder}/small",
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds, of_pyarrow, memory = json.loads(done.stdout)
            print(
                f"| {name} | {seconds:.1f} s | {seconds / of_pyarrow:.1f} | {memory:.2f} GB |",
                flush=True,
            )


def make_store(
    folder: Path, n_runs: int, n_checkpoints: int, *, n_layers: int, n_metrics: int
) -> int:
    """Write the runs of a sweep, a file for each checkpoint as a live run does, and return the
    number of values.
    """
    rows = _rows(n_layers, n_metrics)
    table = to_table(rows)
    store = open_store(folder)
    level = np.array([1 + (row.layer or 0) / n_layers for row in rows])
    for number in range(n_runs):
        model, seed = divmod(number, SEEDS)
        training = {"learning_rate": 1e-4 * (1 + model), "seed": seed}
        run = store.begin_run(f"run{number}", {"training": training})
        of_run = _with_column(table, "run", np.full(len(rows), run.name))
        noise = np.random.default_rng(number)
        for checkpoint in range(n_checkpoints):
            step = STEPS_BETWEEN * checkpoint
            value = level * (0.2 + checkpoint / n_checkpoints) * noise.uniform(0.9, 1.1, len(rows))
            of_step = _with_column(of_run, "step", np.full(len(rows), step))
            shares = {"value": 1.0, "std": 0.02, "std_error": 0.01, "low": 0.98, "high": 1.02}
            for name, share in shares.items():
                of_step = _with_column(of_step, name, share * value)
            key = MeasurementKey(run=run.id, step=step, probe=PROBE, metrics="0123abcd")
            write_table(folder / key.filename, of_step)
    return len(rows) * n_runs * n_checkpoints


def _with_column(table: pa.Table, name: str, values: Sequence[object] | np.ndarray) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values))


def _rows(n_layers: int, n_metrics: int) -> list[Row]:
    """Return the rows of one checkpoint: a loss, and metrics of every layer."""
    checkpoint = Checkpoint(
        run="large", model="GPTNeoXForCausalLM", causal=True, parameters=10**8, device="cpu"
    )
    of_measurement = {
        **asdict(checkpoint),
        **provenance(),
        "probe": PROBE,
        "dtype": "bfloat16",
        "dim": 4096,
        "subset": "all",
    }
    of_measurement |= {
        "n_batches": 8,
        "n_vectors": 4096,
        "n_unique": 4000,
        "std": 0.0,
        "std_error": 0.0,
        "low": 0.0,
        "high": 0.0,
    }
    of_measurement |= {
        "design": "independent",
        "n_windows": 512,
        "vectors_per_window": 8,
        "window_tokens": 64,
        "value": 0.0,
    }
    rows = [scalar_row(checkpoint, "train/loss", 2.0, probe=PROBE)]
    for metric in list(METRICS.values())[:n_metrics]:
        request = requested(metric, "all", {})
        named = {
            "metric": metric.name,
            "settings": request.settings_json,
            "on_distinct": request.collapses_duplicates,
        }
        for layer in range(n_layers):
            if metric.is_defined_at(layer, is_last=layer == n_layers - 1):
                of_layer = {
                    "layer": layer,
                    "depth": layer / (n_layers - 1),
                    "module": f"layers.{layer}",
                }
                rows.append(Row.of(**of_measurement, **named, **of_layer))
    return rows


def _cost(name: str, large: str, small: str) -> tuple[float, float, float]:
    """Return the processor time of a command and of pyarrow, in seconds, and the largest memory, in
    GB.
    """
    with (
        tempfile.TemporaryDirectory() as out,
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
    ):
        for store in (small, large):
            words = [word.replace("STORE", store).replace("OUT", out) for word in COMMANDS[name]]
            seconds = _seconds(lambda words=words: repdyn(words))
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    files = sorted(Path(large).rglob("*.parquet"))
    return (
        seconds,
        _seconds(lambda: [pq.read_table(file, use_threads=False) for file in files]),
        int(kilobytes) / 1e6,
    )


def _seconds(act: Callable[[], object]) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started


if __name__ == "__main__":
    main()
