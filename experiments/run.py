"""Train every run of a plan, several at a time, and go on where an earlier start was stopped.

  python -m experiments.run experiments/plans/matched_pair.yaml --text TEXT
  python -m experiments.run experiments/plans/matched_pair.yaml --text TEXT --workers 1 --threads 2
  python -m experiments.run experiments/plans/matched_pair.yaml --text TEXT --only 'seed[12]/*'
  python -m experiments.run experiments/plans/matched_pair.yaml --list
  RAY_ADDRESS=HEAD:6379 python -m experiments.run PLAN --text /shared/TEXT \\
      --output /shared/OUT --ray --workers 10

Each run is a process of its own. Ctrl-C stops all of them after the step they are at, and they save
a checkpoint; a killed one loses at most 100 steps. The same command goes on. A run that fails is
reported with its log, and the others go on. With --ray the runs are trained on the Ray cluster at
RAY_ADDRESS, whose machines see the text, the output folder and this checkout under the same paths.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table

from experiments.materials import Materials
from experiments.plan import Plan, Run
from experiments.train import PROGRESS
from experiments.workers import LocalWorker, RayWorker, Worker, connect_to_ray

_POLL_SECONDS = 1.0
_LINE_SECONDS = 60.0
"""Time between lines of progress where the output is no terminal."""
_STOP_SECONDS = 120.0
"""Time that stopped runs get to finish a step with its measurements, and to save a checkpoint."""

StartWorker: TypeAlias = Callable[[Run, Path], Worker]
"""Starts the training of a run, whose output goes to a file."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "plan", type=Path, help="YAML file, such as experiments/plans/matched_pair.yaml"
    )
    parser.add_argument("--text", help='text of the plan: a path, "enwik8" or "builtin"')
    parser.add_argument(
        "--output", type=Path, help="folder (default: runs/NAME, from the plan's name)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="runs at a time (default: one per core)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="only runs of these names, such as 'seed1/*'"
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="train on the Ray cluster at RAY_ADDRESS, or on a local one",
    )
    parser.add_argument(
        "--list", action="store_true", help="show the state of each run, and start none"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console()
    try:
        plan = Plan.read(options.plan)
        materials = Materials(plan, options.text or "", options.output or Path("runs") / plan.name)
        runs = [run for run in plan.runs if fnmatch(run.name, options.only)]
        if not runs:
            raise ValueError(
                f"expected --only to match a run of {options.plan}, got {options.only!r}"
            )
        if min(options.workers, options.threads) < 1:
            raise ValueError(
                f"expected at least 1 worker and thread, got {options.workers} and "
                f"{options.threads}"
            )
        if options.list:
            console.print(_table([Job(run, materials) for run in runs]))
            return
        if options.text is None:
            raise ValueError("expected --text, the text of the plan, got none")
        with console.status("preparing text, tokenizer and probes"):
            materials.prepare()
        start_worker = _start_worker(options, materials)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    finished = run_all(
        [Job(run, materials) for run in runs], start_worker, options.workers, console
    )
    raise SystemExit(0 if finished else 1)


def _start_worker(options: argparse.Namespace, materials: Materials) -> StartWorker:
    """Return what starts the worker of a run, here or on a cluster."""
    if options.ray:
        ray = connect_to_ray(options.workers, options.threads)
        return lambda run, log: RayWorker(
            ray=ray, materials=materials, run=run, log=log, threads=options.threads
        )
    command = [sys.executable, "-m", "experiments.train", str(options.plan), "--text", options.text]
    command += ["--output", str(materials.folder), "--threads", str(options.threads)]
    return lambda run, log: LocalWorker([*command, run.name], log, options.threads)


@dataclass
class Job:
    """A run and the worker that trains it."""

    run: Run
    materials: Materials
    worker: Worker | None = None
    error: str = ""
    _progress: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.materials.run_folder(self.run) / "log.txt"

    @property
    def is_finished(self) -> bool:
        return self.materials.is_finished(self.run)

    @property
    def is_waiting(self) -> bool:
        return self.worker is None and not self.is_finished and not self.error

    @property
    def progress(self) -> dict[str, Any]:
        """Step, loss and seconds per step, as the run last wrote them; empty before its
        first step.
        """
        path = self.materials.run_folder(self.run) / PROGRESS
        if path.exists():
            self._progress = json.loads(path.read_text())
        return self._progress

    @property
    def seconds_left(self) -> float | None:
        """Time to the end of the run at its pace so far; None if nothing is known."""
        if self.is_finished:
            return 0.0
        pace = self.progress.get("seconds_per_step")
        return pace and pace * (self.progress["max_steps"] - self.progress["step"])

    @property
    def state(self) -> str:
        if self.is_finished:
            return "finished"
        if self.error:
            return f"failed: {self.error}"
        return (
            "waiting"
            if self.worker is None and not self.progress
            else "stopped"
            if self.worker is None
            else "running"
        )

    def start(self, start_worker: StartWorker) -> None:
        """Start the worker of the run, whose output goes to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        (self.log.parent / PROGRESS).unlink(missing_ok=True)
        self.worker = start_worker(self.run, self.log)

    def poll(self) -> None:
        """Notice the end of the worker."""
        status = self.worker and self.worker.exit_status()
        if status is None:
            return
        self.worker = None
        if not self.is_finished:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            self.error = f"exit status {status}: {lines[-1] if lines else 'no output'} ({self.log})"


def run_all(jobs: list[Job], start_worker: StartWorker, workers: int, console: Console) -> bool:
    """Run jobs until all are finished or have failed, and return whether all are finished.

    Raises:
        SystemExit: Ctrl-C or SIGTERM, after the running jobs were stopped.
    """
    with _stopping(jobs), Live(console=console, auto_refresh=False, transient=False) as live:
        said = time.monotonic()
        while any(job.is_waiting or job.worker for job in jobs):
            for job in jobs:
                job.poll()
                if job.is_waiting and sum(other.worker is not None for other in jobs) < workers:
                    job.start(start_worker)
            if console.is_terminal:
                live.update(_table(jobs, workers), refresh=True)
            elif time.monotonic() - said > _LINE_SECONDS:
                said = time.monotonic()
                console.print(_line(jobs, workers), highlight=False)
            time.sleep(_POLL_SECONDS)
    console.print(_table(jobs))
    return all(job.is_finished for job in jobs)


@contextmanager
def _stopping(jobs: list[Job]) -> Iterator[None]:
    """Stop all workers when this process is interrupted or terminated, or fails."""

    def exit_at_signal(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {
        number: signal.signal(number, exit_at_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number in handlers:
            signal.signal(number, signal.SIG_IGN)  # the checkpoints come first
        running = [job.worker for job in jobs if job.worker is not None]
        for worker in running:
            worker.interrupt()
        deadline = time.monotonic() + _STOP_SECONDS
        while (
            any(worker.exit_status() is None for worker in running) and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        for worker in running:
            if worker.exit_status() is None:
                worker.kill()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def expected_end(jobs: list[Job], workers: int) -> datetime | None:
    """Return when all jobs are expected to be finished, at the mean pace of the running ones; None
    if not known.
    """
    paces = [pace for job in jobs if job.worker and (pace := job.progress.get("seconds_per_step"))]
    if not paces:
        return None
    pace = sum(paces) / len(paces)
    steps = sum(
        job.run.training["max_steps"] - job.progress.get("step", 0)
        for job in jobs
        if not job.is_finished and not job.error
    )
    return datetime.now() + timedelta(seconds=pace * steps / min(workers, len(jobs)))


def _table(jobs: list[Job], workers: int | None = None) -> Table:
    end = expected_end(jobs, workers) if workers else None
    table = Table(title=None if end is None else f"expected end: {end:%Y-%m-%d %H:%M}")
    for name in ("run", "state", "step", "of", "loss", "s/step"):
        table.add_column(name, justify="left" if name in {"run", "state"} else "right")
    for job in jobs:
        progress = job.progress
        table.add_row(
            job.run.name,
            job.state,
            str(progress.get("step", "")),
            str(job.run.training["max_steps"]),
            "" if progress.get("loss") is None else f"{progress['loss']:.3f}",
            "" if not progress.get("seconds_per_step") else f"{progress['seconds_per_step']:.2f}",
        )
    return table


def _line(jobs: list[Job], workers: int) -> str:
    running = ", ".join(
        f"{job.run.name} {job.progress.get('step', 0)}" for job in jobs if job.worker
    )
    end = expected_end(jobs, workers)
    done = sum(job.is_finished for job in jobs)
    return (
        f"{done} of {len(jobs)} runs finished; {running}; expected end {end:%Y-%m-%d %H:%M}"
        if end
        else (f"{done} of {len(jobs)} runs finished; {running}")
    )


if __name__ == "__main__":
    main()
