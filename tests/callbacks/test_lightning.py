"""When the tracker measures, what it stores, and how it fails."""

import copy
import gc
import pickle
import re
import weakref
from contextlib import nullcontext
from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    ModelCheckpoint,
    RichProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from small import HandWritten, random_tokens
from torch.utils.data import DataLoader

from repdyn import Schedule, measure
from repdyn.store.schema import Checkpoint
from repdyn.tracking import training
from repdyn.utils.distributed import Ranks

pytestmark = pytest.mark.usefixtures("without_figures")


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
        pytest.param(
            3, {"accumulate_grad_batches": 4, "max_steps": 4}, [0, 3, 4], id="accumulation"
        ),
        pytest.param([5], {}, [0, 5, 8], id="explicit"),
        pytest.param(Schedule(doubling_until=4), {}, [0, 1, 2, 4, 8], id="doubling"),
        pytest.param("pythia", {}, [0, 1, 2, 4, 8], id="pythia"),
        pytest.param(3, {"max_steps": -1, "max_epochs": 1}, [0, 3, 6, 9, 12], id="an epoch"),
    ],
)
def test_steps(tmp_path, small_probe, schedule, settings, expected):
    attached = tracker(small_probe, schedule)
    trainer(tmp_path, attached, **settings).fit(Job(), batches())
    assert attached.store.steps("job/0") == expected


def test_values_are_those_of_measure_on_the_weights_of_that_step(tmp_path, small_probe):
    attached = tracker(small_probe, 3)
    saved = SavedWeights()
    trainer(tmp_path, attached, saved, precision="bf16-mixed").fit(Job(), batches())
    frame = attached.store.to_pandas()
    assert set(frame["step"]) == {0, 3, 6, 8}
    for step in (0, 3, 6, 8):
        job = Job()
        job.load_state_dict(saved.at[step])
        expected = values(measure(job, small_probe, checkpoint=Checkpoint(step=step)).to_pandas())
        pd.testing.assert_series_equal(
            values(frame.query("step == @step")),
            expected,
            check_exact=True,
            check_dtype=False,
            check_index_type=False,
        )


class Projecting(Job):
    """Changes weights in its own hooks, and remembers them as they are then."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, dict] = {}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for weight in self.network.blocks.parameters():
                weight.clamp_(-0.1, 0.1)
        self.at[self.trainer.global_step] = copy.deepcopy(self.network.state_dict())

    def on_train_epoch_end(self):
        with torch.no_grad():
            self.network.norm.weight.mul_(0.5)
            self.network.blocks[0].norm.weight.mul_(0.5)
        self.at[self.trainer.global_step] = copy.deepcopy(self.network.state_dict())


def measured_by_step(probe, weights: dict[int, dict]) -> pd.Series:
    """What the saved weights of each step give."""
    frames = []
    for step, state in weights.items():
        job = Job()
        job.network.load_state_dict(state)
        frames.append(measure(job, probe, checkpoint=Checkpoint(step=step)).to_pandas())
    return values(pd.concat(frames))


def assert_equal_values(values: pd.Series, expected: pd.Series) -> None:
    options = {"check_exact": True, "check_dtype": False, "check_index_type": False}
    pd.testing.assert_series_equal(values, expected, **options)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulate_grad_batches": 2, "max_steps": 5},
        {"val_check_interval": 4},
        {"max_steps": -1, "max_epochs": 2, "limit_train_batches": 5},
    ],
    ids=["plain", "accumulation", "validation", "epochs"],
)
def test_a_step_is_measured_after_the_hooks_of_the_module_itself(tmp_path, small_probe, settings):
    """Measured before, the rows are not those of the checkpoints of their steps; a callback's hooks
    come before the module's."""
    plain = Projecting()
    job = Projecting()
    attached = tracker(small_probe, 2)
    plain.load_state_dict(job.state_dict())
    saving = ModelCheckpoint(tmp_path / "saved", save_top_k=-1)
    validation = batches(False, n=8) if "val_check_interval" in settings else None
    for module, callbacks in ((plain, []), (job, [attached, saving])):
        pl.seed_everything(3)
        trainer(tmp_path, *callbacks, **settings).fit(module, batches(), validation)
    assert job.losses == plain.losses
    frame = attached.store.to_pandas()
    frame = frame.query("step > 0")
    at = {step: job.at[step] for step in sorted(set(frame["step"]))}
    if validation is not None:  # before which a step is measured, since its values may decide
        del at[8]
        frame = frame.query("step != 8")
    assert len(at) >= 3
    assert_equal_values(values(frame), measured_by_step(small_probe, at))


def test_the_first_step_is_measured_after_the_hook_of_the_module(tmp_path, small_probe):
    """A module may load its weights there; those that it was made with are of no training."""

    class Loading(Projecting):
        def on_train_start(self):
            with torch.no_grad():
                for weight in self.network.blocks.parameters():
                    weight.mul_(0.5)
            self.at[0] = copy.deepcopy(self.network.state_dict())

    job = Loading()
    attached = tracker(small_probe, 4)
    trainer(tmp_path, attached).fit(job, batches())
    frame = attached.store.to_pandas()
    first = measured_by_step(small_probe, {0: job.at[0]})
    assert_equal_values(values(frame.query("step == 0")), first)


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_before_the_hook_of_the_module_has_the_values_of_its_rows(
    tmp_path, small_probe, weights_only
):
    """So it is with every_n_train_steps, also where what was measured decides about it."""
    attached = tracker(small_probe, 2)
    saving = ModelCheckpoint(
        tmp_path / "saved",
        every_n_train_steps=4,
        save_top_k=-1,
        filename="{step}",
        monitor="anisotropy/mean",
        save_weights_only=weights_only,
    )
    trainer(tmp_path, attached, saving).fit(Projecting(), batches())
    at = {}
    for step in (4, 8):
        saved = torch.load(tmp_path / "saved" / f"step={step}.ckpt", weights_only=False)
        state = saved["state_dict"]
        at[step] = {name.removeprefix("network."): weight for name, weight in state.items()}
    frame = attached.store.to_pandas()
    frame = frame[frame["step"].isin([4, 8])]
    assert_equal_values(values(frame), measured_by_step(small_probe, at))
    assert float(saving.best_model_score) in set(
        frame.query("layer > 0 and metric == 'anisotropy' and subset == 'all'")
        .groupby("step")["value"].mean().astype("float32").astype(float)
    )  # fmt: skip


def test_a_step_that_waits_is_measured_where_the_training_breaks_off(tmp_path, small_probe):
    """A sample that cannot be read, after a scheduled step."""

    class Broken(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from random_tokens(20, 12)  # of which the last four are never trained on
            raise OSError("no such file")

    attached = tracker(small_probe, 2)
    data = DataLoader(Broken(), batch_size=4, collate_fn=lambda x: {"input_ids": torch.stack(x)})
    with pytest.raises(OSError, match="no such file"):
        trainer(tmp_path, attached).fit(Projecting(), data)
    assert attached.store.steps("job/0") == [0, 2, 4]


def test_scalars_and_tokens_are_stored_beside(tmp_path, small_probe):
    attached = tracker(small_probe, 3)
    job = Job()
    trainer(tmp_path, attached).fit(job, batches())
    frame = attached.store.to_pandas()
    losses = frame.query("metric == 'train/loss'").set_index("step")["value"]
    assert losses.to_dict() == pytest.approx({3: job.losses[2], 6: job.losses[5], 8: job.losses[7]})
    tokens = frame.groupby("step")["tokens_seen"].unique().map(list).to_dict()
    assert tokens == {0: [0], 3: [3 * 48], 6: [6 * 48], 8: [8 * 48]}
    assert set(frame["run"]) == {"job/0"}
    configuration = attached.store.path_of("job/0").run.configuration
    assert configuration["n_steps"] == 8
    assert {"max_steps": 8, "AdamW.lr": 1e-2}.items() <= configuration[
        "training"
    ].items()  # by which runs differ
    assert set(frame.loc[frame.layer.notna(), "model"]) == {"Job"}


class WarmedUp(Job):
    """With a learning rate that rises for four steps and falls for four."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(step / 4, 2 - step / 4)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def learning_rates(frame: pd.DataFrame) -> dict[int, float]:
    return frame.query("metric == 'train/learning_rate'").set_index("step")["value"].to_dict()


def test_the_learning_rate_is_stored_as_it_is_when_measured(tmp_path, small_probe):
    attached = tracker(small_probe, 2)
    trainer(tmp_path, attached).fit(WarmedUp(), batches())
    assert learning_rates(attached.store.to_pandas()) == {0: 0.0, 2: 5e-3, 4: 1e-2, 6: 5e-3, 8: 0.0}


def test_a_model_that_the_optimizer_does_not_train_is_told_so(tmp_path, small_probe, caplog):
    class WithAnother(Job):
        def __init__(self) -> None:
            super().__init__()
            self.other = HandWritten()

        def configure_optimizers(self):
            return torch.optim.SGD(self.network.parameters(), lr=0.1)

    attached = tracker(small_probe, 2, model="other")
    trainer(tmp_path, attached, max_steps=4).fit(WithAnother(), batches())
    assert "the optimizer trains none of its parameters" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_keeps_no_module_alive_after_its_fit(tmp_path, small_probe, fails):
    class Failing(Job):
        def training_step(self, batch, batch_idx):
            if fails and batch_idx == 3:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    attached = tracker(small_probe, 2)
    job = Failing()
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        trainer(tmp_path, attached, max_steps=4).fit(job, batches())
    module = weakref.ref(job)
    del job
    gc.collect()
    assert module() is None
    assert 2 in copy.deepcopy(attached.store).steps("job/0")
    pickle.loads(pickle.dumps(copy.deepcopy(attached)))


def test_a_module_without_an_optimizer_has_no_learning_rate(tmp_path, small_probe):
    class Frozen(Job):
        def configure_optimizers(self):
            return None

    attached = tracker(small_probe, 4)
    trainer(tmp_path, attached, max_steps=-1, max_epochs=1, limit_train_batches=2).fit(
        Frozen(), batches()
    )
    assert not learning_rates(attached.store.to_pandas())


def test_every_logger_is_served_after_the_store(tmp_path, small_probe):
    loggers = [
        CSVLogger(tmp_path, name="a", version="0"),
        CSVLogger(tmp_path, name="b", version="0"),
    ]
    trainer(tmp_path, tracker(small_probe, 4), logger=loggers).fit(Job(), batches())
    for logger in loggers:
        logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
        assert logged.loc[logged["anisotropy/layer_00"].notna(), "step"].tolist() == [0, 4, 8]
        assert {"two_nn/mean", "anisotropy_no_sink/layer_03", "train/loss"} <= set(logged.columns)


def test_at_checkpoints(tmp_path, small_probe):
    attached = tracker(small_probe, "checkpoints")
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, save_top_k=-1)
    trainer(tmp_path, attached, saving).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 3, 6, 8]


def test_the_validation_loss_of_a_measured_step_is_its_own_or_the_last_before(
    tmp_path, small_probe
):
    class Validated(Job):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.tensor(float(self.global_step)))

    attached = tracker(small_probe, 3)
    trainer(tmp_path, attached, val_check_interval=2, max_steps=7).fit(
        Validated(), batches(), batches(shuffle=False)
    )
    frame = attached.store.to_pandas()
    losses = frame.query("metric == 'val/loss'").set_index("step")["value"].to_dict()
    assert losses == {3: 2.0, 6: 6.0}  # that of step 6 came after the measurement of step 6


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulate_grad_batches": 2},
        {"precision": "bf16-mixed"},
        {"gradient_clip_val": 0.1, "val_check_interval": 3},
    ],
    ids=["plain", "accumulation", "bf16-mixed", "clipping and validation"],
)
def test_training_is_bit_identical(tmp_path, small_probe, settings):
    """Losses, weights, random numbers and each module's flag; all else is in tests/nightly."""
    outcomes = []
    for name, callbacks in (("plain", []), ("tracked", [tracker(small_probe, 2)])):
        pl.seed_everything(3)
        job = Job()
        job.network.blocks[0].norm.eval()  # frozen on purpose
        trainer(tmp_path / name, *callbacks, **settings).fit(
            job, batches(), batches(shuffle=False, n=8)
        )
        flags = [module.training for module in job.modules()]
        outcomes.append(
            (job.losses, [w.tolist() for w in job.parameters()], flags, torch.rand(1).item())
        )
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) >= 8


def test_what_forward_logs_is_of_the_training_alone(tmp_path, small_probe):
    class Logging(Job):
        def forward(self, tokens):
            self.log("sequences", float(len(tokens)), on_step=True, on_epoch=True)
            return super().forward(tokens)

    trained = trainer(tmp_path, tracker(small_probe, 1))
    trained.fit(Logging(), batches())
    assert trained.callback_metrics["sequences_epoch"] == 4


@pytest.mark.parametrize("monitor", ["anisotropy/mean", "two_nn/layer_03"])
def test_other_callbacks_may_monitor_what_was_measured(tmp_path, small_probe, monitor):
    best = ModelCheckpoint(
        tmp_path / "best", monitor=monitor, every_n_train_steps=4, filename="{step}"
    )
    stop = EarlyStopping(monitor, stopping_threshold=1e9, check_on_train_epoch_end=True)
    attached = tracker(small_probe, 4)
    running = trainer(tmp_path, best, stop, attached)
    running.fit(Job(), batches())
    metric, _, which = monitor.partition("/")
    frame = attached.store.to_pandas().query(f"metric == '{metric}' and subset == 'all'")
    frame = frame.query("layer > 0" if which == "mean" else "layer == 3")
    expected = frame.groupby("step")["value"].mean()
    assert float(running.callback_metrics[monitor]) == pytest.approx(expected[8])
    assert set(running.progress_bar_metrics) >= {"anisotropy", "two_nn"}
    assert float(best.best_model_score) == pytest.approx(expected[[4, 8]].min())


@pytest.mark.parametrize(
    ("bar", "shown"), [(RichProgressBar, set()), (TQDMProgressBar, {"anisotropy", "two_nn"})]
)
def test_the_bar_of_rich_stays_on_its_line(tmp_path, small_probe, bar, shown):
    """With both values it grew to three lines on a terminal of 80 columns."""
    running = trainer(tmp_path, bar(), tracker(small_probe, 4), enable_progress_bar=True)
    running.fit(Job(), batches())
    assert {"anisotropy", "two_nn"} & set(running.progress_bar_metrics) == shown


def test_a_checkpoint_is_not_judged_by_the_values_of_the_one_before(tmp_path, small_probe):
    """They would be read before the step is measured."""
    best = ModelCheckpoint(tmp_path / "best", monitor="anisotropy/mean", every_n_train_steps=4)
    with pytest.raises(ValueError, match="schedule=N"):
        trainer(tmp_path, best, tracker(small_probe, "checkpoints")).fit(Job(), batches())


def test_two_trackers_without_names_are_told_what_to_write(tmp_path, small_probe):
    with pytest.raises(ValueError, match='name="second"'):
        trainer(tmp_path, tracker(small_probe), tracker(small_probe)).fit(Job(), batches())
    named = tracker(small_probe), tracker(small_probe, 3, name="second")
    trainer(tmp_path, *named).fit(Job(), batches())
    assert named[0].store.runs() == ["job/0", "job/0.second"]


def test_a_run_of_wandb_has_a_name_that_a_person_recognises(tmp_path, small_probe):
    logger = WandbLogger(project="geometry", save_dir=tmp_path, offline=True)
    attached = tracker(small_probe)
    trainer(tmp_path, attached, logger=logger).fit(Job(), batches())
    assert re.fullmatch(r"geometry/20\d\d-\d\d-\d\d_.*", attached.store.runs()[0])


def test_ranks_leave_out_the_same_steps(tmp_path, small_probe, monkeypatch):
    """Those that measure nothing, and so have time for everything, waited for the values of the
    first forever.
    """
    said = []

    class FirstOfTwo(Ranks):
        def all_gather(self, value):
            said.append(value)
            return [value, value]

        def on_rank_zero(self, function):
            return self.all_gather(function())[0]

    attached = tracker(small_probe, 2, max_overhead=1e-9)
    monkeypatch.setattr(training, "n_processes", lambda: 2)
    monkeypatch.setattr(training.Ranks, "measuring", lambda *_, **__: None)  # this one is the other
    monkeypatch.setattr(training.Ranks, "of_job", lambda: FirstOfTwo(None))
    trainer(tmp_path, attached, EarlyStopping("anisotropy/mean", patience=100, strict=False)).fit(
        Job(), batches()
    )
    assert [type(value) for value in said] == [list, bool, list, bool, list, bool, list, bool, list]
