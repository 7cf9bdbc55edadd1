"""How many files and functions of repdyn a scheduled step enters, and how many calls of Python it
and a measurement take.

    python benchmarks/calls_of_a_step.py           # the figures
    python benchmarks/calls_of_a_step.py --list    # the functions too, file by file

The model is that of `configs/quickstart.yaml`, untrained. The step is the second measured one of a
tracker with a logger, and what is counted are the calls of the training's own thread. Functions
without a name of their own (lambdas, comprehensions) count as calls alone.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
import yaml
from measurement_cost import ROOT, job_of

from repdyn import Tracker, measure


class Silent:
    """A logger that keeps nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        pass


def calls_of(function: Callable[[], Any]) -> tuple[int, dict[str, Counter[str]]]:
    """Return the number of calls of Python in this thread while a function runs, and those of
    repdyn by file and function.
    """
    n_calls = 0
    by_file: dict[str, Counter[str]] = {}

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal n_calls
        if event != "call":
            return
        n_calls += 1
        code = frame.f_code
        _, package, file = code.co_filename.partition("/repdyn/")
        if package:
            by_file.setdefault(file, Counter())[code.co_qualname] += 1

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return n_calls, by_file


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the functions")
    options = parser.parse_args()
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    job = job_of(config, torch.device("cpu"), in_float32=True)
    model = job.module.model
    n_fresh, _ = calls_of(lambda: measure(model, job.probe))
    print(f"a fresh measurement: {n_fresh:,} calls of Python")
    with (
        tempfile.TemporaryDirectory() as folder,
        Tracker(model, job.probe, 1, store=folder, loggers=[Silent()], report=False) as tracker,
    ):
        job.step()
        tracker.step()
        job.step()
        n_calls, by_file = calls_of(tracker.step)
    named = {
        file: sorted(name for name in functions if not name.endswith(">"))
        for file, functions in sorted(by_file.items())
    }
    n_named = sum(map(len, named.values()))
    print(f"a scheduled step: {len(named)} files, {n_named} named functions, {n_calls:,} calls")
    if options.list:
        for file, names in named.items():
            print(f"  {file}: {', '.join(names)}")


if __name__ == "__main__":
    main()
