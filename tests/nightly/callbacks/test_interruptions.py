"""A signal in the middle of a measurement: the training saves at once, on a model that is as it
was.
"""

import os
import signal
import threading

import pytest
import torch
from jobs import Job, batches, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from small import HandWritten, random_tokens
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

from repdyn import Probe, Tracker, open_store
from repdyn.callbacks import HuggingFaceTracker, RepresentationDynamics
from repdyn.metrics import Metric
from repdyn.tracking.signals import LongMeasurement, MeasurementInterruptedError, watching_signals


class PreemptedError(Exception):
    """What a training raises in its handler to leave its loop."""


class Preemption:
    """A metric during which a signal arrives once: in the first layer of the second measurement."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number
        self.clouds = 0

    def __call__(self, cloud) -> torch.Tensor:
        self.clouds += 1
        if self.clouds == 9:  # 4 layers of 2 batches each
            os.kill(os.getpid(), self.number)
        return torch.tensor(1.0)


@pytest.fixture
def handled():
    """Set a handler of a signal for a test."""
    before = {}

    def handle(handler, number=signal.SIGTERM):
        before[number] = signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


def metric(preemption: Preemption) -> Metric:
    return Metric(
        name="preempted",
        kernel=preemption,
        meaning="is interrupted",
        range=(0.0, 2.0),
        source="nobody",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_loop_that_sets_a_flag_saves_at_once(
    tmp_path, small_probe, handled, caplog, capsys, number
):
    arrived = []

    def note(*_):
        arrived.append(1)

    handled(note, number)
    handler = signal.getsignal(number)
    preemption = Preemption(number)
    model = HandWritten()
    metrics = ["anisotropy", metric(preemption)]
    with Tracker(
        model=model,
        probe=small_probe,
        schedule=1,
        metrics=metrics,
        store=tmp_path / "mine",
        on_error="raise",
    ) as tracker:
        tracker.step()
        assert arrived == [1]
        assert preemption.clouds == 9  # neither the second batch of the layer nor another layer
        assert all(module.training for module in model.modules())
        assert not any(module._forward_hooks for module in model.modules())
        assert tracker.store.steps("mine") == [0]
        tracker.step()
    assert signal.getsignal(number) is handler
    assert open_store(tmp_path / "mine").steps("mine") == [0, 2]
    assert f"step 1 is not measured: {number.name} arrived" in caplog.text
    assert f"2 of 3 steps measured; step 1: {number.name} arrived" in capsys.readouterr().err


@pytest.mark.parametrize("on_error", ["warn", "raise"])
@pytest.mark.parametrize("error", [PreemptedError, SystemExit, KeyboardInterrupt])
def test_what_a_handler_raises_reaches_the_loop(tmp_path, small_probe, handled, on_error, error):
    def handler(*_):
        raise error("going down")

    handled(handler)
    model = HandWritten()
    saved = []
    tracker = Tracker(
        model=model,
        probe=small_probe,
        schedule=1,
        metrics=["anisotropy", metric(Preemption())],
        store=tmp_path / "mine",
        on_error=on_error,
    )

    def train():
        with tracker:
            try:
                tracker.step()
            except error:
                saved.append([module.training for module in model.modules()])
                raise

    with pytest.raises(error, match="going down"):
        train()
    assert len(saved) == 1
    assert all(saved[0])
    assert signal.getsignal(signal.SIGTERM) is handler
    assert tracker.store.steps("mine") == [0]


def test_lightning_saves_at_once(tmp_path, probe, caplog):
    preemption = Preemption()
    attached = RepresentationDynamics(
        probe, 2, ["anisotropy", metric(preemption)], on_error="raise"
    )
    saving = ModelCheckpoint(tmp_path / "saved", save_on_exception=True, every_n_train_steps=1000)
    with pytest.raises(SystemExit):
        trainer(tmp_path, attached, saving, logger=False).fit(Job(), batches())
    (saved,) = (tmp_path / "saved").iterdir()
    assert torch.load(saved, weights_only=True)["global_step"] == 2
    assert preemption.clouds == 9
    assert "step 2 is not measured: SIGTERM arrived" in caplog.text


def test_lightning_does_not_begin_a_measurement_after_sigterm(tmp_path, probe):
    class Killed(ModelCheckpoint):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    attached = RepresentationDynamics(probe, 2, on_error="raise")
    saving = Killed(tmp_path / "saved", save_on_exception=True, every_n_train_steps=1000)
    with pytest.raises(SystemExit):
        trainer(tmp_path, attached, saving, logger=False).fit(Job(), batches())
    assert list((tmp_path / "saved").iterdir())
    assert attached.store.steps(tmp_path.name) == [0]


def test_the_hugging_face_trainer_saves_at_once(tmp_path, handled):
    """A handler sets a flag, and a callback saves at the end of the next step: that of this step it
    has seen, since a step is measured after other callbacks.
    """
    arrived = []

    def note(*_):
        arrived.append(1)

    handled(note)

    class SavesOnSigterm(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if arrived:
                control.should_save = control.should_training_stop = True

    tokens = random_tokens(24, 12)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    preemption = Preemption()
    arguments = TrainingArguments(
        str(tmp_path), max_steps=6, report_to="none", use_cpu=True, save_strategy="no"
    )
    attached = HuggingFaceTracker(
        Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96),
        2,
        ["anisotropy", metric(preemption)],
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(model, arguments, train_dataset=data, callbacks=[attached, SavesOnSigterm()]).train()
    assert (tmp_path / "checkpoint-3").is_dir()
    assert arrived == [1]


def test_no_handler_is_set_where_the_program_has_none():
    before = signal.getsignal(signal.SIGTERM)
    assert before is signal.SIG_DFL
    with watching_signals():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_the_program_sets_meanwhile_stays(handled):
    handled(lambda *_: None)

    def newer(*_):
        pass

    with watching_signals():
        signal.signal(signal.SIGTERM, newer)
    assert signal.getsignal(signal.SIGTERM) is newer


def test_other_threads_leave_handlers_alone(handled):
    handled(lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def measure():
        with watching_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    assert seen == [before]


def test_progress_raises_from_the_signal_on(handled):
    handled(lambda *_: None)
    with watching_signals() as arrived:
        progress = LongMeasurement(7, arrived)
        progress("kernels", 0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(MeasurementInterruptedError, match="SIGTERM arrived"):
            progress("kernels", 0.5)


def test_a_measurement_of_many_metrics_is_broken_off_at_the_next_batch(
    tmp_path, small_probe, handled
):
    """Not at the next layer, before which the metrics after the signal would all be computed."""
    handled(lambda *_: None)
    after: list[torch.Tensor] = []

    def late(cloud: torch.Tensor) -> torch.Tensor:
        after.append(cloud)
        return torch.tensor(1.0)

    preemption = Preemption()
    metrics = [
        "anisotropy",
        metric(preemption),
        *(Metric(f"late_{number}", late) for number in range(3)),
    ]
    with Tracker(
        model=HandWritten(),
        probe=small_probe,
        schedule=1,
        metrics=metrics,
        store=tmp_path / "mine",
        on_error="raise",
    ) as tracker:
        before = len(after)
        tracker.step()
        assert len(after) == before
