"""Measure what the commands cost on a large store: seconds and the largest memory of each, in a process of its own.

    OMP_NUM_THREADS=1 python benchmarks/store_scale.py --store FOLDER
    OMP_NUM_THREADS=1 python benchmarks/store_scale.py --checkpoints 100 --layers 13 --only to_pandas alerts
    OMP_NUM_THREADS=1 python benchmarks/store_scale.py --runs 1000 --checkpoints 2 --layers 4 --metrics 3 --only lookup

The store is made up: one run, or several, with many metrics on all tokens at each layer, and a loss. It is written
through the store itself, once: with --store it is kept, and found again by the next call. It has a file for each
checkpoint, as that of a process that was killed; with --compact it is what a run leaves that has ended.
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
    "lookup": (
        "from repdyn import open_store; "
        "open_store({store!r}).sql(\"select value from rows where run = '{run}' and step = {last}\")"
    ),
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

# not ru_maxrss, which begins with the memory of the process that started this one
_MEASURED = """
import contextlib, json, os, re, sys, time
started = time.perf_counter()
with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.suppress(SystemExit):
    exec(sys.argv[1])
seconds = time.perf_counter() - started
worked, kilobytes = time.process_time(), re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
print(json.dumps([seconds, worked, int(kilobytes) / 1e6]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="keep the store here (default: a temporary folder)")
    parser.add_argument("--runs", type=int, default=1, help="in the store (default: %(default)s)")
    parser.add_argument("--checkpoints", type=int, default=1000, help="of each run (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=50, help="embedding output among them (default: %(default)s)")
    parser.add_argument("--metrics", type=int, default=35, help="the first so many (default: %(default)s)")
    parser.add_argument("--compact", action="store_true", help="join the files of the store first")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="default: all")
    options = parser.parse_args()
    about = facts("")
    print(f"{about['machine']}, threads: {about['threads']}, {about['versions']}, {about['date']}")
    with tempfile.TemporaryDirectory() as folder:
        store, metrics = open_store(options.store or Path(folder) / "store"), list(METRICS.values())[: options.metrics]
        runs = ["large"] if options.runs == 1 else [f"lab/small-{number}" for number in range(options.runs)]
        for run in tqdm(runs, desc="writing", unit="run", disable=None if len(runs) > 1 else True):
            fill(store, run, options.checkpoints, options.layers, metrics)
            if options.compact:
                store.compact(run)
        files = list(store.path.rglob("*.parquet"))
        print(
            f"{options.runs} x {options.checkpoints} checkpoints x {options.layers} layers x {len(metrics)} metrics, "
            f"{len(files)} files of {sum(path.stat().st_size for path in files) / 1e6:.0f} MB"
        )
        for line in measure(store, options.only, Path(folder)):
            print(line)


def fill(store: Store, run: str, n_checkpoints: int, n_layers: int, metrics: list[Metric]) -> None:
    """Write the checkpoints of a run that the store does not have yet."""
    on_all = [(metric, "all") for metric in metrics]
    for step in tqdm(range(0, 10 * n_checkpoints, 10), desc="writing", unit="checkpoint", leave=False, disable=None):
        key = MeasurementKey(run, step, PROBE, SETTINGS)
        if key not in store:
            checkpoint = made_checkpoint(run, step)
            store.write(key, made_rows(checkpoint, on_all, n_layers, last=10 * n_checkpoints))


def measure(store: Store, names: list[str], folder: Path) -> Iterator[str]:
    """Yield a line for each command: seconds on the clock, seconds that a core worked, gigabytes."""
    run, steps = store.runs()[0], store.steps(store.runs()[0])
    given = {"store": str(store.path), "out": str(folder), "run": run, "probe": PROBE, "settings": SETTINGS}
    for name in names:
        program = COMMANDS[name].format(**given, steps=steps, last=steps[-1])
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, program], capture_output=True, text=True, check=False, cwd=folder
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stderr}")
        seconds, cpu, gigabytes = json.loads(done.stdout.splitlines()[-1])
        yield f"{name:>14}: {seconds:7.1f} s, of which a core worked {cpu:7.1f} s, {gigabytes:.2f} GB"


if __name__ == "__main__":
    main()
