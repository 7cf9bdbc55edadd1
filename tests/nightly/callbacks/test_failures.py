"""How the tracker fails: loudly before training, gently during it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy

from repdyn.callbacks import RepresentationDynamics, SavePretrainedCheckpoint
from repdyn.metrics import METRICS, Metric
from repdyn.views.alerts import Rule


class _BrokenError(Exception):
    pass


@pytest.fixture
def broken_measure(monkeypatch):
    def broken(*args, **kwargs):
        raise _BrokenError("no such luck")

    monkeypatch.setattr("repdyn.tracking.run.measure_with", broken)


def test_raise_stops_it(tmp_path, probe, broken_measure):
    with pytest.raises(_BrokenError, match="no such luck"):
        trainer(tmp_path, tracker(probe, 4)).fit(Job(), batches())


def test_a_logger_that_fails_costs_no_measurement(tmp_path, probe, caplog):
    class Failing(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if any(key.startswith("two_nn") for key in metrics):
                raise OSError("disk full")
            super().log_metrics(metrics, step)

    attached = tracker(probe, 4, on_error="warn")
    job = Job()
    trainer(tmp_path, attached, logger=Failing(tmp_path, name="job", version="0")).fit(
        job, batches()
    )
    assert len(job.losses) == 8
    frame = attached.store.to_pandas()
    assert set(frame.loc[frame.metric.eq("two_nn") & frame["value"].notna(), "step"]) == {0, 4, 8}
    assert any("disk full" in record.message for record in caplog.records)


def test_nan_weights_are_rows_with_a_reason(tmp_path, probe):
    attached = tracker(probe, 4, on_error="warn")
    trainer(tmp_path, attached).fit(Job(learning_rate=math.inf), batches())
    frame = attached.store.to_pandas()
    late = frame[(frame.step == 8) & frame.layer.notna()]
    assert late["value"].isna().all()
    assert set(late["reason"]) == {"batch 0: the points contain NaN"}


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (
            lambda probe: tracker(probe, layers="layers.*"),
            {},
            r"'layers.\*' matches none; .* \"network.blocks.\*\"",
        ),
        (
            lambda probe: tracker(probe, model="netwrk"),
            {},
            "to name a module inside Job, got 'netwrk'; it has network",
        ),
        (
            lambda probe: SavePretrainedCheckpoint(3),
            {},
            "expected a Hugging Face model to save, got Job",
        ),
    ],
    ids=["no layers", "no model", "nothing to save"],
)
def test_configuration_that_cannot_work_is_refused_before_training(
    tmp_path, probe, make, settings, message
):
    job = Job()
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, make(probe), **settings).fit(job, batches())
    assert job.losses == []


@pytest.mark.parametrize("weights_only", [None, True])
def test_checkpoints_that_are_not_announced_are_warned_of(tmp_path, probe, weights_only):
    silent = [] if weights_only is None else [ModelCheckpoint(tmp_path, save_weights_only=True)]
    attached = tracker(probe, "checkpoints")
    with pytest.warns(UserWarning, match='schedule="checkpoints"'):
        trainer(tmp_path, attached, *silent).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 8]


def strategy(kind: type) -> SimpleNamespace:
    """A trainer under a strategy that could not be set up here."""
    return SimpleNamespace(strategy=object.__new__(kind))


def test_a_strategy_that_cannot_be_tracked_is_refused():
    message = (
        "run the model outside of the training step, got DeepSpeedStrategy; use DDP or FSDP, or "
        "save"
    )
    with pytest.raises(ValueError, match=message):
        RepresentationDynamics().on_fit_start(strategy(DeepSpeedStrategy), None)


def test_shards_are_not_saved_as_checkpoints_of_hugging_face():
    with pytest.raises(
        ValueError, match="keeps the whole model on each device, got FSDPStrategy; save checkpoints"
    ):
        SavePretrainedCheckpoint().begin(strategy(FSDPStrategy), None)  # type: ignore[arg-type]


def test_two_metrics_of_one_name_are_refused(probe):
    metrics = [
        Metric(
            name="mine",
            kernel=METRICS["anisotropy"].kernel,
            meaning="",
            range=(0, 1),
            source="",
            subsets=("all",),
            settings={"a": n},
        )
        for n in (1, 2)
    ]
    with pytest.raises(
        ValueError,
        match="expected metrics of different names, got several called mine on all; give each",
    ):
        tracker(probe, metrics=metrics)


def test_an_alert_that_asks_for_it_stops_the_training(tmp_path, probe, caplog):
    rule = Rule(name="high", when="above", bound=0.0, metrics=("train/loss",), stop=True)
    attached = tracker(probe, 4, alerts=[rule])
    job = Job()
    trainer(tmp_path, attached).fit(job, batches())
    assert attached.store.steps(attached.store.runs()[0]) == [0, 4]
    assert len(job.losses) == 4
    assert "the training is to stop at step 4, as requested by: high" in caplog.text
