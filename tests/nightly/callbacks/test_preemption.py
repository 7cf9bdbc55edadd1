"""A training that a signal or an error ends: the user's checkpoint is saved before anything is
drawn.
"""

import subprocess
import sys
import textwrap
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from small import HandWritten

from repdyn import Tracker, open_store
from repdyn.views.sinks.report import ReportSink


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """What happens at the end of a training, in order."""
    events: list[str] = []

    def record(owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def recording(self: Any, *arguments: Any, **named: Any) -> Any:
            events.append(name)
            return original(self, *arguments, **named)

        monkeypatch.setattr(owner, method, recording)

    record(ReportSink, "draw_all", "views")
    record(ModelCheckpoint, "on_exception", "checkpoint")
    return events


class Interrupting(pl.Callback):
    """Raises an exception in a training's fifth step."""

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 5:
            raise self.exception


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (SIGTERMException(), ["checkpoint"]),
        (KeyboardInterrupt(), ["checkpoint", "views"]),
        (RuntimeError("of the user's own"), ["checkpoint", "views"]),
    ],
    ids=["SIGTERM", "Ctrl-C", "error"],
)
def test_the_checkpoint_is_saved_before_anything_is_drawn(
    tmp_path, probe, events, caplog, exception, expected
):
    saving = ModelCheckpoint(tmp_path / "saved", save_on_exception=True, every_n_train_steps=1000)
    attached = tracker(probe, 2, report=True)
    with pytest.raises((type(exception), SystemExit)):
        trainer(tmp_path, attached, Interrupting(exception), saving).fit(Job(), batches())
    assert events == expected
    assert list((tmp_path / "saved").iterdir())
    assert attached.store.steps("job/0") == [0, 2, 4]
    assert ("repdyn figures" in caplog.text) == ("views" not in expected)


def test_a_second_fit_draws_once(tmp_path, probe, events):
    fitting = trainer(tmp_path, tracker(probe, 2), max_steps=2)
    fitting.fit(Job(), batches())
    fitting.fit_loop.epoch_loop.max_steps = 8
    fitting.callbacks.append(Interrupting(RuntimeError("later")))
    with pytest.raises(RuntimeError, match="later"):
        fitting.fit(Job(), batches())
    assert events == ["views", "views"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_loop_of_ones_own_is_not_kept_from_saving(tmp_path, probe, events, caplog, error):
    attached = Tracker(HandWritten(), probe, schedule=1, store=tmp_path / "store", run="mine")

    def train() -> None:
        with attached:
            attached.step()
            raise error

    with pytest.raises(error):
        train()
    assert attached.store.steps("mine") == [0, 1]
    assert events == []
    assert f"repdyn figures {tmp_path}/store; repdyn report {tmp_path}/store" in caplog.text


@pytest.mark.process
def test_sigterm_to_a_process(tmp_path):
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = {[path for path in sys.path if path.endswith("support")]!r}
        import lightning.pytorch as pl
        from jobs import Job, batches, tracker, trainer
        from lightning.pytorch.callbacks import ModelCheckpoint
        from small import random_tokens
        from repdyn import Probe

        class Preempted(pl.Callback):
            def on_train_batch_end(self, trainer, *_):
                if trainer.global_step == 5:
                    os.kill(os.getpid(), signal.SIGTERM)

        folder = {str(tmp_path / "saved")!r}
        saving = ModelCheckpoint(folder, save_on_exception=True, every_n_train_steps=1000)
        probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
        trainer({str(tmp_path)!r}, tracker(probe, 2), Preempted(), saving).fit(Job(), batches())
    """)
    script = script.replace(
        f"trainer({str(tmp_path)!r}", f"trainer(__import__('pathlib').Path({str(tmp_path)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
    )
    (saved,) = (tmp_path / "saved").iterdir()
    assert torch.load(saved, weights_only=True)["global_step"] == 5
    (store,) = tmp_path.rglob("repdyn")
    assert open_store(store).steps("job/0") == [0, 2, 4]
    assert not (store / "figures").exists()
    assert f"repdyn figures {store}" in done.stderr
