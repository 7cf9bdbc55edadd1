"""A run only ever grows: trainings that stop and go on, branch off, start again, or move."""

import copy
import hashlib
import json
import pickle
import shutil
from pathlib import Path
from unittest.mock import Mock

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from jobs import Job, Repeatable, batches, tiny_language_model, tracker, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from small import HandWritten, random_tokens

from repdyn import Probe, Tracker, measure, open_store
from repdyn.callbacks import SavePretrainedCheckpoint
from repdyn.measurement.measure import measure_with

pytestmark = pytest.mark.usefixtures("without_figures")


def saving(folder: Path, every: int = 2) -> ModelCheckpoint:
    return ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1, filename="{step}")


def files(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.parquet")
    }


def values(frame, step: int) -> list[float]:
    rows = frame[(frame["step"] == step) & frame["layer"].notna()]
    return rows.sort_values(["metric", "subset", "layer"])["value"].tolist()


class RestoresLate(SingleDeviceStrategy):
    """Restores after its setup, as FSDP does: at on_fit_start nobody knows yet that a run goes
    on.
    """

    restore_checkpoint_after_setup = True


@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
def test_resume_goes_on_in_its_history_and_measures_nothing_again(
    tmp_path, small_probe, monkeypatch, is_late
):
    pl.seed_everything(1)
    settings = {"logger": False, "overfit_batches": 1}
    first = tracker(small_probe, 2)
    second = tracker(small_probe, 2)
    trainer(tmp_path / "job", first, saving(tmp_path / "saved"), max_steps=6, **settings).fit(
        Repeatable(), batches(shuffle=False)
    )
    before = files(tmp_path)
    measure = Mock(wraps=measure_with)
    monkeypatch.setattr("repdyn.tracking.run.measure_with", measure)
    if is_late:
        settings["strategy"] = RestoresLate(torch.device("cpu"))
    trainer(tmp_path / "job", second, **settings).fit(
        Repeatable(), batches(shuffle=False), ckpt_path=tmp_path / "saved" / "step=4.ckpt"
    )
    assert measure.call_count == 1  # at step 8
    assert second.store.path == first.store.path
    assert second.store.runs() == ["job"]
    assert second.store.steps("job") == [0, 2, 4, 6, 8]
    frame = second.store.to_pandas()
    assert frame.groupby("run_id")["step"].unique().map(list).tolist() in (
        [[0, 2, 4, 6], [8]],
        [[8], [0, 2, 4, 6]],
    )
    assert frame.groupby("step")["tokens_seen"].first()[8] == 8 * 48
    assert before.items() <= files(tmp_path).items()


def test_the_first_comparison_of_a_resumed_run_is_with_the_last_step_of_its_parent(
    tmp_path, small_probe
):
    settings = {"logger": False, "overfit_batches": 1}
    for n_steps, checkpoint in ((4, None), (8, tmp_path / "saved" / "step=4.ckpt")):
        tracked = tracker(small_probe, 2, metrics=["cka_previous"])
        fit = trainer(
            tmp_path / "job", tracked, saving(tmp_path / "saved"), max_steps=n_steps, **settings
        ).fit
        fit(Repeatable(), batches(shuffle=False), ckpt_path=checkpoint)
    frame = tracked.store.to_pandas().query("metric == 'cka_previous'")
    compared = (
        frame[frame["layer"].notna() & (frame["step"] > 0)].groupby("step")["compared_to"].unique()
    )
    assert compared.map(list).to_dict() == {2: [0], 4: [2], 6: [4], 8: [6]}


class KilledLoop:
    """A training with a checkpoint every 4 steps that is killed and goes on from the last of them,
    with ``train(until)`` as often as wanted.
    """

    def __init__(self, probe: Probe, store: Path, **settings) -> None:
        self.probe = probe
        self.settings = {"store": store, "schedule": 2, "report": False, "on_error": "raise"}
        self.settings |= settings
        self.saved = None

    def train(self, until: int, *, is_killed: bool = True) -> Tracker:
        torch.manual_seed(0)
        model = HandWritten()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        resume, start = None, 0
        if self.saved is not None:
            weights, resume = copy.deepcopy(self.saved)
            model.load_state_dict(weights)
            start = resume["step"]
        tracked = Tracker(
            model, self.probe, metrics=["cka_previous"], resume=resume, **self.settings
        ).start()
        for step in range(start + 1, until + 1):
            ids = random_tokens(8, 12, seed=step)
            loss = torch.nn.functional.cross_entropy(model.eval()(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracked.step()
            if step % 4 == 0:
                self.saved = copy.deepcopy((model.state_dict(), tracked.state_dict()))
        if not is_killed:
            tracked.finish()
        return tracked


def of_path(tracked: Tracker) -> dict[int, tuple[list[float], list[float]]]:
    """By step, the values of a history and the steps that they were compared with."""
    frame = tracked.store.to_pandas(tracked.state_dict()["run"])
    frame = frame[frame["layer"].notna() & (frame["step"] > 0)].sort_values("layer")
    return {
        int(step): (rows["value"].tolist(), rows["compared_to"].tolist())
        for step, rows in frame.groupby("step")
    }


@pytest.mark.parametrize("loses_states", [False, True])
def test_kills_do_not_change_what_a_step_is_compared_with(tmp_path, small_probe, loses_states):
    """Where a resumed run took over the rows of a step, the next was compared with an older one, or
    with none; also where the run that had measured it has deleted its states.
    """
    undisturbed = KilledLoop(small_probe, tmp_path / "a").train(20, is_killed=False)
    job = KilledLoop(small_probe, tmp_path / "b")
    for until in (7, 11, 9, 13, 19, 17):
        job.train(until)
        if loses_states:
            for states in tmp_path.glob("b/*/kept_states"):
                shutil.rmtree(states)
    finished = job.train(20, is_killed=False)
    expected = of_path(undisturbed)
    if loses_states:  # no one has the states before the first step after a kill
        expected = {step: each for step, each in expected.items() if step % 4 != 2}
    assert expected.items() <= of_path(finished).items()
    assert {step: compared for step, (_, compared) in expected.items()}[20] == [18] * 4


def test_a_run_that_measured_nothing_passes_on_what_it_went_on_from(tmp_path, small_probe):
    """The parent of its parent has measured the step before, and the value was missing."""
    loops = [KilledLoop(small_probe, tmp_path / name, schedule=10) for name in "ab"]
    undisturbed = loops[0].train(20, is_killed=False)
    loops[1].train(13)
    loops[1].train(17)  # from 12, and the next one from 16
    assert of_path(loops[1].train(20, is_killed=False)) == of_path(undisturbed)


def test_a_branch_leaves_the_run_that_it_left_untouched(tmp_path, small_probe):
    """From a checkpoint in the middle, with another learning rate, in the same place."""
    settings = {"logger": False}
    first = tracker(small_probe, 2)
    second = tracker(small_probe, 2)
    trainer(tmp_path / "job", first, saving(tmp_path / "saved"), **settings).fit(Job(), batches())
    before = files(tmp_path)
    trunk = first.store.to_pandas()
    job = Job(learning_rate=1e-4)
    trainer(tmp_path / "job", second, **settings).fit(
        job, batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt"
    )
    assert before.items() <= files(tmp_path).items()
    frame = second.store.to_pandas()
    runs = second.store.runs()
    assert len(runs) == 2
    assert all(second.store.steps(name) == [0, 2, 4, 6, 8] for name in runs)
    assert values(frame.query("run == 'job'"), 8) == values(trunk, 8)
    expected = (
        measure(job, small_probe)
        .to_pandas()
        .sort_values(["metric", "subset", "layer"])["value"]
        .tolist()
    )
    np.testing.assert_array_equal(values(frame.query("run != 'job'"), 8), expected)


def test_a_branch_in_another_root_folder_has_its_own_store(tmp_path, small_probe):
    trainer(
        tmp_path / "a", tracker(small_probe), saving(tmp_path / "a" / "saved"), max_steps=4
    ).fit(Job(), batches())
    before = files(tmp_path / "a")
    branch = tracker(small_probe)
    trainer(tmp_path / "b", branch).fit(
        Job(1e-3), batches(), ckpt_path=tmp_path / "a" / "saved" / "step=4.ckpt"
    )
    assert branch.store.path == tmp_path / "b" / "job" / "0" / "repdyn"
    assert files(tmp_path / "a") == before
    assert branch.store.steps("job/0") == [
        0,
        4,
        8,
    ]  # with the common part, which is in the other store
    moved = shutil.move(tmp_path / "a", tmp_path / "moved")
    later = tracker(small_probe)
    logger = CSVLogger(moved, name="job", version="1")
    trainer(moved, later, logger=logger).fit(
        Job(), batches(), ckpt_path=moved / "saved" / "step=4.ckpt"
    )
    assert later.store.path == moved / "job" / "0" / "repdyn"


def test_what_the_user_gives_wins_over_what_a_checkpoint_remembers(tmp_path, small_probe):
    """The folder was moved, with its history; and another probe, schedule and metric are no reason
    to refuse.
    """
    trainer(
        tmp_path / "a", tracker(small_probe), saving(tmp_path / "a" / "saved"), max_steps=4
    ).fit(Job(), batches())
    shutil.move(tmp_path / "a", tmp_path / "moved")
    other = Probe.from_tokens(random_tokens(24, 12, seed=5), max_vectors=192, batch_vectors=96)
    attached = tracker(other, 3, store=tmp_path / "given", metrics=["two_nn"])
    trainer(tmp_path / "b", attached).fit(
        Job(), batches(), ckpt_path=tmp_path / "moved" / "saved" / "step=4.ckpt"
    )
    assert attached.store.path == tmp_path / "given"
    frame = attached.store.to_pandas()
    assert set(frame.loc[frame["step"] > 4, "probe"]) == {other.hash}
    assert attached.store.steps("job/0") == [0, 4, 6, 8]


def test_the_checkpoint_remembers_built_in_types_alone(tmp_path, small_probe):
    other = tracker(small_probe, 3, metrics=["two_nn"], name="other")
    trainer(tmp_path, tracker(small_probe), saving(tmp_path), other).fit(Job(), batches())
    loaded = torch.load(tmp_path / "step=8.ckpt", weights_only=True)
    states = [
        state
        for key, state in loaded["callbacks"].items()
        if key.startswith("RepresentationDynamics")
    ]
    assert [state["run"].partition("--")[0] for state in states] == ["job/0", "job/0.other"]
    assert {state["tokens_seen"] for state in states} == {8 * 48}


def test_a_cell_that_runs_twice_makes_two_runs(tmp_path, small_probe):
    jobs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        jobs.append(Job())
        trainer(tmp_path, tracker(small_probe), logger=False).fit(jobs[-1], batches())
    store = open_store(tmp_path / "repdyn")
    frame = store.to_pandas()
    assert len(store.runs()) == 2
    for run, job in zip(store.runs(), jobs, strict=True):
        expected = (
            measure(job, small_probe)
            .to_pandas()
            .sort_values(["metric", "subset", "layer"])["value"]
            .tolist()
        )
        is_of_run = frame["run"] == run
        np.testing.assert_array_equal(values(frame[is_of_run], 8), expected)


def test_one_callback_serves_folds_and_copies_serve_trials(tmp_path, small_probe):
    attached = tracker(small_probe)
    trackers = [attached, attached]
    for number, tracked in enumerate(trackers):
        trainer(tmp_path / str(number), tracked).fit(Job(), batches())
        assert tracked.store.path == tmp_path / str(number) / "job" / "0" / "repdyn"
        assert tracked.store.to_pandas()["tokens_seen"].max() == 8 * 48
    for number, tracked in enumerate(
        (copy.deepcopy(attached), pickle.loads(pickle.dumps(attached))), 2
    ):
        trainer(tmp_path / str(number), tracked).fit(Job(), batches())
        assert tracked.store.steps("job/0") == [0, 4, 8]


def test_fit_twice_with_one_trainer_is_one_curve(tmp_path, small_probe):
    attached = tracker(small_probe)
    job = Job()
    fitting = trainer(tmp_path, attached, max_steps=4)
    fitting.fit(job, batches())
    fitting.fit_loop.epoch_loop.max_steps = 8
    fitting.fit(job, batches())
    assert attached.store.runs() == ["job/0"]
    assert attached.store.steps("job/0") == [0, 4, 8]


def test_a_measurement_that_failed_is_made_up_for_on_resume(tmp_path, small_probe, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr("repdyn.tracking.run.measure_with", lambda *a, **k: 1 / 0)
        first = tracker(small_probe, on_error="warn")
        trainer(tmp_path / "run", first, saving(tmp_path / "saved"), max_steps=4).fit(
            Job(), batches()
        )
    second = tracker(small_probe)
    trainer(tmp_path / "run", second).fit(
        Job(), batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt"
    )
    frame = second.store.to_pandas()
    assert set(frame.loc[frame["layer"].notna(), "step"]) == {4, 8}
    assert set(frame.loc[frame["reason"].notna(), "step"]) == {0}


def test_saved_folders_of_two_runs_keep_apart(tmp_path):
    for run in ("a", "b"):
        trainer(tmp_path / run, SavePretrainedCheckpoint(4, tmp_path / "saved")).fit(
            tiny_language_model(), batches()
        )
    assert {path.name for path in tmp_path.glob("saved*")} == {"saved", "saved-2"}
    assert len(list((tmp_path / "saved-2").glob("step*"))) == 3


def train(model, probe, n_steps: int, **settings) -> Tracker:
    with Tracker(model, probe, schedule=2, on_error="raise", report=False, **settings) as tracked:
        for _ in range(n_steps):
            torch.nn.init.constant_(model.head.bias, tracked.now + 1.0)
            tracked.step(tokens=np.int64(10))
    return tracked


def test_a_loop_of_ones_own_goes_on_by_its_state_or_by_its_first_step(tmp_path, small_probe):
    model = HandWritten()
    first = train(model, small_probe, 3, store=tmp_path / "mine")
    state = json.loads(json.dumps(first.state_dict()))  # of built-in types alone
    second = train(model, small_probe, 3, store=tmp_path / "mine", resume=state)
    third = train(model, small_probe, 2, store=tmp_path / "mine", start=6)
    assert second.now == 6
    assert third.store.runs() == ["mine"]
    assert third.store.steps("mine") == [0, 2, 3, 4, 6, 8]
    assert second.store.to_pandas()["tokens_seen"].max() == 60
