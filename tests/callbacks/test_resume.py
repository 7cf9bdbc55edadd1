"""Runs that stop and go on, start again, or are killed."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from jobs import Job, Repeatable, batches, tiny_language_model, tracker, trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from repdyn import Probe, measure, open_store
from repdyn.callbacks import SavePretrainedCheckpoint

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("attach_first", [True, False])
def test_resume_repeats_nothing_and_skips_nothing(tmp_path, probe, attach_first):
    pl.seed_everything(1)
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, save_top_k=-1, filename="{step}")
    first = tracker(probe, 2)
    order = [first, saving] if attach_first else [saving, first]
    settings = {"logger": False, "overfit_batches": 1}
    trainer(tmp_path / "parts", *order, max_steps=5, **settings).fit(Repeatable(), batches(shuffle=False))
    assert first.store.steps("parts") == [0, 2, 4, 5]
    written = {path: path.stat().st_mtime_ns for path in first.store.path.rglob("*.parquet")}

    second = tracker(probe, 2)
    trainer(tmp_path / "parts", second, **settings).fit(
        Repeatable(), batches(shuffle=False), ckpt_path=tmp_path / "saved" / "step=3.ckpt", weights_only=True
    )
    assert second.store.path == first.store.path
    assert second.store.steps("parts") == [0, 2, 4, 5, 6, 8]
    assert {path: path.stat().st_mtime_ns for path in written} == written  # nothing was measured again
    tokens = second.store.to_pandas("parts").groupby("step")["tokens_seen"].first()
    assert tokens[8] == 8 * 48


def test_a_run_that_went_back_is_measured_anew(tmp_path, probe, caplog):
    """As after a loss spike: from the checkpoint before it, with another learning rate."""
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_top_k=-1, filename="{step}")
    trainer(tmp_path / "parts", tracker(probe, 2), saving, logger=False).fit(Job(), batches())
    job, second = Job(learning_rate=0.0), tracker(probe, 2)
    first = {
        step: rows["value"].tolist()
        for step, rows in open_store(tmp_path / "parts" / "repdyn").to_pandas().groupby("step")
    }
    trainer(tmp_path / "parts", second, logger=False).fit(
        job, batches(), ckpt_path=tmp_path / "saved" / "step=4.ckpt", weights_only=True
    )
    frame = second.store.to_pandas("parts")
    assert second.store.steps("parts") == [0, 2, 4, 6, 8]
    again = {step: rows["value"].tolist() for step, rows in frame.groupby("step")}
    assert [step for step in again if again[step] != first[step]] == [6, 8]
    expected = measure(job, probe).to_pandas().sort_values(["metric", "subset", "layer"])["value"].tolist()
    np.testing.assert_array_equal(frame.loc[(frame["step"] == 8) & frame["layer"].notna(), "value"], expected)
    said = [record.message for record in caplog.records if "other weights" in record.message]
    assert said == ["step 6 was measured on other weights before this run was resumed; done anew"]


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


def test_one_tracker_serves_several_trainings(tmp_path, probe):
    attached = tracker(probe, 4)
    for folder in ("first", "second"):
        trainer(tmp_path / folder, attached).fit(Job(), batches())
        assert attached.store.path == tmp_path / folder / "job" / "0" / "repdyn"
        assert attached.store.steps("job/0") == [0, 4, 8]
        assert attached.store.to_pandas()["tokens_seen"].max() == 8 * 48


def test_a_measurement_that_failed_is_made_up_for_on_resume(tmp_path, probe, monkeypatch):
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    first = tracker(probe, 4, on_error="warn")
    with monkeypatch.context() as broken:
        broken.setattr("repdyn.tracking.tracked_run.measure_with", lambda *a, **k: 1 / 0)
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


def test_checkpoints_of_another_run_are_not_taken_for_ones_own(tmp_path, probe):
    saved = tmp_path / "saved"
    trainer(tmp_path / "a", SavePretrainedCheckpoint(4, saved)).fit(tiny_language_model(), batches())
    with pytest.raises(
        ValueError, match="expected a folder without checkpoints, got .*saved with those of another run"
    ):
        trainer(tmp_path / "b", SavePretrainedCheckpoint(4, saved)).fit(tiny_language_model(), batches())


INTERRUPTED = """
    import os, signal, sys
    sys.path[:0] = [{tests!r}]
    import lightning.pytorch as pl
    from jobs import Job, Repeatable, batches, tracker, trainer
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


@pytest.mark.extended
@pytest.mark.once
@pytest.mark.process
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
