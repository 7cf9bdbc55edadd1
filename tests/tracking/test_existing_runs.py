"""A store that has a run of the name already, and a tracker without a with statement."""

import pytest
import torch
from small import HandWritten

from repdyn import Tracker, open_store
from repdyn.tracking.abandoned_steps import ABANDONED_FOLDER


@pytest.fixture
def train(tmp_path, small_probe, without_figures):
    def run(n_steps: int, **settings):
        torch.manual_seed(0)
        model = HandWritten()
        given = {"schedule": 2, "store": tmp_path / "mine", "on_error": "raise"} | settings
        with Tracker(model, small_probe, **given) as tracker:
            for _ in range(n_steps):
                torch.nn.init.constant_(model.head.bias, tracker.now + 1)
                tracker.step(tokens=10)
        return tracker

    return run


def test_a_run_goes_on_from_its_last_step(train):
    train(3)
    tracker = train(3, existing="continue")
    assert tracker.now == 6
    assert tracker.store.steps("mine") == [0, 2, 3, 4, 6]
    assert tracker.store.to_pandas()["tokens_seen"].max() == 60


@pytest.mark.parametrize("existing", ["continue", "replace", "number"])
def test_a_new_run_needs_no_earlier_one(train, existing):
    assert train(2, existing=existing).store.steps("mine") == [0, 2]


def test_a_run_that_ended_at_its_start_goes_on(train):
    train(0)
    assert train(2, existing="continue").store.steps("mine") == [0, 2]


def test_a_run_is_replaced_and_kept_aside(train):
    train(5)
    store = train(2, existing="replace").store
    assert store.steps("mine") == [0, 2]
    assert store.runs() == ["mine"]
    kept = store.folder_of("mine") / ABANDONED_FOLDER
    assert sorted(int(path.name[4:13]) for path in kept.glob("*/*.parquet")) == [0, 2, 4, 5]


def test_runs_are_numbered(train):
    train(5)
    train(2, existing="number")
    store = train(1, existing="number").store
    assert store.runs() == ["mine", "mine-2", "mine-3"]
    assert [store.steps(run) for run in store.runs()] == [[0, 2, 4, 5], [0, 2], [0, 1]]


def test_an_unknown_answer_is_refused(small_probe):
    with pytest.raises(ValueError, match="existing to be one of refuse, continue, replace, number, got 'overwrite'"):
        Tracker(HandWritten(), small_probe, existing="overwrite")  # pyright: ignore[reportArgumentType]


def test_start_and_finish(tmp_path, small_probe, without_figures):
    tracker = Tracker(HandWritten(), small_probe, 2, store=tmp_path / "mine", on_error="raise")
    assert tracker.start() is tracker
    for _ in range(3):
        tracker.step()
    tracker.finish()
    assert open_store(tmp_path / "mine").steps("mine") == [0, 2, 3]


def test_the_graph_of_a_loss_is_not_kept(tmp_path, small_probe, without_figures):
    model = HandWritten()
    with Tracker(model, small_probe, 10, store=tmp_path / "mine", on_error="raise") as tracker:
        loss = model(torch.zeros(1, 4, dtype=torch.long)).mean()
        tracker.step(loss=loss)
        assert loss.grad_fn is not None
        assert tracker._scalars["train/loss"].grad_fn is None
