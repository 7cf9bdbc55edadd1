"""What a sweep says of sampling designs: those of the store that it does not go on with, and its own."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console
from small import random_tokens
from synthetic_runs import DENSE, NO_DESIGN, fill, make_row

from repdyn import Probe
from repdyn.checkpoints.run import describe_other_designs
from repdyn.checkpoints.progress import ProgressDisplay
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.plan import Task


def task_of(design: str) -> Task:
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96, design=design)
    return Task(Target("lab/model", 8, "step8", repository="lab/model", commit="a" * 40), probe)


def test_values_of_another_design_are_reported_and_kept_separate(tmp_path):
    task, dense = task_of("independent"), task_of("dense")
    store = fill(tmp_path, [make_row(run="lab/model", probe=dense.probe.hash, **DENSE)])
    (told,) = describe_other_designs([task, task], store)
    assert f"has lab/model on the probe {dense.probe.hash} (sampling design dense)" in told
    assert f"on {task.probe.hash} (sampling design independent), form a separate curve" in told
    assert describe_other_designs([dense], store) == []


def test_values_without_a_design_are_reported(tmp_path):
    store = fill(tmp_path, [make_row(run="lab/model", probe="old", **NO_DESIGN)])
    (told,) = describe_other_designs([task_of("independent")], store)
    assert "old (sampling design not recorded)" in told


def test_warning_about_neighbours_in_the_same_window_is_printed_once():
    written = io.StringIO()
    display, task = ProgressDisplay(2, Console(file=written, width=100)), task_of("dense")
    row = make_row(metric="two_nn", own_window_excluded=False, same_window_share=0.5, **DENSE)
    display.warn_of_own_windows(task, [replace(row, same_window_share=0.05)])
    assert written.getvalue() == ""
    for _ in range(2):
        display.warn_of_own_windows(task, [row])
    assert written.getvalue().count("the nearest neighbour of 50% of the vectors of layer 0") == 1
    assert written.getvalue().startswith("lab/model step8: ")
