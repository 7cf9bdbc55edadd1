"""Measure what the commands cost on a large store: seconds and the largest memory of each, in a process of its own.

    OMP_NUM_THREADS=1 python benchmarks/store_scale.py --store FOLDER
    OMP_NUM_THREADS=1 python benchmarks/store_scale.py --checkpoints 100 --layers 13 --only to_pandas alerts

The store is made up: one run with many metrics on all tokens at each layer, and a loss. It is written through the
store itself, once: with --store it is kept, and found again by the next call. It has a file for each checkpoint, as
that of a process that was killed; with --compact it is what a run leaves that has ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from machine import facts
from report_cost import made_checkpoint, made_rows
from tqdm import tqdm

from repdyn import Store, open_store
from repdyn.metrics import METRICS, Metric
from repdyn.store import MeasurementKey

PROBE, SETTINGS = "0123456789abcdef", "0123abcd"

COMMANDS = {
    "to_pandas": "from repdyn import open_store; open_store({store!r}).to_pandas()",
    "runs and steps": "from repdyn import open_store; s = open_store({store!r}); [s.steps(run) for run in s.runs()]",
    "query": "from repdyn.cli.main import main; main(['query', 'select run, last_step from runs', {store!r}])",
    "one metric": "from repdyn import open_store; open_store({store!r}).plot.heatmap('two_nn')",
    "insights": "from repdyn.cli.main import main; main(['insights', {store!r}, '--json'])",
    "alerts": "from repdyn.cli.main import main; main(['alerts', {store!r}, '--json'])",
    "report": "from repdyn.cli.main import main; main(['report', {store!r}, '-o', {out!r} + '/report.html'])",
    "figures": "from repdyn.cli.main import main; main(['figures', {store!r}, '-o', {out!r} + '/figures'])",
    "resume": (
        "from repdyn import open_store; from repdyn.store import MeasurementKey; store = open_store({store!r}); "
        "assert all(MeasurementKey({run!r}, step, {probe!r}, {settings!r}) in store for step in {steps})"
    ),
}
"""Python programs by the name of what they do."""

_MEASURED = """
import contextlib, json, os, resource, sys, time
started = time.perf_counter()
with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.suppress(SystemExit):
    exec(sys.argv[1])
seconds = time.perf_counter() - started
print(json.dumps([seconds, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="keep the store here (default: a temporary folder)")
    parser.add_argument("--checkpoints", type=int, default=1000, help="of the run (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=50, help="embedding output among them (default: %(default)s)")
    parser.add_argument("--metrics", type=int, default=35, help="the first so many (default: %(default)s)")
    parser.add_argument("--compact", action="store_true", help="join the files of the store first")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="default: all")
    options = parser.parse_args()
    about = facts("")
    print(f"{about['machine']}, threads: {about['threads']}, {about['versions']}, {about['date']}")
    with tempfile.TemporaryDirectory() as folder:
        store, metrics = open_store(options.store or Path(folder) / "store"), list(METRICS.values())[: options.metrics]
        fill(store, options.checkpoints, options.layers, metrics)
        if options.compact:
            store.compact("large")
        files = list(store.path.rglob("*.parquet"))
        print(
            f"{options.checkpoints} checkpoints x {options.layers} layers x {len(metrics)} metrics, {len(files)} files "
            f"of {sum(path.stat().st_size for path in files) / 1e6:.0f} MB"
        )
        for line in measure(store, options.only, Path(folder)):
            print(line)


def fill(store: Store, n_checkpoints: int, n_layers: int, metrics: list[Metric]) -> None:
    """Write the checkpoints that the store does not have yet."""
    on_all = [(metric, "all") for metric in metrics]
    for step in tqdm(range(0, 10 * n_checkpoints, 10), desc="writing", unit="checkpoint", disable=None):
        key = MeasurementKey("large", step, PROBE, SETTINGS)
        if key not in store:
            checkpoint = made_checkpoint("large", step)
            store.write(key, made_rows(checkpoint, on_all, n_layers, last=10 * n_checkpoints))


def measure(store: Store, names: list[str], folder: Path) -> Iterator[str]:
    """Yield a line for each command: seconds on the clock, seconds that a core worked, gigabytes."""
    (run,) = store.runs()
    given = {"store": str(store.path), "out": str(folder), "run": run, "probe": PROBE, "settings": SETTINGS}
    for name in names:
        program = COMMANDS[name].format(**given, steps=store.steps(run))
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, program], capture_output=True, text=True, check=False, cwd=folder
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stderr}")
        seconds, cpu, gigabytes = json.loads(done.stdout.splitlines()[-1])
        yield f"{name:>14}: {seconds:7.1f} s, of which a core worked {cpu:7.1f} s, {gigabytes:.2f} GB"


if __name__ == "__main__":
    main()
