"""Compare the plan of a sweep with the sweep: seconds that were planned, and seconds that it took.

    OMP_NUM_THREADS=1 python benchmarks/plan_accuracy.py --bandwidth 2MB
    OMP_NUM_THREADS=1 python benchmarks/plan_accuracy.py --bandwidth 200MB --models 14m deep --revisions 2

A hub on this machine serves GPT-NeoX models of a few sizes with weights at random, several revisions of each. It
answers each request after a latency, and all of its connections together send at most the bandwidth. `repdyn sweep
--dry-run` makes the plan for one core, then the same command without --dry-run measures. A line of the sweep for each
checkpoint says when it was done, and the store has the seconds of each stage.

The processor seconds of the sweep are printed too: on a busy machine the clock shows more. They are compared with what
the plan has for measuring alone, since a download hardly needs a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
import yaml
from machine import facts
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repdyn import open_store
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.checkpoints.estimate import START_SECONDS, VIEWS_SECONDS
from repdyn.checkpoints.options import n_bytes

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from hub_server import Fault, HubServer, _Handler

STAGES = ("download", "load", "forward", "kernels")
_PIECE = 1 << 16
_SAMPLE_SECONDS = 0.05
_STEPS = (0, 1000, 2000, 4000, 8000, 16000)


class Shape(NamedTuple):
    """The configuration of a model, and the precision of its file."""

    vocabulary: int
    width: int
    n_layers: int
    n_heads: int
    dtype: torch.dtype


MODELS = {
    "14m": Shape(50304, 128, 6, 4, torch.float16),
    "wide": Shape(4096, 384, 6, 6, torch.float16),
    "deep": Shape(2048, 192, 16, 6, torch.float16),
    "float32": Shape(2048, 192, 3, 6, torch.float32),
}
"""28, 28, 16 and 9 MB; the first is the smallest of Pythia."""


class SlowHub(HubServer):
    """A hub that answers each request after some seconds, and sends so many bytes per second over all connections.

    Args:
        latency: in seconds.
        bandwidth: in bytes per second.
    """

    def __init__(self, latency: float, bandwidth: float) -> None:
        super().__init__()
        self.RequestHandlerClass = _SlowHandler
        self.latency, self.bandwidth = latency, bandwidth
        self.first_weights: float | None = None
        """When the first file of weights was asked for, by :func:`time.perf_counter`."""
        self._is_free_at = 0.0
        self._sending = threading.Lock()

    def wait_for_turn(self, size: int) -> None:
        """Wait until the bytes before these and these have been sent."""
        with self._sending:
            self._is_free_at = max(self._is_free_at, time.perf_counter()) + size / self.bandwidth
            end = self._is_free_at
        time.sleep(max(0.0, end - time.perf_counter()))


class _SlowHandler(_Handler):
    server: SlowHub  # pyright: ignore[reportIncompatibleVariableOverride]

    def _received(self, path: str) -> Fault | None:
        if self.server.first_weights is None and path.endswith(".safetensors"):
            self.server.first_weights = time.perf_counter()
        time.sleep(self.server.latency)
        return super()._received(path)

    def _write(self, body: bytes) -> None:
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            self.server.wait_for_turn(len(piece))
            super()._write(piece)


class Moment(NamedTuple):
    """Seconds since the start of a sweep, and the processor seconds that it has used until then."""

    clock: float
    processor: float


@dataclass(frozen=True)
class Sweep:
    """When a sweep reached what."""

    first_weights: Moment
    done: dict[str, Moment]
    """When the last checkpoint of each model was done."""
    end: Moment


class Compared(NamedTuple):
    """Seconds that were planned, and those that it took."""

    what: str
    planned: float
    clock: float
    planned_processor: float | None = None
    processor: float | None = None

    def __str__(self) -> str:
        text = f"{self.what:>24} {self.planned:8.1f} {self.clock:8.1f} {self.clock / self.planned:6.2f}"
        if self.processor is None or not self.planned_processor:
            return text
        return (
            f"{text} {self.planned_processor:9.1f} {self.processor:9.1f} {self.processor / self.planned_processor:6.2f}"
        )


HEADER = f"{'':>24} {'planned':>8} {'clock':>8} {'ratio':>6} {'planned':>9} {'processor':>9} {'ratio':>6}"


def save_model(shape: Shape, seed: int, folder: Path) -> Path:
    """Save a model with weights at random and a tokenizer of bytes; return the folder."""
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        intermediate_size=4 * shape.width,
    )
    GPTNeoXForCausalLM(config).to(shape.dtype).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def publish(hub: HubServer, name: str, n_revisions: int, folder: Path) -> None:
    """Put a model with other weights in each revision into a hub."""
    for step in _STEPS[:n_revisions]:
        hub.publish(f"lab/{name}", f"step{step}", save_model(MODELS[name], step, folder / name), tag=True)


def write_suite(names: Sequence[str], path: Path) -> Path:
    """Describe the models as a suite of their own."""
    models = [{"name": name, "repository": f"lab/{name}", "revisions": r"step(?P<step>\d+)"} for name in names]
    path.write_text(yaml.safe_dump({"title": "Models at random", "card": "https://example.org", "models": models}))
    return path


def run_plan(command: Sequence[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return what --dry-run plans, for each model."""
    done = subprocess.run([*command, "--dry-run", "--json"], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the plan ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def run_sweep(command: Sequence[str], environment: dict[str, str], hub: SlowHub) -> Sweep:
    """Sweep, and return when each model was done."""
    hub.first_weights = None
    start = time.perf_counter()
    done: dict[str, float] = {}
    lines: list[str] = []
    with (
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run,
        sampled_processor(run.pid) as processor_at,
    ):
        for line in run.stderr or ():
            lines.append(line)
            if line.startswith("["):  # [3/12] lab/model step1000: download 1.0 s, ...
                done[line.split()[1]] = time.perf_counter()
        end = time.perf_counter()
    if run.returncode or hub.first_weights is None:
        raise RuntimeError(f"the sweep ended with {run.returncode}: {''.join(lines)}")

    def moment(at: float) -> Moment:
        return Moment(at - start, processor_at(at))

    return Sweep(moment(hub.first_weights), {model: moment(at) for model, at in done.items()}, moment(end))


@contextmanager
def sampled_processor(pid: int) -> Iterator[Callable[[float], float]]:
    """Sample the processor seconds of a process; the result returns them at a time of the performance counter."""
    process, times, seconds = psutil.Process(pid), [time.perf_counter()], [0.0]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            with suppress(psutil.Error):
                used = process.cpu_times()
                times.append(time.perf_counter())
                seconds.append(used.user + used.system)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda at: seconds[bisect(times, at) - 1]
    finally:
        ended.set()
        thread.join()


def stored_seconds(store: Path) -> dict[str, dict[str, float]]:
    """Return the sums of the stored seconds of each stage by model."""
    frame = open_store(store).to_pandas()
    found = frame[frame["metric"].isin([f"seconds/{stage}" for stage in STAGES])]
    sums = found.groupby(["run", "metric"])["value"].sum()
    return {run: {stage: float(sums[run, f"seconds/{stage}"]) for stage in STAGES} for run in found["run"].unique()}


def compare(plan: list[dict[str, Any]], sweep: Sweep, stored: dict[str, dict[str, float]]) -> list[Compared]:
    """Return what was planned and what it took, for each stage of each model and in total."""
    found, before = [], sweep.first_weights
    planned_stages = [{stage: 3600 * model[f"{stage}_hours"] for stage in STAGES} for model in plan]
    for index, (model, stages) in enumerate(zip(plan, planned_stages, strict=True)):
        run = model["model"]
        found += [Compared(f"{run}, {stage}", seconds, stored[run][stage]) for stage, seconds in stages.items()]
        around = VIEWS_SECONDS + (START_SECONDS if index == 0 else 0.0)
        elapsed, measuring = 3600 * model["hours"] - around, _measuring(model) - around
        done = sweep.done[run]
        spent = done.clock - before.clock, done.processor - before.processor
        found.append(Compared(f"{run}, elapsed", elapsed, spent[0], measuring, spent[1]))
        before = done
    start, end, views = sweep.first_weights, sweep.end, VIEWS_SECONDS * len(plan)
    found.append(Compared("start", START_SECONDS, start.clock, START_SECONDS, start.processor))
    found.append(Compared("views", views, end.clock - before.clock, views, end.processor - before.processor))
    for stage in STAGES:
        sums = (sum(seconds[stage] for seconds in each) for each in (planned_stages, stored.values()))
        found.append(Compared(f"all, {stage}", *sums))
    total = 3600 * sum(model["hours"] for model in plan)
    return [*found, Compared("all, elapsed", total, end.clock, sum(map(_measuring, plan)), end.processor)]


def _measuring(model: dict[str, Any]) -> float:
    return 3600 * (model["measurement_hours"] + model["fixed_hours"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=n_bytes, default=5_000_000, help="sent per second (default: 5MB)")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds before each answer (default: %(default)s)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="(default: all)")
    parser.add_argument("--revisions", type=int, choices=range(1, 7), default=3, help="(default: %(default)s)")
    parser.add_argument("--max-vectors", type=int, default=4096, help="per layer (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, SlowHub(options.latency, options.bandwidth) as hub:
        folder = Path(name)
        for model in options.models:
            publish(hub, model, options.revisions, folder)
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "home")}
        environment |= {"REPDYN_CACHE": str(folder / "cache"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        suite, store = write_suite(options.models, folder / "random.yaml"), folder / "store"
        command = [sys.executable, "-m", "repdyn", "sweep", "--suite", str(suite), "--store", str(store)]
        command += ["--text", "builtin", "--max-vectors", str(options.max_vectors), "--device", "cpu"]
        command += ["--hardware", "cpu", "--bandwidth", str(options.bandwidth)]
        plan = run_plan(command, environment)
        sweep = run_sweep(command, environment, hub)
        compared = compare(plan, sweep, stored_seconds(store))
    print(HEADER)
    print(*compared, sep="\n")
    given = f"--bandwidth {options.bandwidth} --revisions {options.revisions} --models {' '.join(options.models)}"
    for what, text in facts(f"python benchmarks/plan_accuracy.py {given}").items():
        print(f"{what}: {text}")


if __name__ == "__main__":
    main()
