"""Measure the overhead of the tracker: wall-clock seconds of a training with it / without it.

    python benchmarks/tracking_overhead.py
    python benchmarks/tracking_overhead.py --config configs/encoder_enwik8.yaml --threads 2
    python benchmarks/tracking_overhead.py --whole --text enwik8

Trains the model of a configuration in pairs of Trainer.fit, with and without RepresentationDynamics, in one process and
in turns, from one seed, without loggers, checkpoints and progress bar. "measured" is the ratio of these runs: short
ones that measure far more often than the configuration does, lest the cost drown in noise. "derived" follows for the
whole training: the cost of a measurement in training steps, times the measurements of the configuration's schedule, and
the figures, drawn once; it supposes that measuring costs the same at any step. --whole runs all of it instead.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from machine import facts
from tqdm import tqdm

from repdyn import Schedule, measure, open_store
from repdyn.callbacks import RepresentationDynamics
from repdyn.data.datamodule import TextDataModule
from repdyn.models import LanguageModel, objective_of

_MEASUREMENTS = 20  # of a short run, about


@dataclass(frozen=True)
class Pair:
    """A training with the tracker and the same without it; wall-clock seconds."""

    steps: int
    without: float
    tracked: float
    measurements: int
    """Number of measurements in the tracker's store."""
    measuring: float
    """Seconds of all measurements, by the tracker's own clock."""
    figures: float
    """Seconds of the figures and the summary at the end."""
    shares: tuple[float, float]
    """Shares of forward passes and kernels in a measurement, in [0, 1]; the rest tests whether the model is causal."""

    def in_steps(self, seconds: float) -> float:
        return seconds * self.steps / self.without

    @property
    def cost(self) -> float:
        """The cost of one measurement in training steps: the difference of the two trainings without the figures."""
        return self.in_steps(self.tracked - self.without - self.figures) / self.measurements

    def derived(self, steps: int, measurements: int) -> float:
        """Return the ratio for a training of the given numbers of steps and measurements."""
        return 1 + (self.cost * measurements + self.in_steps(self.figures)) / steps


class ClockedTracker(RepresentationDynamics):
    """A tracker that records the seconds of its figures and its summary."""

    figure_seconds = 0.0

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        start = time.perf_counter()
        super().on_fit_end(trainer, pl_module)
        self.figure_seconds = time.perf_counter() - start


class Job:
    """A training as described by a configuration of train.py; raises ValueError if it cannot run here."""

    def __init__(self, config: Any, text: str) -> None:
        whole = isinstance(config, dict) and {"model", "data", "trainer"} <= config.keys()
        if not whole or config["trainer"].get("max_steps", -1) < 1:
            raise ValueError("expected a configuration of train.py that sets model, data and trainer.max_steps")
        self.config, self.max_steps = config, config["trainer"]["max_steps"]
        # a measurement that fails must stop the benchmark, not make it look quick
        self.tracker = config.get("tracker", {}) | {"on_error": "raise", "run": "tracked"}
        given = self.tracker.pop("schedule", "pythia")
        self.schedule = Schedule(**given) if isinstance(given, dict) else Schedule.parse(given)
        if self.schedule.at_checkpoints:
            raise ValueError("expected a schedule of steps, got one of checkpoints, which are off here; give steps")
        # the end is measured too, whatever the schedule
        self.due = sum(step in self.schedule or step == self.max_steps for step in range(self.max_steps + 1))
        objective = objective_of(config["model"]["family"])
        self.data = TextDataModule(**config["data"] | {"text": text}, objective=objective)
        self.data.setup("fit")  # reading the text is no part of the training

    def pair(self, steps: int, schedule: Schedule, tracked_first: bool = False) -> Pair:
        """Train both ways, then measure the trained model once more for the shares of a measurement."""
        with TemporaryDirectory() as store:
            tracker = ClockedTracker(**self.tracker | {"schedule": schedule, "store": store})
            order = [("without", None), ("tracked", tracker)]
            runs = {name: self._fit(steps, one) for name, one in (order[::-1] if tracked_first else order)}
            count = len(open_store(store).steps("tracked"))
        (without, _), (tracked, module) = runs["without"], runs["tracked"]
        start = time.perf_counter()
        profile = measure(module.model, self.data.probe(), tracker.options.metrics, tracker.options.layers)
        whole = time.perf_counter() - start
        shares = (profile.forward_seconds / whole, profile.kernel_seconds / whole)
        return Pair(steps, without, tracked, count, tracker.tracking_seconds, tracker.figure_seconds, shares)

    def _fit(self, steps: int, tracker: Callback | None) -> tuple[float, LanguageModel]:
        """Return wall-clock seconds, and the trained model on its device."""
        seed_everything(self.config.get("seed_everything", 0), verbose=False)
        sizes = {"vocab_size": self.data.vocab_size, "context_length": self.data.sequence_length}
        module = LanguageModel(**self.config["model"] | sizes, pad_token_id=self.data.pad_token_id)
        off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        with TemporaryDirectory() as folder, redirect_stdout(StringIO()):  # the tracker prints a summary
            fixed = {"max_steps": steps, "devices": 1, "default_root_dir": folder, "callbacks": tracker}
            trainer = Trainer(**self.config["trainer"] | off | fixed)
            start = time.perf_counter()
            trainer.fit(module, self.data)
            return time.perf_counter() - start, module.to(trainer.strategy.root_device)


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if min(options.steps, options.pairs, options.threads) < 1:
        parser.error("expected 1 or more of --steps, --pairs and --threads, got less; leave out what is not to be set")
    if not options.config.is_file():
        parser.error(f"expected a configuration, found no file at {options.config}; name one of configs/ with --config")
    torch.set_num_threads(options.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "(?s).*does not have many workers|.*isinstance.treespec, LeafSpec")
    try:
        job = Job(yaml.safe_load(options.config.read_text()), options.text)
    except (ValueError, OSError, yaml.YAMLError) as error:
        parser.error(str(error))
    where = facts(shlex.join(["python", "benchmarks/tracking_overhead.py", *sys.argv[1:]])) | {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "training": f"{options.config.name} on {job.data.description}",
    }
    print(*(f"{name}: {fact}" for name, fact in where.items()), "", sep="\n")
    steps, n_pairs = (job.max_steps, 1) if options.whole else (options.steps, options.pairs)
    schedule = job.schedule if options.whole else Schedule(every=max(1, steps // _MEASUREMENTS))
    job.pair(2, schedule)  # warms up
    pairs = []
    for number in tqdm(range(n_pairs), unit="pair"):
        pairs.append(pair := job.pair(steps, schedule, tracked_first=number % 2 == 1))
        seconds = f"{pair.tracked:.2f} s with / {pair.without:.2f} s without"
        tqdm.write(f"pair {number + 1}: {seconds} = {pair.tracked / pair.without:.4f}")
    print(*_report(pairs, job, derive=not options.whole), sep="\n")


def _report(pairs: Sequence[Pair], job: Job, derive: bool) -> Iterator[str]:
    ratios, one = _spread([pair.tracked / pair.without for pair in pairs], 4), pairs[0]
    yield f"measured: ratio {ratios} of {one.steps} steps with {one.measurements} measurements"
    own = _spread([pair.in_steps(pair.measuring) / pair.measurements for pair in pairs])
    yield f"one measurement: {_spread([pair.cost for pair in pairs])} training steps, by the tracker's own clock {own}"
    yield f"figures, once in a run: {_spread([pair.in_steps(pair.figures) for pair in pairs])} training steps"
    forward, kernels = map(median, zip(*(pair.shares for pair in pairs), strict=True))
    yield f"of a measurement: forward passes {forward:.0%}, kernels {kernels:.0%}, whether causal the rest"
    if derive:
        ratios = _spread([pair.derived(job.max_steps, job.due) for pair in pairs], 4)
        yield f"derived, not run: ratio {ratios} of {job.max_steps} steps with {job.due} measurements"


def _spread(values: Sequence[float], digits: int = 2) -> str:
    middle, low, high = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, length = parser.add_argument, parser.add_mutually_exclusive_group()
    add("--config", type=Path, default=Path(__file__).parents[1] / "configs/decoder_enwik8.yaml", help="of train.py")
    add("--text", default="builtin", metavar="FILE", help='text: "builtin", "enwik8", a path (default: %(default)s)')
    add("--threads", type=int, default=torch.get_num_threads(), help="on the CPU (default: torch's)")
    add("--pairs", type=int, default=3, help="of short runs (default: %(default)s)")
    length.add_argument("--steps", type=int, default=200, help="of a short run (default: %(default)s)")
    length.add_argument("--whole", action="store_true", help="one pair of runs of all steps, instead of short ones")
    return parser


if __name__ == "__main__":
    main()
