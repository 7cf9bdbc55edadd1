"""Whatever else a trainer does, each scheduled step is measured once and nothing beside it."""

from __future__ import annotations

from datetime import timedelta

import lightning.pytorch as pl
import pytest
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, StochasticWeightAveraging


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"num_sanity_val_steps": 2, "val_check_interval": 3}, [0, 4, 8], id="sanity check, mid-epoch"),
        pytest.param({"overfit_batches": 2, "max_steps": 5}, [0, 4, 5], id="overfit_batches"),
        pytest.param({"limit_train_batches": 3, "max_epochs": 2, "max_steps": -1}, [0, 4, 6], id="epochs"),
        pytest.param({"accumulate_grad_batches": 3, "max_steps": 4}, [0, 4], id="accumulation"),
        pytest.param({"accumulate_grad_batches": 5, "max_steps": -1, "max_epochs": 1}, [0, 3], id="a remainder"),
        pytest.param({"reload_dataloaders_every_n_epochs": 1, "max_steps": 14}, [0, 4, 8, 12, 14], id="reloading"),
        pytest.param({"gradient_clip_val": 0.1}, [0, 4, 8], id="clipping"),
        pytest.param({"detect_anomaly": True, "max_steps": 4}, [0, 4], id="anomaly detection"),
        pytest.param({"inference_mode": False, "val_check_interval": 3}, [0, 4, 8], id="no inference mode"),
        pytest.param({"precision": "bf16-true", "max_steps": 4}, [0, 4], id="bf16-true"),
        pytest.param({"max_steps": 0}, [], id="no step"),
    ],
)
def test_steps(tmp_path, probe, settings, expected):
    attached = tracker(probe, 4)
    trainer(tmp_path, attached, **settings).fit(Job(), batches(), batches(shuffle=False, n=8))
    assert attached.store.steps("job/0") == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "callback",
    [lambda: StochasticWeightAveraging(1e-3, swa_epoch_start=1), lambda: GradientAccumulationScheduler({0: 2, 1: 4})],
    ids=["weight averaging", "changing accumulation"],
)
def test_beside_callbacks_that_change_the_training(tmp_path, probe, callback):
    attached = tracker(probe, 4)
    trained = trainer(tmp_path, attached, callback(), max_steps=-1, max_epochs=3)
    trained.fit(Job(), batches())
    steps = attached.store.steps("job/0")
    assert steps[0] == 0
    assert steps[-1] == trained.global_step
    assert set(range(0, trained.global_step, 4)) <= set(steps)


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [True, 5], ids=["one step", "five steps"])
def test_fast_dev_run_measures_once_and_stores_nothing(tmp_path, probe, monkeypatch, n_steps):
    measured = []
    from repdyn.tracking import tracked_run as run

    measure = run.measure
    monkeypatch.setattr(
        "repdyn.tracking.tracked_run.measure_with", lambda *a, **k: measured.append(1) or measure(*a, **k)
    )
    attached, job = tracker(probe, 1), Job()
    trainer(tmp_path, attached, fast_dev_run=n_steps).fit(job, batches(), batches(shuffle=False, n=8))
    assert len(job.losses) == int(n_steps)
    assert len(measured) == 1
    assert attached.store is None
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
def test_max_time_measures_the_end(tmp_path, probe):
    attached = tracker(probe, 10**6)
    trained = trainer(tmp_path, attached, max_steps=-1, max_epochs=10**6, max_time=timedelta(seconds=1))
    trained.fit(Job(), batches())
    assert trained.global_step > 0
    assert attached.store.steps("job/0") == [0, trained.global_step]


@pytest.mark.slow
def test_several_trainers_take_turns_in_one_process(tmp_path, probe):
    """Two runs under way at once, as a sweep of hyperparameters in one notebook has them."""
    trackers = [tracker(probe, 2), tracker(probe, 2)]
    jobs = [Job(), Job(learning_rate=1e-3)]
    trainers = [trainer(tmp_path / str(i), attached, max_steps=2) for i, attached in enumerate(trackers)]
    for until in (2, 4):
        for trained, job in zip(trainers, jobs, strict=True):
            trained.fit_loop.epoch_loop.max_steps = until
            trained.fit(job, batches())
    assert [attached.store.steps("job/0") for attached in trackers] == [[0, 2, 4]] * 2
    assert trackers[0].store.path != trackers[1].store.path


def test_validating_testing_and_predicting_measure_nothing(tmp_path, probe):
    class Whole(Job):
        test_step = Job.validation_step

        def predict_step(self, batch, batch_idx):
            return self(batch["input_ids"])

    attached = tracker(probe, 1)
    running = trainer(tmp_path, attached)
    running.validate(Whole(), batches(shuffle=False, n=8), verbose=False)
    running.test(Whole(), batches(shuffle=False, n=8), verbose=False)
    running.predict(Whole(), batches(shuffle=False, n=8))
    assert attached.store is None
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
def test_a_checkpoint_saved_by_hand_is_measured_once(tmp_path, probe):
    class Saving(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "by hand.ckpt")

    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_last=True)
    attached = tracker(probe, "checkpoints")
    trainer(tmp_path, attached, Saving(), saving).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 3, 4, 8]


@pytest.mark.slow
def test_a_trainer_stopped_from_within_measures_the_end(tmp_path, probe):
    class Stopping(Job):
        def training_step(self, batch, batch_idx):
            self.trainer.should_stop = batch_idx == 2
            return super().training_step(batch, batch_idx)

    attached = tracker(probe, 100)
    trainer(tmp_path, attached).fit(Stopping(), batches())
    assert attached.store.steps("job/0") == [0, 3]


@pytest.mark.slow
def test_a_step_that_returns_nothing_is_skipped_and_counted_as_lightning_counts_it(tmp_path, probe):
    class Skipping(Job):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    attached = tracker(probe, 1)
    trained = trainer(tmp_path, attached, max_steps=3)
    trained.fit(Skipping(), batches())
    assert attached.store.steps("job/0") == [0, 1, 2, 3]
    assert trained.global_step == 3
