"""When the tracker measures, what it stores, and how it fails."""

import logging
import math
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
from jobs import Job, batches, tiny_language_model, tracker, trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import FSDPStrategy
from small import HandWritten

from repdyn import Probe, Schedule, measure, open_store
from repdyn.callbacks import HuggingFaceCheckpoints, RepresentationDynamics
from repdyn.callbacks.tokens import add_tokens
from repdyn.metrics import METRICS


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
        expected = values(measure(job, probe, step=step).to_pandas())
        pd.testing.assert_series_equal(
            values(frame[frame.step == step]), expected, check_exact=True, check_dtype=False, check_index_type=False
        )


def test_checkpoints_saved_live_give_the_live_numbers(tmp_path, probe):
    """The swept checkpoints of a run, bit for bit what the tracker measured in it."""
    from repdyn.sweep import find_checkpoints, sweep

    live = tracker(probe, 3)
    trainer(tmp_path, live, HuggingFaceCheckpoints(3, tmp_path / "saved")).fit(tiny_language_model(), batches())
    found = find_checkpoints(tmp_path / "saved")
    assert [checkpoint.step for checkpoint in found] == [0, 3, 6, 8]
    swept = open_store(tmp_path / "swept")
    sweep(found, Probe.load(live.store.probe_path(probe.hash)), swept, run="swept")
    pd.testing.assert_series_equal(values(swept.to_pandas()), values(live.store.to_pandas()), check_exact=True)


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


def test_tokens_of_a_batch_that_does_not_show_them(tmp_path, probe):
    class Tuples(Job):
        def training_step(self, batch, batch_idx):
            return super().training_step({"input_ids": batch[0]}, batch_idx)

    attached = tracker(probe, 4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(probe.tokens.view(24, 12)), batch_size=4)
    trainer(tmp_path, attached).fit(Tuples(), data)
    frame = attached.store.to_pandas()
    assert frame.loc[frame.step == 4, "tokens_seen"].isna().all()


def test_every_logger_is_served_after_the_store(tmp_path, probe):
    loggers = [CSVLogger(tmp_path, name="a", version="0"), CSVLogger(tmp_path, name="b", version="0")]
    trainer(tmp_path, tracker(probe, 4), logger=loggers).fit(Job(), batches())
    for logger in loggers:
        logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
        assert logged.loc[logged["anisotropy/layer_00"].notna(), "step"].tolist() == [0, 4, 8]
        assert {"two_nn/mean", "anisotropy_no_sink/layer_03", "train/loss"} <= set(logged.columns)


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


@pytest.mark.parametrize("attach_first", [True, False])
def test_resume_repeats_nothing_and_skips_nothing(tmp_path, probe, attach_first):
    whole = tracker(probe, 2)
    pl.seed_everything(1)
    trainer(tmp_path / "whole", whole).fit(Job(), batches(shuffle=False))

    pl.seed_everything(1)
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, save_top_k=-1, filename="{step}")
    first = tracker(probe, 2)
    order = [first, saving] if attach_first else [saving, first]
    trainer(tmp_path / "parts", *order, max_steps=5, logger=False).fit(Job(), batches(shuffle=False))
    assert first.store.steps("parts") == [0, 2, 4, 5]
    written = {path: path.stat().st_mtime_ns for path in first.store.path.rglob("*.parquet")}

    second = tracker(probe, 2)
    trainer(tmp_path / "parts", second, logger=False).fit(
        Job(), batches(shuffle=False), ckpt_path=tmp_path / "saved" / "step=3.ckpt", weights_only=True
    )
    assert second.store.path == first.store.path
    assert second.store.steps("parts") == [0, 2, 4, 5, 6, 8]
    assert {path: path.stat().st_mtime_ns for path in written} == written  # nothing was measured again
    tokens = second.store.to_pandas("parts").groupby("step")["tokens_seen"].first()
    assert tokens[8] == 8 * 48


def test_resume_elsewhere_continues_the_first_store(tmp_path, probe):
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    trainer(tmp_path / "first", tracker(probe, 2), saving, max_steps=4).fit(Job(), batches())
    resumed = tracker(probe, 2)
    trainer(tmp_path / "second", resumed).fit(Job(), batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt")
    assert resumed.store.path == tmp_path / "first" / "job" / "0" / "repdyn"
    assert resumed.store.steps("job/0") == [0, 2, 4, 6, 8]


def test_checkpoint_stays_loadable_with_weights_only(tmp_path, probe):
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=4, filename="{step}")
    trainer(tmp_path, tracker(probe, 2), saving, tracker(probe, 3, metrics=["two_nn"], name="other")).fit(
        Job(), batches()
    )
    loaded = torch.load(tmp_path / "step=8.ckpt", weights_only=True)
    states = [state for key, state in loaded["callbacks"].items() if key.startswith("RepresentationDynamics")]
    assert [(state["run"], state["tokens_seen"]) for state in states] == [("job/0", 8 * 48), ("job/0.other", 8 * 48)]


def test_a_second_run_does_not_write_over_the_first(tmp_path, probe):
    trainer(tmp_path, tracker(probe, 4)).fit(Job(), batches())
    with pytest.raises(ValueError, match=r"the store .*/repdyn already holds steps of 'job/0'; resume it"):
        trainer(tmp_path, tracker(probe, 4)).fit(Job(), batches())
    trainer(tmp_path, tracker(probe, 4, run="another")).fit(Job(), batches())
    assert open_store(tmp_path / "job" / "0" / "repdyn").runs() == ["another", "job/0"]


def test_fit_twice_with_one_trainer(tmp_path, probe):
    attached, job = tracker(probe, 4), Job()
    fitting = trainer(tmp_path, attached, max_steps=4)
    fitting.fit(job, batches())
    fitting.fit_loop.epoch_loop.max_steps = 8
    fitting.fit(job, batches())
    assert attached.store.steps("job/0") == [0, 4, 8]


def test_fast_dev_run_leaves_no_store(tmp_path, probe):
    attached = tracker(probe, 1)
    trainer(tmp_path, attached, fast_dev_run=True).fit(Job(), batches())
    assert attached.store is None
    assert list(tmp_path.iterdir()) == []


def test_sanity_check_and_validation_do_not_measure(tmp_path, probe):
    attached = tracker(probe, [5])
    trainer(tmp_path, attached, num_sanity_val_steps=2, val_check_interval=2).fit(Job(), batches(), batches(n=8))
    assert attached.store.steps("job/0") == [0, 5, 8]


def test_early_stopping_measures_the_end(tmp_path, probe):
    attached = tracker(probe, 100)
    stop = EarlyStopping("train/loss", stopping_threshold=100.0, check_on_train_epoch_end=True)
    trainer(tmp_path, attached, stop, max_steps=-1, max_epochs=5).fit(Job(), batches())
    assert attached.store.steps("job/0") == [0, 12]


class _BrokenError(Exception):
    pass


@pytest.fixture
def broken_measure(monkeypatch):
    def broken(*args, **kwargs):
        raise _BrokenError("no such luck")

    monkeypatch.setattr("repdyn.callbacks.representation_dynamics.measure", broken)


def test_warn_lets_the_training_go_on(tmp_path, probe, broken_measure, caplog):
    attached, job = tracker(probe, 4, on_error="warn"), Job()
    with caplog.at_level(logging.WARNING):
        trainer(tmp_path, attached).fit(job, batches())
    assert len(job.losses) == 8
    complaints = [record for record in caplog.records if "no such luck" in record.message]
    assert len(complaints) == 1
    assert "tracking at step 0 failed, training goes on: _BrokenError: no such luck" in complaints[0].message
    frame = attached.store.to_pandas()
    assert set(frame["reason"].dropna()) == {"_BrokenError: no such luck"}
    assert set(frame["step"]) == {0, 4, 8}


def test_raise_stops_it(tmp_path, probe, broken_measure):
    with pytest.raises(_BrokenError, match="no such luck"):
        trainer(tmp_path, tracker(probe, 4)).fit(Job(), batches())


def test_a_logger_that_fails_costs_no_measurement(tmp_path, probe, caplog):
    class Failing(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if any(key.startswith("two_nn") for key in metrics):
                raise OSError("disk full")
            super().log_metrics(metrics, step)

    attached, job = tracker(probe, 4, on_error="warn"), Job()
    trainer(tmp_path, attached, logger=Failing(tmp_path, name="job", version="0")).fit(job, batches())
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
            lambda probe: RepresentationDynamics(None),
            {},
            r"expected a probe, got none: pass RepresentationDynamics\(probe=",
        ),
        (lambda probe: tracker(probe, layers="layers.*"), {}, r"'layers.\*' matches none; .* \"network.blocks.\*\""),
        (lambda probe: tracker(probe, model="netwrk"), {}, "to name a module inside Job, got 'netwrk'; it has network"),
        (lambda probe: tracker(probe, "checkpoints"), {}, 'expected a ModelCheckpoint for schedule="checkpoints"'),
        (lambda probe: HuggingFaceCheckpoints(3), {}, "expected a Hugging Face model to save, found Job"),
    ],
    ids=["no probe", "no layers", "no model", "no checkpoints", "nothing to save"],
)
def test_configuration_that_cannot_work_is_refused_before_training(tmp_path, probe, make, settings, message):
    job = Job()
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, make(probe), **settings).fit(job, batches())
    assert job.losses == []


def test_checkpoints_that_are_not_announced_are_refused(tmp_path, probe):
    silent = ModelCheckpoint(tmp_path, save_weights_only=True)
    with pytest.raises(
        ValueError, match="Lightning does not announce those of ModelCheckpoint\\(save_weights_only=True\\)"
    ):
        trainer(tmp_path, tracker(probe, "checkpoints"), silent).fit(Job(), batches())


def test_bad_arguments_are_refused_at_once(probe):
    with pytest.raises(ValueError, match='expected on_error "warn" or "raise", got \'ignore\''):
        RepresentationDynamics(probe, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected metrics among anisotropy, two_nn, got 'twonn'"):
        RepresentationDynamics(probe, metrics=["twonn"])


def test_sharded_strategies_are_refused(probe):
    from types import SimpleNamespace

    from repdyn.callbacks.refusals import refuse_sharding

    with pytest.raises(ValueError, match="keeps the whole model on each device, got FSDPStrategy; save checkpoints"):
        refuse_sharding(SimpleNamespace(strategy=FSDPStrategy()))  # type: ignore[arg-type]


def test_named_model_inside_the_module(tmp_path, probe):
    attached = tracker(probe, 4, model="network")
    trainer(tmp_path, attached).fit(Job(), batches())
    frame = attached.store.to_pandas()
    assert set(frame.loc[frame.layer.notna(), "model"]) == {"HandWritten"}


def test_one_tracker_serves_several_trainings(tmp_path, probe):
    attached = tracker(probe, 4)
    for folder in ("first", "second"):
        trainer(tmp_path / folder, attached).fit(Job(), batches())
        assert attached.store.path == tmp_path / folder / "job" / "0" / "repdyn"
        assert attached.store.steps("job/0") == [0, 4, 8]
        assert attached.store.to_pandas()["tokens_seen"].max() == 8 * 48


def test_two_trackers_with_names_keep_apart(tmp_path, probe):
    class Pair(Job):
        def __init__(self):
            super().__init__()
            self.teacher = HandWritten(n_layers=2)

    attached = tracker(probe, 4, model="network"), tracker(probe, 4, model="teacher", name="teacher")
    trainer(tmp_path, *attached).fit(Pair(), batches())
    store = attached[0].store
    assert store.runs() == ["job/0", "job/0.teacher"]
    frame = store.to_pandas("job/0.teacher")
    assert frame["layer"].max() == 2
    logged = pd.read_csv(tmp_path / "job" / "0" / "metrics.csv")
    assert {"anisotropy/layer_03", "teacher_anisotropy/layer_02"} <= set(logged.columns)
    assert "teacher_anisotropy/layer_03" not in logged.columns
    with pytest.raises(ValueError, match="expected trackers of different names in one trainer, got several called ''"):
        trainer(tmp_path, tracker(probe, 4, run="a"), tracker(probe, 4, run="b")).fit(Job(), batches())


def test_two_settings_of_one_metric_want_two_trackers(probe):
    settings = [METRICS["two_nn"], METRICS["two_nn"].with_settings(discard=0.8)]
    with pytest.raises(
        ValueError, match="expected one setting of each metric, got several of two_nn on all; attach a tracker"
    ):
        tracker(probe, metrics=settings)


def test_a_measurement_that_failed_is_made_up_for_on_resume(tmp_path, probe, monkeypatch):
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    first = tracker(probe, 4, on_error="warn")
    with monkeypatch.context() as broken:
        broken.setattr("repdyn.callbacks.representation_dynamics.measure", lambda *a, **k: 1 / 0)
        trainer(tmp_path / "run", first, saving, max_steps=4).fit(Job(), batches())
    assert first.store.steps("job/0") == []
    second = tracker(probe, 4)
    trainer(tmp_path / "run", second).fit(Job(), batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt")
    assert second.store.steps("job/0") == [4, 8]
    frame = second.store.to_pandas()
    assert set(frame.loc[frame["reason"].notna(), "step"]) == {0}  # the failure at 4 is no longer on file


def test_a_resumed_run_logs_what_was_measured_before_once_more(tmp_path, probe):
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_top_k=-1, filename="{step}")
    trainer(tmp_path / "first", tracker(probe, 2), saving).fit(Job(), batches())
    trainer(tmp_path / "second", tracker(probe, 2)).fit(Job(), batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt")
    logged = pd.read_csv(tmp_path / "second" / "job" / "0" / "metrics.csv")
    assert logged.loc[logged["anisotropy/layer_00"].notna(), "step"].tolist() == [4, 6, 8]


def test_another_probe_on_resume_is_refused(tmp_path, probe):
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    trainer(tmp_path / "first", tracker(probe, 4), saving).fit(Job(), batches())
    other = Probe.from_tokens(probe.tokens.view(24, 12).flip(1), max_vectors=192, batch_vectors=96)
    with pytest.raises(
        ValueError, match=f"expected the probe that the resumed run was measured on, {probe.hash}, got {other.hash}"
    ):
        trainer(tmp_path / "second", tracker(other, 4)).fit(
            Job(), batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt"
        )


def test_a_refused_start_shows_nothing(tmp_path, probe, capsys):
    trainer(tmp_path, tracker(probe, 4)).fit(Job(), batches())
    capsys.readouterr()
    with pytest.raises(ValueError, match="already holds steps"):
        trainer(tmp_path, tracker(probe, 4)).fit(Job(), batches())
    assert "figures" not in capsys.readouterr().out


def test_one_failing_logger_keeps_the_others_served(tmp_path, probe):
    class Failing(CSVLogger):
        def log_metrics(self, metrics, step=None):
            raise OSError("disk full")

    loggers = [Failing(tmp_path, name="a", version="0"), CSVLogger(tmp_path, name="b", version="0")]
    attached = tracker(probe, 4, on_error="warn")
    with pytest.raises(OSError, match="disk full"):  # Lightning's own logging of the loss is not ours to guard
        trainer(tmp_path, attached, logger=loggers).fit(Job(), batches())
    assert attached.store.to_pandas()["reason"].isna().all()  # the measurement did not fail
    from repdyn.views.loggers import log_rows

    with pytest.raises(OSError, match="disk full"):
        log_rows(measure(HandWritten(), probe).rows, loggers, 0)
    loggers[1].save()
    assert "two_nn/mean" in pd.read_csv(tmp_path / "b" / "0" / "metrics.csv").columns


def test_checkpoints_of_another_run_are_not_taken_for_ones_own(tmp_path, probe):
    saved = tmp_path / "saved"
    trainer(tmp_path / "a", HuggingFaceCheckpoints(4, saved)).fit(tiny_language_model(), batches())
    with pytest.raises(
        ValueError, match="expected a folder without checkpoints, but .*saved holds some of another run"
    ):
        trainer(tmp_path / "b", HuggingFaceCheckpoints(4, saved)).fit(tiny_language_model(), batches())


def test_several_optimizers_do_not_jump_over_scheduled_steps(tmp_path, probe):
    class Manual(Job):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self):
            parts = [self.network.blocks.parameters(), self.network.head.parameters()]
            return [torch.optim.AdamW(part, lr=1e-3) for part in parts]

    attached = tracker(probe, [1, 5])
    trainer(tmp_path, attached).fit(Manual(), batches())
    assert attached.store.steps("job/0") == [0, 2, 6, 8]


def test_compiled_model_by_name(tmp_path, probe):
    class Compiled(Job):
        def __init__(self):
            super().__init__()
            self.network = torch.compile(self.network, backend="eager")

    attached = tracker(probe, 4, model="network", layers="blocks.*")
    trainer(tmp_path, attached).fit(Compiled(), batches())
    frame = attached.store.to_pandas()
    assert set(frame.loc[frame.layer.notna(), "model"]) == {"HandWritten"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_tokens_are_counted_not_summed(dtype):
    mask = torch.ones(600, 100).to(dtype)
    mask[:, 90:] = 0
    seen = 2**24 + 1
    for _ in range(2):
        seen = add_tokens(seen, {"attention_mask": mask}, world_size=2)
    assert int(seen) == 2**24 + 1 + 2 * 2 * 600 * 90


TWO_PROCESSES = """
    import sys
    sys.path[:0] = [{tests!r}]
    from jobs import Job, batches, tracker, trainer
    from small import random_tokens
    from repdyn import Probe

    if __name__ == "__main__":
        probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
        job = Job()
        trainer({root!r}, tracker(probe, 2), strategy="ddp", devices=2, max_steps=4).fit(job, batches())
"""


def test_two_processes_do_not_wait_for_each_other_for_ever(tmp_path):
    root = tmp_path / "run"
    (tmp_path / "job.py").write_text(
        textwrap.dedent(TWO_PROCESSES.format(tests=str(Path(__file__).parents[1]), root=str(root)))
    )
    result = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    store = open_store(root / "job" / "0" / "repdyn")
    assert store.steps("job/0") == [0, 2, 4]
    assert store.to_pandas().groupby("step")["tokens_seen"].first().to_dict() == {0: 0, 2: 2 * 96, 4: 4 * 96}


INTERRUPTED = """
    import os, signal, sys
    sys.path[:0] = [{tests!r}]
    import lightning.pytorch as pl
    from jobs import Job, batches, tracker, trainer
    from small import random_tokens
    from repdyn import Probe
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Interrupt(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 5:
                os.kill(os.getpid(), signal.SIGINT)

    if __name__ == "__main__":
        probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
        saving = ModelCheckpoint({root!r}, save_last=True, save_on_exception=True, every_n_train_steps=1)
        trainer({root!r}, tracker(probe, 2), saving, Interrupt()).fit(Job(), batches())
"""


def test_ctrl_c_leaves_a_usable_run(tmp_path):
    root = str(tmp_path / "run")
    script = textwrap.dedent(INTERRUPTED.format(tests=str(Path(__file__).parents[1]), root=root))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "Detected KeyboardInterrupt" in result.stdout + result.stderr
    store = open_store(tmp_path / "run" / "job" / "0" / "repdyn")
    assert store.steps("job/0") == [0, 2, 4]
    assert (store.path / "figures").is_dir()
    assert "figures" in result.stdout
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
