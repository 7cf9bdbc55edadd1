"""Whatever else a trainer does, each scheduled step is measured once and nothing beside it."""

from __future__ import annotations

import copy
import re
from unittest.mock import Mock

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.tuner.tuning import Tuner
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset

from repdyn import measure
from repdyn.tracking import run

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(
            {"num_sanity_val_steps": 2, "val_check_interval": 3},
            [0, 4, 8],
            id="sanity check, mid-epoch",
        ),
        pytest.param({"overfit_batches": 2, "max_steps": 5}, [0, 4, 5], id="overfit_batches"),
        pytest.param(
            {"limit_train_batches": 3, "max_epochs": 2, "max_steps": -1}, [0, 4, 6], id="epochs"
        ),
        pytest.param({"accumulate_grad_batches": 3, "max_steps": 4}, [0, 4], id="accumulation"),
        pytest.param(
            {"accumulate_grad_batches": 5, "max_steps": -1, "max_epochs": 1},
            [0, 3],
            id="a remainder",
        ),
        pytest.param(
            {"reload_dataloaders_every_n_epochs": 1, "max_steps": 14},
            [0, 4, 8, 12, 14],
            id="reloading",
        ),
        pytest.param({"max_steps": 0}, [], id="no step"),
    ],
)
def test_steps(tmp_path, small_probe, settings, expected):
    attached = tracker(small_probe, 4)
    trainer(tmp_path, attached, **settings).fit(Job(), batches(), batches(shuffle=False, n=8))
    assert (attached.store.steps("job/0") if attached.store else []) == expected


@pytest.mark.parametrize(
    "callback",
    [
        lambda: StochasticWeightAveraging(1e-3, swa_epoch_start=1),
        lambda: GradientAccumulationScheduler({0: 2, 1: 4}),
    ],
    ids=["weight averaging", "changing accumulation"],
)
def test_beside_callbacks_that_change_the_training(tmp_path, small_probe, callback):
    attached = tracker(small_probe, 4)
    job = Job()
    job.norm = torch.nn.BatchNorm1d(16)
    trained = trainer(tmp_path, attached, callback(), max_steps=-1, max_epochs=3)
    trained.fit(job, batches())
    steps = attached.store.steps("job/0")
    assert steps[0] == 0
    # for the statistics of the average an epoch is added that trains nothing; the trainer counts a
    # step of it
    is_added = any(isinstance(each, StochasticWeightAveraging) for each in trained.callbacks)
    assert steps[-1] == trained.global_step - is_added
    assert set(range(0, steps[-1], 4)) <= set(steps)


@pytest.mark.parametrize("schedule", [1, "checkpoints"])
def test_fast_dev_run_measures_once_and_stores_nothing(
    tmp_path, small_probe, monkeypatch, schedule
):
    measure = Mock(wraps=run.measure_with)
    monkeypatch.setattr(run, "measure_with", measure)
    attached = tracker(small_probe, schedule)
    job = Job()
    trainer(tmp_path, attached, fast_dev_run=2).fit(job, batches(), batches(shuffle=False, n=8))
    assert len(job.losses) == 2
    assert measure.call_count == 1
    assert attached.store is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_several_trainers_take_turns_in_one_process(tmp_path, small_probe):
    """Two runs under way at once, as a sweep of hyperparameters in one notebook has them."""
    trackers = [tracker(small_probe, 2), tracker(small_probe, 2)]
    jobs = [Job(), Job(learning_rate=1e-3)]
    trainers = [
        trainer(tmp_path / str(i), attached, max_steps=2) for i, attached in enumerate(trackers)
    ]
    for until in (2, 4):
        for trained, job in zip(trainers, jobs, strict=True):
            trained.fit_loop.epoch_loop.max_steps = until
            trained.fit(job, batches())
    assert [attached.store.steps("job/0") for attached in trackers] == [[0, 2, 4]] * 2
    assert trackers[0].store.path != trackers[1].store.path


def test_validating_testing_and_predicting_measure_nothing(tmp_path, small_probe):
    class Whole(Job):
        test_step = Job.validation_step

        def predict_step(self, batch, batch_idx):
            return self(batch["input_ids"])

    attached = tracker(small_probe, 1)
    running = trainer(tmp_path, attached)
    running.validate(Whole(), batches(shuffle=False, n=8), verbose=False)
    running.test(Whole(), batches(shuffle=False, n=8), verbose=False)
    running.predict(Whole(), batches(shuffle=False, n=8))
    assert attached.store is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_checkpoint_saved_by_hand_is_measured_once(tmp_path, small_probe):
    class Saving(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "by hand.ckpt")

    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_last=True)
    attached = tracker(small_probe, "checkpoints")
    trainer(tmp_path, attached, Saving(), saving).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 3, 4, 8]


def test_a_trainer_stopped_from_within_measures_the_end(tmp_path, small_probe):
    class Stopping(Job):
        def training_step(self, batch, batch_idx):
            self.trainer.should_stop = batch_idx == 2
            return super().training_step(batch, batch_idx)

    attached = tracker(small_probe, 100)
    trainer(tmp_path, attached).fit(Stopping(), batches())
    assert attached.store.steps("job/0") == [0, 3]


def test_a_step_that_returns_nothing_is_skipped_and_counted_as_lightning_counts_it(
    tmp_path, small_probe
):
    class Skipping(Job):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    attached = tracker(small_probe, 1)
    trained = trainer(tmp_path, attached, max_steps=3)
    trained.fit(Skipping(), batches())
    assert attached.store.steps("job/0") == [0, 1, 2, 3]
    assert trained.global_step == 3


class ManyOptimizers(Job):
    """Optimises by hand: with two optimizers of Lightning's, with raw ones, or with one that it
    never mentions.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.how = how
        self.__dict__["own"] = torch.optim.SGD(self.parameters(), lr=1e-2)

    def configure_optimizers(self):
        return (
            None
            if self.how == "its own"
            else [torch.optim.SGD(self.parameters(), lr=1e-2) for _ in range(2)]
        )

    def training_step(self, batch, batch_idx):
        optimizers = (
            [self.own]
            if self.how == "its own"
            else self.optimizers(use_pl_optimizer=self.how == "two")
        )
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("how", ["two", "raw", "its own"])
def test_steps_are_those_of_the_loggers_whatever_steps_the_optimizers(tmp_path, small_probe, how):
    """The trainer's own count is doubled by two optimizers and stays 0 with raw ones."""
    attached = tracker(small_probe, 4)
    trained = trainer(tmp_path, attached, max_steps=-1, max_epochs=1)
    trained.fit(ManyOptimizers(how), batches())
    assert attached.store.steps("job/0") == [0, 4, 8, 12]
    frame = attached.store.to_pandas()
    assert frame.loc[frame["step"] == 8, "trainer_step"].unique().tolist() == [
        {"two": 16}.get(how, 0)
    ]


def test_a_stream_of_unknown_length_says_no_impossible_number(tmp_path, small_probe, capfd):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from batches(shuffle=False).dataset

    attached = tracker(small_probe, 4)
    fitting = trainer(tmp_path, attached, max_steps=-1, max_epochs=1)
    fitting.fit(Job(), DataLoader(Stream(), batch_size=4))
    assert attached.store.steps("job/0") == [0, 4, 8, 12]
    said = capfd.readouterr().err
    assert "as scheduled, about" in said
    assert not re.search(r"-\d+ steps|inf steps|-\d+%", said)


class Searching(Job):
    """Has what searches for a learning rate and a batch size change."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = self.learning_rate
        self.batch_size = 4

    def train_dataloader(self):
        return DataLoader(batches().dataset, batch_size=self.batch_size)

    val_dataloader = train_dataloader


@pytest.mark.parametrize(
    "search", ["lr_find", "scale_batch_size", "LearningRateFinder", "BatchSizeFinder"]
)
def test_a_search_before_the_training_leaves_no_rows(tmp_path, small_probe, search):
    """Hooks that fire outside of a fit raised, and trial steps are no steps of the run."""
    attached = tracker(small_probe, "checkpoints")
    job = Searching()
    finders = {
        "LearningRateFinder": lambda: LearningRateFinder(num_training_steps=5, min_lr=1e-4),
        "BatchSizeFinder": lambda: BatchSizeFinder(max_trials=1, steps_per_trial=1),
    }
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_top_k=-1)
    more = [finders[search]()] if search in finders else []
    running = trainer(tmp_path, attached, saving, *more, logger=False)
    if search == "lr_find":
        Tuner(running).lr_find(job, num_training=5)
    if search == "scale_batch_size":
        Tuner(running).scale_batch_size(job, max_trials=1, steps_per_trial=1)
    running.fit(job)
    assert attached.store.runs() == [tmp_path.name]
    assert attached.store.steps(tmp_path.name) == [0, 4, 8]


def test_an_average_in_the_module_is_measured_beside_the_network_that_it_is_of(
    tmp_path, small_probe
):
    """It looked like a second network, between which the user had to choose
    (Lightning-AI/pytorch-lightning, issue 17847).
    """
    attached = tracker(small_probe, 1)
    job = Job()
    job.average = AveragedModel(job.network)
    job.average.update_parameters(job.network)
    trainer(tmp_path, attached, max_steps=1).fit(job, batches())
    rows = (
        attached.store.to_pandas()
        .query("weights_kind == 'averaged' and step == 1")
        .dropna(subset="layer")
    )
    live = {(row.metric, row.subset, row.layer): row.value for row in rows.itertuples()}
    assert live == {
        (row.metric, row.subset, row.layer): row.value
        for row in measure(job.average, small_probe).rows
    }


@pytest.mark.parametrize("order", ["tracker first", "averaging first"])
def test_averaged_weights_are_a_second_curve_of_the_same_steps(tmp_path, small_probe, order):
    """Averaging puts its weights into the model at the end, and the last point was of another model
    than the others.
    """

    class Kept(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            self.trained = copy.deepcopy(pl_module.network)

        def on_train_end(self, trainer, pl_module):
            self.averaged = copy.deepcopy(averaging._average_model.module.network)

    averaging = EMAWeightAveraging(decay=0.7)
    attached = tracker(small_probe, 4, model="network")
    weights = Kept()
    callbacks = [attached, averaging] if order == "tracker first" else [averaging, attached]
    trainer(tmp_path, weights, *callbacks, max_steps=7).fit(Job(), batches())
    frame = attached.store.to_pandas().dropna(subset="layer")
    assert {run: sorted(set(rows["step"])) for run, rows in frame.groupby("run")} == {
        "job/0": [0, 4, 7],
        "job/0 (averaged)": [0, 4, 7]
        if attached.store.steps("job/0 (averaged)")[0] == 0
        else [4, 7],
    }
    for run_name, model in (("job/0", weights.trained), ("job/0 (averaged)", weights.averaged)):
        expected = (
            measure(model, small_probe)
            .to_pandas()
            .sort_values(["metric", "subset", "layer"])["value"]
            .tolist()
        )
        at_the_end = frame[(frame["run"] == run_name) & (frame["step"] == 7)]
        np.testing.assert_array_equal(
            at_the_end.sort_values(["metric", "subset", "layer"])["value"].tolist(), expected
        )
