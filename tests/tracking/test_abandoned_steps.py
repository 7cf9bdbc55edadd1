"""A training that goes on from before its last measurement: what it has gone back from is kept, and not drawn."""

import pytest
import torch
from small import HandWritten

from repdyn import Tracker, open_store
from repdyn.alerts import AlertEvaluator
from repdyn.tracking.abandoned_steps import ABANDONED_FOLDER


@pytest.fixture
def train(tmp_path, small_probe, without_figures):
    """Train from a step to another, with weights that follow from a number, and return the store."""

    def run(first: int, last: int, branch: float = 0.0, **settings):
        torch.manual_seed(0)
        model = HandWritten()
        torch.nn.init.constant_(model.head.bias, first)
        given = {"schedule": 5, "store": tmp_path / "mine", "start": first, "on_error": "raise"} | settings
        with Tracker(model, small_probe, **given) as tracker:
            for step in range(first + 1, last + 1):
                torch.nn.init.constant_(model.head.bias, step + branch)
                tracker.step()
        return tracker.store

    return run


def set_aside(store):
    return sorted(path.name[4:13] for path in store.folder_of("mine").glob(f"{ABANDONED_FOLDER}/*/*.parquet"))


def test_steps_after_the_one_where_a_training_goes_on_are_set_aside(train, caplog):
    train(0, 11)
    store = train(5, 9, branch=0.5)
    assert store.steps("mine") == [0, 5, 9]
    assert set(store.to_pandas()["step"]) == {0, 5, 9}
    assert store.runs() == ["mine"]
    assert set_aside(store) == ["000000010", "000000011"]
    said = [record.message for record in caplog.records if "training goes on at step 5" in record.message]
    assert said == [
        f"training goes on at step 5; what the store had of later steps is in {store.folder_of('mine')}/abandoned/001"
    ]


def test_nothing_is_lost_if_a_training_goes_back_again_and_again(train):
    train(0, 11)
    train(5, 11, branch=0.5)
    store = train(5, 11, branch=0.75)
    assert store.steps("mine") == [0, 5, 10, 11]
    assert set_aside(store) == ["000000010", "000000010", "000000011", "000000011"]
    kept = open_store(store.folder_of("mine") / ABANDONED_FOLDER)
    assert kept.to_pandas()["value"].notna().any()  # a folder of each branch reads as a run of a store


def test_a_training_that_repeats_itself_takes_its_steps_back(train):
    store = train(0, 11)
    written = {path: path.stat().st_mtime_ns for path in store.path.rglob("step*.parquet")}
    assert train(5, 15).steps("mine") == [0, 5, 10, 11, 15]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert set_aside(store) == []


def test_a_training_that_stops_before_it_gets_there_leaves_them_aside(train):
    train(0, 11)
    store = train(5, 7)
    assert store.steps("mine") == [0, 5, 7]
    assert set_aside(store) == ["000000010", "000000011"]


def test_a_training_that_repeats_itself_for_a_while(train):
    train(0, 16)
    store = train(5, 10)
    assert store.steps("mine") == [0, 5, 10, 15, 16]
    store = train(10, 16, branch=0.5)
    assert store.steps("mine") == [0, 5, 10, 15, 16]
    assert set_aside(store) == ["000000015", "000000016"]


def test_alerts_follow_the_course_of_the_training(train):
    """The history of a resumed run has no step that was set aside."""
    train(0, 11)
    seen = []
    update = AlertEvaluator.update
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            AlertEvaluator, "update", lambda self, rows: seen.append(set(rows["step"])) or update(self, rows)
        )
        train(5, 16, branch=0.5)
    assert seen[0] == {0, 5}
