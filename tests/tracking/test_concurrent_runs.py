"""Trainings that start in the same second with the same name and store, and a store that is deleted meanwhile."""

import shutil

import pytest
import torch
from jobs import Repeatable, batches, tracker, trainer
from small import HandWritten

from repdyn import Tracker, open_store
from repdyn.store.remote_errors import RemoteError
from repdyn.tracking import run_claims

URL = "faulty://host/runs/mine"


@pytest.fixture
def train(tmp_path, small_probe, without_figures):
    """Return a function that tracks a loop of some steps, and calls ``meanwhile`` before the last one."""

    def run(n_steps: int = 3, meanwhile=lambda: None, **settings):
        torch.manual_seed(0)
        model = HandWritten()
        given = {"schedule": 1, "store": tmp_path / "mine", "on_error": "raise", "metrics": ["anisotropy"]} | settings
        with Tracker(model, small_probe, run="mine", **given) as tracked:
            for number in range(n_steps):
                if number == n_steps - 1:
                    meanwhile()
                torch.nn.init.constant_(model.head.bias, tracked.now + 1)
                tracked.step()
        return tracked.store

    return run


@pytest.fixture
def elsewhere(elsewhere):
    return lambda: elsewhere(URL)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_run_that_another_process_has_just_started_is_left_to_it(
    train, tmp_path, faulty, elsewhere, caplog, is_remote
):
    """As tasks of a job array start, which have measured nothing yet when they look for each other's steps."""
    place = URL if is_remote else tmp_path / "mine"
    other = elsewhere() if is_remote else open_store(place)
    claim = other.claim_name("run mine")
    assert claim is not None
    assert train(store=place).runs() == ["mine-2"]
    assert "another process measures mine in" in caplog.text
    assert "this one is called mine-2" in caplog.text
    claim.release()
    caplog.clear()
    store = train(store=place)
    assert store.runs() == ["mine", "mine-2"]
    assert [store.steps(run) for run in store.runs()] == [[0, 1, 2, 3]] * 2
    assert caplog.text == ""
    for run in store.runs():  # a training that has ended leaves its name to others
        claim = other.claim_name(f"run {run}")
        assert claim is not None
        claim.release()


def test_a_training_that_goes_on_says_that_another_one_does(train, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(run_claims, "RESUME_SECONDS", 0.0)
    train()
    claim = open_store(tmp_path / "mine").claim_name("run mine")
    store = train(existing="continue")
    assert claim is not None
    assert store.steps("mine") == [0, 1, 2, 3, 4, 5, 6]
    assert "another process measures mine in" in caplog.text


def test_a_store_without_claims_is_used_all_the_same(train, faulty, caplog, monkeypatch):
    monkeypatch.setattr("repdyn.store.remote.acquire", lambda *_: (_ for _ in ()).throw(RemoteError("no answer")))
    assert train(store=URL).steps("mine") == [0, 1, 2, 3]
    assert "no other training may call itself mine" in caplog.text


def test_a_checkpoint_knows_the_name_that_a_run_has_got(tmp_path, small_probe, without_figures):
    attached = tracker(small_probe, 2, run="mine", store=tmp_path / "store", metrics=["anisotropy"])
    claim = open_store(tmp_path / "store").claim_name("run mine")
    assert claim is not None
    trainer(tmp_path, attached, max_steps=2).fit(Repeatable(), batches())
    claim.release()
    assert attached.state_dict()["run"] == "mine-2"
    assert open_store(tmp_path / "store").runs() == ["mine-2"]


def test_a_store_that_is_deleted_is_written_again(train, tmp_path, caplog):
    whole = train(4, store=tmp_path / "whole").to_pandas()
    store = train(4, lambda: shutil.rmtree(tmp_path / "mine"))
    columns = ["run", "step", "layer", "metric", "value", "weights"]
    assert store.to_pandas()[columns].equals(whole[columns])
    assert store.steps("mine") == [0, 1, 2, 3, 4]
    assert len(list((store.path / "probes").iterdir())) == 1
    assert store.alerts_path("mine").exists()
    assert "mine was deleted; the 5 files of this process are written again" in caplog.text


def test_steps_that_were_gone_back_from_are_not_written_again(train, tmp_path, small_probe, without_figures):
    with Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine", metrics=["anisotropy"]) as tracked:
        for _ in range(3):
            tracked.step()
        tracked._tracked._buffer.go_back("mine", 1)
        shutil.rmtree(tmp_path / "mine")
        tracked.step()
    assert tracked.store.steps("mine") == [0, 1, 4]


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_run_whose_folder_is_a_link_is_not_written_through(train, tmp_path, on_error):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="expected a folder for the run 'mine' in .*, got a symbolic link"):
        train(on_error=on_error)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert run_claims._held == {}
