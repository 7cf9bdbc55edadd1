"""Nothing breaks: what goes wrong costs a value or a view, is said once, and is mended where it can be."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import threading
import weakref

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from small import HandWritten

from repdyn import Tracker, open_store
from repdyn.metrics import LayerView, Metric, resolve
from repdyn.store import Store
from repdyn.utils.attempts import TimeoutRunner

pytestmark = pytest.mark.slow


def broken_kernel(cloud) -> torch.Tensor:
    raise ZeroDivisionError("no such luck")


BROKEN = Metric("broken", broken_kernel, "always fails", (0.0, 1.0), "nobody")


def steps(tracker: Tracker, n: int) -> None:
    with tracker:
        for _ in range(n):
            tracker.step()


@pytest.fixture
def tracked(tmp_path, small_probe, without_figures):
    return lambda **settings: Tracker(HandWritten(), small_probe, store=tmp_path / "mine", **{"schedule": 1} | settings)


class _FullDisk:
    """Refuses to write until there is room."""

    def __init__(self, monkeypatch, full: bool = True) -> None:
        self.full = full
        write = Store.write

        def guarded(store, key, rows):
            if self.full and "rescued" not in str(store.path):
                raise OSError(
                    errno.ENOSPC, os.strerror(errno.ENOSPC), str(store.path / f"{os.urandom(4).hex()}.parquet")
                )
            return write(store, key, rows)

        monkeypatch.setattr(Store, "write", guarded)


def test_a_metric_that_raises_costs_its_own_rows(tracked, caplog):
    tracker = tracked(metrics=["anisotropy", BROKEN])
    steps(tracker, 3)
    frame = tracker.store.to_pandas()
    failed = frame["metric"] == "broken"
    assert set(frame.loc[failed, "reason"]) == {"ZeroDivisionError: no such luck"}
    assert frame.loc[~failed, "value"].notna().all()
    said = [record.message for record in caplog.records if "broken" in record.message]
    assert said == ["step 0: broken of layer 0 is undefined, training goes on: ZeroDivisionError: no such luck"]


def test_a_metric_that_raises_stops_the_training_where_that_is_asked_for(tracked):
    with pytest.raises(ZeroDivisionError, match="no such luck"):
        steps(tracked(metrics=["anisotropy", BROKEN], on_error="raise"), 3)


def test_nan_weights_are_said_once_and_stand_in_the_rows(tracked, caplog):
    tracker = tracked()
    with tracker:
        for number in range(3):
            if number == 1:
                torch.nn.init.constant_(tracker._model.blocks[1].norm.weight, math.nan)
            tracker.step()
    frame = tracker.store.to_pandas()
    late = frame[(frame["step"] > 1) & (frame["layer"] > 1)]
    assert late["value"].isna().all()
    assert set(late["reason"]) == {"batch 0: the points contain NaN"}
    said = [record.message for record in caplog.records if "undefined" in record.message]
    assert [re.sub("step.*: (.*) of.*", r"\1", line) for line in said] == ["anisotropy", "two_nn"]


def test_a_full_disk_loses_nothing_once_there_is_room_again(tracked, monkeypatch, caplog, tmp_path):
    logger = CSVLogger(tmp_path, name="logs", version="0")
    tracker = tracked(loggers=[logger])
    disk = _FullDisk(monkeypatch, full=False)
    with tracker:
        disk.full = True
        tracker.step()
        tracker.step()
        assert tracker.store.steps("mine") == [0]
        disk.full = False
        tracker.step()
    assert tracker.store.steps("mine") == [0, 1, 2, 3]
    complaints = [record.message for record in caplog.records if "No space left" in record.message]
    assert len(complaints) == 1  # though the file has another name each time
    assert complaints[0].startswith("tracking at step 1 failed, training goes on: OSError: [Errno 28]")
    logger.save()
    logged = (tmp_path / "logs" / "0" / "metrics.csv").read_text().splitlines()
    assert len(logged) == 1 + 4  # late, but in order


def test_a_disk_that_stays_full_leaves_the_rows_elsewhere_and_says_where(tracked, monkeypatch, caplog):
    _FullDisk(monkeypatch)
    tracker = tracked()
    steps(tracker, 2)
    assert tracker.store.steps("mine") == []
    (said,) = {
        found[1] for record in caplog.records if (found := re.search("they are in (.*), from where", record.message))
    }
    rescued = open_store(said)
    assert rescued.steps("mine") == [0, 1, 2]
    assert rescued.to_pandas("mine")["value"].notna().all()
    assert len(list(rescued.path.glob("probes/*"))) == 1


def test_rows_that_wait_when_nobody_says_that_a_training_ended_are_rescued(tracked, monkeypatch, caplog):
    _FullDisk(monkeypatch)
    tracker = tracked()
    tracker.__enter__()
    tracker.step()
    keeping = tracker._tracked._buffer
    rescue = next(f for f in weakref.finalize._registry if f.peek() and f.peek()[0] is keeping)
    assert rescue.atexit
    rescue()  # as at the end of the process
    (path,) = (
        found[1]
        for record in caplog.records
        if (found := re.search("the training ended before it did; they are in (.*), from where", record.message))
    )
    assert open_store(path).steps("mine") == [0, 1]


@pytest.mark.parametrize("loss", [torch.ones(3), "none", object()], ids=["vector", "text", "object"])
def test_a_loss_that_is_no_number_costs_its_own_row(tracked, caplog, loss):
    tracker = tracked()
    with tracker:
        tracker.step(loss=loss)
        tracker.step(loss=loss)
    assert tracker.store.steps("mine") == [0, 1, 2]
    assert "train/loss" not in set(tracker.store.to_pandas()["metric"])
    said = [record.message for record in caplog.records if "expected the loss as one number" in record.message]
    assert len(said) == 1


def test_a_learning_rate_that_is_no_number_costs_its_own_row(tracked, caplog):
    tracker = tracked()
    with tracker:
        tracker.step(loss=1.5, learning_rate=torch.ones(3))
    assert {"train/loss"} == {name for name in tracker.store.to_pandas()["metric"] if name.startswith("train/")}
    assert "expected the learning rate as one number, got Tensor" in caplog.text


def test_a_cloud_that_cannot_be_made_costs_its_own_rows(tracked, monkeypatch):
    made = LayerView.clouds

    def failing(view, subset):
        if view.layer.index == 2:
            raise torch.OutOfMemoryError("no memory")
        return made(view, subset)

    monkeypatch.setattr(LayerView, "clouds", failing)
    tracker = tracked()
    steps(tracker, 1)
    frame = tracker.store.to_pandas()
    of_layer = frame["layer"] == 2
    assert set(frame.loc[of_layer, "reason"]) == {"OutOfMemoryError: no memory"}
    assert set(frame.loc[of_layer, "n_unique"]) == {0}
    assert frame.loc[~of_layer, "value"].notna().all()


def test_figures_on_a_mount_that_is_gone_do_not_hold_up_the_end(tmp_path, small_probe, monkeypatch, caplog):
    answer = threading.Event()
    monkeypatch.setattr("repdyn.publish.results.show_run", lambda *_, **__: answer.wait(60))
    monkeypatch.setattr("repdyn.tracking.run_views.DRAWING_SECONDS", 0.1)
    steps(Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine"), 1)
    assert any("drawing mine took more than 0.1 s" in record.message for record in caplog.records)
    answer.set()


def test_a_full_disk_stops_the_training_where_that_is_asked_for(tracked, monkeypatch):
    _FullDisk(monkeypatch)
    with pytest.raises(OSError, match="No space left on device"):
        steps(tracked(on_error="raise"), 2)


def test_a_store_that_never_answers_costs_one_wait(tracked, monkeypatch, caplog):
    """As on a network mount whose server is gone: the call neither returns nor raises."""
    tracker, answer = tracked(), threading.Event()
    tracker._tracked._buffer._with_timeout = TimeoutRunner(0.2)
    write, hung = Store.write, []

    def hanging(store, key, rows):
        if "rescued" in str(store.path):
            return write(store, key, rows)
        hung.append(key.step)
        return answer.wait(60)

    monkeypatch.setattr(Store, "write", hanging)
    steps(tracker, 3)
    assert hung == [0]
    said = [record.message for record in caplog.records if record.name == "repdyn.tracking.run_warnings"]
    assert said[0].startswith("tracking at step 0 failed, training goes on: TimeoutError: writing step 0 to ")
    assert "took more than 0.2 s; is the disk or the network mount there?" in said[0]
    assert any("they are in /" in line for line in said)
    answer.set()


def test_a_store_that_cannot_be_read_is_measured_for_all_the_same(tracked, monkeypatch, caplog):
    tracker, broken = tracked(), [True]
    contains = Store.__contains__

    def gone(store, key):
        if broken[0]:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return contains(store, key)

    monkeypatch.setattr(Store, "__contains__", gone)
    with tracker:
        tracker.step()
        broken[0] = False
    assert tracker.store.steps("mine") == [0, 1]
    assert len([record for record in caplog.records if "Stale file handle" in record.message]) == 1


def test_a_logger_that_fails_is_named_once_and_costs_no_row(tracked, tmp_path, caplog):
    class Failing(CSVLogger):
        def log_metrics(self, metrics, step=None):
            raise ConnectionError(f"no connection, attempt {step}")

    sound = CSVLogger(tmp_path, name="sound", version="0")
    tracker = tracked(loggers=[Failing(tmp_path, name="failing", version="0"), sound])
    steps(tracker, 3)
    assert tracker.store.steps("mine") == [0, 1, 2, 3]
    assert tracker.store.to_pandas()["reason"].isna().all()
    sound.save()
    assert len((tmp_path / "sound" / "0" / "metrics.csv").read_text().splitlines()) == 5
    assert len([record for record in caplog.records if "no connection" in record.message]) == 1


def test_figures_that_cannot_be_drawn_are_no_reason_to_end_a_job_with_an_error(
    tmp_path, small_probe, monkeypatch, caplog
):
    monkeypatch.setattr("repdyn.publish.results.show_run", lambda *_, **__: 1 / 0)
    steps(Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine"), 1)
    assert any("drawing at the end failed" in record.message for record in caplog.records)
    with pytest.raises(ZeroDivisionError):
        steps(Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "other", on_error="raise"), 1)


def test_secrets_do_not_reach_the_store_or_the_log(tracked, monkeypatch, caplog):
    def forward(model, batch):
        raise ConnectionError("https://me:swordfish@host/x?token=hf_abcdefghijklmnopqrstuvwxyz")

    tracker = tracked(forward=forward)
    with caplog.at_level(logging.DEBUG):
        steps(tracker, 1)
    stored = b"".join(path.read_bytes() for path in tracker.store.path.rglob("*.parquet"))
    frame = tracker.store.to_pandas()
    assert frame["reason"].str.startswith("ConnectionError: https://").all()
    for text in (stored, caplog.text.encode(), "".join(frame["reason"]).encode()):
        assert b"swordfish" not in text
        assert b"hf_abc" not in text


def test_out_of_memory_in_the_forward_pass_costs_the_step(tracked, small_probe):
    tracker, calls = tracked(), []

    def forward(model, batch):
        calls.append(1)
        if len(calls) < 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return model(batch.input_ids)

    tracker = tracked(forward=forward, metrics="all")
    steps(tracker, 1)
    assert tracker.store.steps("mine") == [1]
    frame = tracker.store.to_pandas()
    assert set(frame.loc[frame["step"] == 0, "metric"]) == {metric.name for metric, _ in resolve("all", small_probe)}
    assert set(frame.loc[frame["step"] == 0, "reason"]) == {
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    }
