"""Replicas on two processes: the first measures alone, without a word to the other, and mixes no two models."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small import HandWritten, random_tokens

from repdyn import Probe, Tracker, measure, open_store
from repdyn.alerts import Rule
from repdyn.publish import results


def join(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(rank)  # replicas that differ, as by a mistake or by their statistics
    results.show_run = lambda *_, **__: None  # the figures of the end, which are no subject here


def work(rank: int, folder: str, attached: tuple[int, ...], ranks: str) -> None:
    join(rank, folder)
    model = HandWritten()
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    said = "nothing"
    if rank in attached:
        try:
            with Tracker(
                model, probe, schedule=1, store=f"{folder}/mine", report=False, on_error="raise", ranks=ranks
            ) as tracker:
                tracker.step(loss=1.0)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    Path(folder, f"said_{rank}").write_text(said)
    os._exit(0)


def stop_together(rank: int, folder: str) -> None:
    """A loop that stops as docs/alerts.md says."""
    join(rank, folder)
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    rule = Rule(name="moves", when="below", bound=0.0, metrics=("train/loss",), stop=True)
    with Tracker(HandWritten(), probe, schedule=2, store=f"{folder}/mine", report=False, alerts=[rule]) as tracker:
        for step in range(8):
            tracker.step(loss=3.0 - step)
            stop = [tracker.should_stop]
            torch.distributed.broadcast_object_list(stop)
            if stop[0]:
                break
        Path(folder, f"said_{rank}").write_text(str(tracker.now))
    os._exit(0)


def run(folder: Path, *arguments: object, target: Callable[..., None] = work) -> list[str]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(rank, str(folder), *arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
            pytest.fail("a rank waits for another")
    return [(folder / f"said_{rank}").read_text() for rank in (0, 1)]


@pytest.mark.process
@pytest.mark.parametrize("attached", [(0,), (0, 1)], ids=["on one rank", "on both"])
def test_rank_zero_measures_alone(tmp_path, attached):
    """A tracker on one rank only hung, and two ranks with other weights gave values of neither."""
    assert run(tmp_path, attached, "zero") == ["nothing", "nothing"]
    torch.manual_seed(0)
    model = HandWritten()
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    frame = open_store(tmp_path / "mine").to_pandas().dropna(subset="layer").query("step == 0")
    expected = measure(model, probe).to_pandas().sort_values(["metric", "subset", "layer"])["value"].tolist()
    assert frame.sort_values(["metric", "subset", "layer"])["value"].tolist() == pytest.approx(expected, nan_ok=True)
    assert set(frame["rank"]) == {0}


@pytest.mark.process
def test_replicas_that_differ_are_not_shared_out(tmp_path):
    said = run(tmp_path, (0, 1), "all")
    assert all("weights" in text and "rank" in text for text in said)


@pytest.mark.process
def test_a_loop_on_two_ranks_stops_on_both_at_the_same_step(tmp_path):
    """The first rank alone knew of the stop, and the other one waited for its gradients."""
    assert run(tmp_path, target=stop_together) == ["6", "6"]
