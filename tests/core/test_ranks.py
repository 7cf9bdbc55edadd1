"""Replicas on two processes: the first measures alone, without a word to the other, and mixes no
two models.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from small import HandWritten, random_tokens

from repdyn import Probe, Tracker, measure, open_store
from repdyn.views.alerts import Rule
from repdyn.views.publish import results


def attach(folder: Path, rank: int, ranks: str) -> str:
    """Track one step of a loop, and say what was raised."""
    try:
        with Tracker(
            model_of(rank),
            small(),
            schedule=1,
            store=folder,
            report=False,
            on_error="raise",
            ranks=ranks,
        ) as tracker:
            tracker.step(loss=1.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def stop_together(folder: Path, rank: int) -> str:
    """Train in a loop that stops as docs/alerts.md says, and give the step of the end."""
    rule = Rule(name="moves", when="below", bound=0.0, metrics=("train/loss",), stop=True)
    with Tracker(
        model_of(rank), small(), schedule=2, store=folder, report=False, alerts=[rule]
    ) as tracker:
        for step in range(8):
            tracker.step(loss=3.0 - step)
            stop = [tracker.should_stop]
            torch.distributed.broadcast_object_list(stop)
            if stop[0]:
                break
        return str(tracker.now)


def model_of(rank: int) -> HandWritten:
    torch.manual_seed(rank)  # replicas that differ, as by a mistake or by their statistics
    return HandWritten()


def small() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


CASES = {
    "on one": lambda folder, rank: "nothing" if rank else attach(folder, rank, "zero"),
    "on both": lambda folder, rank: attach(folder, rank, "zero"),
    "shared": lambda folder, rank: attach(folder, rank, "all"),
    "stop": stop_together,
}


def work(rank: int, folder: Path) -> None:
    """Run every case one after the other: starting two processes takes longer than all of them."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    results.show_run = lambda *_, **__: None  # the figures of the end, which are no subject here
    for name, case in CASES.items():
        (folder / f"{name}_{rank}").write_text(case(folder / name, rank))
    os._exit(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, folder)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
            pytest.fail("a rank waits for another")
    return folder


def said(folder: Path, case: str) -> list[str]:
    return [(folder / f"{case}_{rank}").read_text() for rank in (0, 1)]


@pytest.mark.process
@pytest.mark.parametrize("attached", ["on one", "on both"])
def test_rank_zero_measures_alone(folder, attached):
    """A tracker on one rank only hung, and two ranks with other weights gave values of neither."""
    assert said(folder, attached) == ["nothing", "nothing"]
    frame = open_store(folder / attached).to_pandas().dropna(subset="layer").query("step == 0")
    expected = (
        measure(model_of(0), small())
        .to_pandas()
        .sort_values(["metric", "subset", "layer"])["value"]
        .tolist()
    )
    assert frame.sort_values(["metric", "subset", "layer"])["value"].tolist() == pytest.approx(
        expected, nan_ok=True
    )
    assert set(frame["rank"]) == {0}


@pytest.mark.process
def test_replicas_that_differ_are_not_shared_out(folder):
    assert all("weights" in text and "rank" in text for text in said(folder, "shared"))


@pytest.mark.process
def test_a_loop_on_two_ranks_stops_on_both_at_the_same_step(folder):
    """The first rank alone knew of the stop, and the other one waited for its gradients."""
    assert said(folder, "stop") == ["6", "6"]
