"""What a user may get wrong with a tracker: calls out of order, and arguments of other types."""

from __future__ import annotations

import re

import pytest
import torch
from small import HandWritten, random_tokens
from torch import nn

from repdyn import Probe, Tracker, measure, open_store
from repdyn.callbacks import HuggingFaceTracker, RepresentationDynamics


def finished(model: nn.Module, probe: Probe, store, n_steps: int = 3) -> Tracker:
    tracker = Tracker(model, probe, schedule=1, store=store, run="mine", report=False).start()
    for _ in range(n_steps):
        tracker.step()
    tracker.finish()
    return tracker


@pytest.mark.parametrize("method", ["step", "measure", "finish"])
def test_a_tracker_that_is_not_started_leaves_an_earlier_run_alone(
    hand_written, small_probe, tmp_path, without_figures, method
):
    finished(hand_written, small_probe, tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path, run="mine", report=False)
    message = re.escape(f"expected a started tracker for {method}()") + ".*call start\\(\\) or use with"
    with pytest.raises(RuntimeError, match=message):
        getattr(other, method)()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert open_store(tmp_path).steps("mine") == [0, 1, 2, 3]


def test_a_finished_tracker_counts_no_steps_and_may_go_on(hand_written, small_probe, tmp_path, without_figures):
    tracker = finished(hand_written, small_probe, tmp_path)
    with pytest.raises(RuntimeError, match="not started or has finished"):
        tracker.step()
    with tracker:
        tracker.step()
        tracker.finish()  # which leaving the block does not repeat
    assert tracker.store.steps("mine") == [0, 1, 2, 3, 4]


def test_a_tracker_is_started_once(hand_written, small_probe, tmp_path, without_figures):
    tracker = Tracker(hand_written, small_probe, store=tmp_path, report=False).start()
    with pytest.raises(RuntimeError, match="got one that is already; call start\\(\\) once"):
        tracker.start()
    tracker.step()
    tracker.finish()


def test_a_number_alone_is_no_loss(hand_written, small_probe, tmp_path, without_figures):
    with Tracker(hand_written, small_probe, store=tmp_path, report=False) as tracker:
        with pytest.raises(TypeError, match="positional argument"):
            tracker.step(3)  # type: ignore[misc]
        tracker.step(loss=3)


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (random_tokens(8, 12), r"expected a repdyn.Probe, got Tensor; make one with Probe.from_tokens\(tokens\)"),
        ("some text", r"expected a repdyn.Probe, got str; make one with Probe.from_texts\(texts, tokenizer\)"),
    ],
)
def test_what_is_no_probe(hand_written, tmp_path, probe, message):
    for attach in (
        lambda: Tracker(hand_written, probe, store=tmp_path),
        lambda: HuggingFaceTracker(probe),
        lambda: RepresentationDynamics(probe),
        lambda: measure(hand_written, probe),
    ):
        with pytest.raises(TypeError, match=message):
            attach()


def test_what_is_no_model(small_probe, tmp_path):
    for attach in (lambda: Tracker(print, small_probe, store=tmp_path), lambda: measure(print, small_probe)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected the model as a torch.nn.Module, got builtin_function_or_method"):
            attach()


def test_a_store_that_is_a_file(hand_written, small_probe, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(NotADirectoryError, match="expected the folder of a store, got the file '.*notes'; name a fold"):
        Tracker(hand_written, small_probe, store=tmp_path / "notes")


def test_the_suggestion_comes_before_the_list_of_metrics(hand_written, small_probe, tmp_path):
    with pytest.raises(ValueError, match="expected the name of a metric, got 'anisotrpy'; did you mean 'anisotropy'?"):
        Tracker(hand_written, small_probe, metrics=["anisotrpy"], store=tmp_path)


def test_a_loss_that_is_no_number_is_named_with_its_step(hand_written, small_probe, tmp_path, without_figures, caplog):
    with Tracker(hand_written, small_probe, schedule=1, store=tmp_path, report=False) as tracker:
        tracker.step(loss=torch.ones(2))
    (failed,) = [record.getMessage() for record in caplog.records if "failed" in record.message]
    assert failed.startswith("tracking at step 1 failed, training goes on: ValueError: expected the loss as one number")


def changed(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)


@pytest.mark.parametrize(
    ("changed_at", "warned"), [((), True), ((1, 2, 3, 4), False), ((2, 3, 4), False), ((1,), True)]
)
def test_weights_that_stay_the_same_are_told_once(
    hand_written, small_probe, tmp_path, without_figures, caplog, changed_at, warned
):
    """A first step may change nothing: a warm-up begins with a learning rate of 0."""
    with Tracker(hand_written, small_probe, schedule=1, store=tmp_path, report=False) as tracker:
        for step in range(1, 5):
            if step in changed_at:
                changed(hand_written)
            tracker.step()
    told = [record.getMessage() for record in caplog.records if "the weights are those of" in record.getMessage()]
    since = max(changed_at, default=0)
    expected = f"step {since + 2}: the weights are those of step {since}; is the model that the tracker was given the"
    assert [text[: len(expected)] for text in told] == [expected] * warned
