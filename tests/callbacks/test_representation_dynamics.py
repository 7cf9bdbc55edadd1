"""When the tracker measures, what it stores, and how it fails."""

from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
from jobs import Job, batches, tiny_language_model, tracker, trainer
from lanes import extended_except
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sweeping import downloads_in, settings

from repdyn import Probe, Schedule, measure, open_store
from repdyn.callbacks import SavePretrainedCheckpoint
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.plan import Task
from repdyn.checkpoints.run import measure_tasks
from repdyn.metrics import METRICS
from repdyn.store.schema import Checkpoint

pytestmark = pytest.mark.slow


class SavedWeights(pl.Callback):
    """The weights at every step, to be measured afterwards."""

    def __init__(self) -> None:
        self.at: dict[int, dict] = {}

    def on_train_start(self, trainer, pl_module):
        self.keep(trainer, pl_module)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.keep(trainer, pl_module)

    def keep(self, trainer, pl_module):
        self.at[trainer.global_step] = {k: v.clone() for k, v in pl_module.state_dict().items()}


def values(frame: pd.DataFrame) -> pd.Series:
    layers = frame[frame["layer"].notna()]
    return layers.set_index(["step", "layer", "metric", "subset"])["value"].sort_index()


@pytest.mark.parametrize(
    ("schedule", "settings", "expected"),
    [
        pytest.param(3, {}, [0, 3, 6, 8], id="every 3, and the end"),
        pytest.param(3, {"accumulate_grad_batches": 4, "max_steps": 4}, [0, 3, 4], id="accumulation"),
        pytest.param([5], {}, [0, 5, 8], id="explicit"),
        pytest.param(Schedule(doubling_until=4), {}, [0, 1, 2, 4, 8], id="doubling"),
        pytest.param("pythia", {}, [0, 1, 2, 4, 8], id="pythia"),
        pytest.param(3, {"max_steps": -1, "max_epochs": 1}, [0, 3, 6, 9, 12], id="an epoch"),
    ],
)
def test_steps(tmp_path, probe, schedule, settings, expected):
    attached = tracker(probe, schedule)
    trainer(tmp_path, attached, **settings).fit(Job(), batches())
    assert attached.store.steps("job/0") == expected


def test_values_are_those_of_measure_on_the_weights_of_that_step(tmp_path, probe):
    attached, saved = tracker(probe, 3), SavedWeights()
    trainer(tmp_path, attached, saved, precision="bf16-mixed").fit(Job(), batches())
    frame = attached.store.to_pandas()
    assert set(frame["step"]) == {0, 3, 6, 8}
    for step in (0, 3, 6, 8):
        job = Job()
        job.load_state_dict(saved.at[step])
        expected = values(measure(job, probe, checkpoint=Checkpoint(step=step)).to_pandas())
        pd.testing.assert_series_equal(
            values(frame[frame.step == step]), expected, check_exact=True, check_dtype=False, check_index_type=False
        )


@pytest.mark.parametrize("family", extended_except({"bert"}, ["gpt_neox", "bert"]))
def test_checkpoints_saved_live_give_the_live_numbers(tmp_path, probe, family):
    """The swept checkpoints of a run, bit for bit what the tracker measured in it, whatever is measured."""
    probe = probe.with_topics(probe.tokens % 3)
    live = tracker(probe, 3, metrics="all")
    trainer(tmp_path, live, SavePretrainedCheckpoint(3, tmp_path / "saved")).fit(tiny_language_model(family), batches())
    kept = Probe.load(live.store.probe_path(probe.hash))
    tasks = [Task(target, kept) for target in find_checkpoints(tmp_path / "saved", "swept")]
    assert [task.target.step for task in tasks] == [0, 3, 6, 8]
    swept = open_store(tmp_path / "swept")
    measure_tasks(tasks, swept, settings("all"), downloads_in(tmp_path / "downloads"))
    measured = live.store.to_pandas()
    assert set(measured.loc[measured.layer.notna(), "metric"]) == set(METRICS)
    pd.testing.assert_series_equal(values(swept.to_pandas()), values(measured), check_exact=True)
    later = measured[(measured.metric == "cka_previous") & (measured.step > 0)]
    assert later.value.between(0, 1).all()
    assert (later.compared_to == later.step.map({3: 0, 6: 3, 8: 6})).all()


def test_scalars_and_tokens_are_stored_beside(tmp_path, probe):
    attached, job = tracker(probe, 3), Job()
    trainer(tmp_path, attached).fit(job, batches())
    frame = attached.store.to_pandas()
    losses = frame[frame.metric == "train/loss"].set_index("step")["value"]
    assert losses.to_dict() == pytest.approx({3: job.losses[2], 6: job.losses[5], 8: job.losses[7]})
    tokens = frame.groupby("step")["tokens_seen"].unique().map(list).to_dict()
    assert tokens == {0: [0], 3: [3 * 48], 6: [6 * 48], 8: [8 * 48]}
    assert set(frame["run"]) == {"job/0"}
    assert set(frame.loc[frame.layer.notna(), "model"]) == {"Job"}


class WarmedUp(Job):
    """With a learning rate that rises for four steps and falls for four."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 4, 2 - step / 4))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def learning_rates(frame: pd.DataFrame) -> dict[int, float]:
    return frame[frame["metric"] == "train/learning_rate"].set_index("step")["value"].to_dict()


def test_the_learning_rate_is_stored_as_it_is_when_measured(tmp_path, probe):
    attached = tracker(probe, 2)
    trainer(tmp_path, attached).fit(WarmedUp(), batches())
    assert learning_rates(attached.store.to_pandas()) == {0: 0.0, 2: 5e-3, 4: 1e-2, 6: 5e-3, 8: 0.0}


def test_a_module_without_an_optimizer_has_no_learning_rate(tmp_path, probe):
    class Frozen(Job):
        def configure_optimizers(self):
            return None

    attached = tracker(probe, 4)
    trainer(tmp_path, attached, max_steps=-1, max_epochs=1, limit_train_batches=2).fit(Frozen(), batches())
    assert not learning_rates(attached.store.to_pandas())


def test_every_logger_is_served_after_the_store(tmp_path, probe):
    loggers = [CSVLogger(tmp_path, name="a", version="0"), CSVLogger(tmp_path, name="b", version="0")]
    trainer(tmp_path, tracker(probe, 4), logger=loggers).fit(Job(), batches())
    for logger in loggers:
        logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
        assert logged.loc[logged["anisotropy/layer_00"].notna(), "step"].tolist() == [0, 4, 8]
        assert {"two_nn/mean", "anisotropy_no_sink/layer_03", "train/loss"} <= set(logged.columns)


@pytest.mark.extended
@pytest.mark.views
def test_figures_and_summary_at_the_end(tmp_path, probe, capsys):
    attached = tracker(probe, 4)
    trainer(tmp_path, attached).fit(Job(), batches())
    figures = {path.name for path in attached.store.path.glob("figures/*.png")}
    assert {"profile_anisotropy.png", "mean_over_layers.png", "heatmap_two_nn_all.png"} <= figures
    printed = capsys.readouterr().out
    assert "job/0" in printed
    assert "figures" in printed


def test_works_without_any_logger(tmp_path, probe):
    attached = tracker(probe, 4)
    trainer(tmp_path, attached, logger=False).fit(Job(), batches())
    assert attached.store.path == tmp_path / "repdyn"
    assert attached.store.runs() == [tmp_path.name]


@pytest.mark.parametrize("save_last", [True, False])
def test_at_checkpoints(tmp_path, probe, save_last):
    attached = tracker(probe, "checkpoints")
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, save_top_k=-1, save_last=save_last)
    trainer(tmp_path, attached, saving).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 3, 6, 8]


def test_early_stopping_measures_the_end(tmp_path, probe):
    attached = tracker(probe, 100)
    stop = EarlyStopping("train/loss", stopping_threshold=100.0, check_on_train_epoch_end=True)
    trainer(tmp_path, attached, stop, max_steps=-1, max_epochs=5).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 12]


def test_validation_losses_are_stored_with_the_next_measurement(tmp_path, probe):
    class Validated(Job):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.tensor(float(self.global_step)))

    attached = tracker(probe, 3)
    trainer(tmp_path, attached, val_check_interval=2, max_steps=7).fit(Validated(), batches(), batches(shuffle=False))
    frame = attached.store.to_pandas()
    losses = frame[frame["metric"] == "validation/loss"].set_index("step")["value"].to_dict()
    assert losses == {3: 2.0, 6: 4.0, 7: 6.0}  # that of step 6 came after the measurement of step 6
