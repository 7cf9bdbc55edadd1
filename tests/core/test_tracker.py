"""The tracker in a loop of one's own: when it measures, that the loop is what it was, and that
nothing ends it.
"""

from __future__ import annotations

import copy
import errno
import gc
import math
import os
import pickle
import re
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from internals import TorchDispatchMode
from jobs import Loop
from lightning.pytorch.loggers import CSVLogger
from small import HandWritten, random_tokens
from synthetic_runs import make_row
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from repdyn import Tracker, measure, open_store
from repdyn.callbacks import HuggingFaceTracker, RepresentationDynamics
from repdyn.measurement.measure import measure_with
from repdyn.metrics import Metric
from repdyn.store import Store
from repdyn.store.schema import ReasonCode
from repdyn.tracking.notices import Notices
from repdyn.views.alerts import Rule
from repdyn.views.judging import comparison_statements, described_runs

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def attach(tmp_path, small_probe):
    def make(model: nn.Module, **settings) -> Tracker:
        given = {"schedule": 2, "store": tmp_path / "mine", "on_error": "raise", "report": False}
        return Tracker(model, small_probe, **given | settings)

    return make


def values(frame, step, metric="anisotropy"):
    rows = frame[(frame["step"] == step) & (frame["metric"] == metric) & frame["layer"].notna()]
    return rows.set_index(["subset", "layer"])["value"].sort_index().tolist()


def test_steps_scalars_and_tokens_are_stored(attach):
    loop = Loop()
    with attach(loop.model) as tracker:
        for step in range(1, 6):
            validation = 2.5 if step == 3 else None
            tracker.step(
                loss=loop.step(), tokens=48, learning_rate=step / 4, validation_loss=validation
            )
    frame = tracker.store.to_pandas()
    assert tracker.store.runs() == ["mine"]
    assert tracker.store.steps("mine") == [0, 2, 4, 5]
    scalars = {
        name: rows.set_index("step")["value"].to_dict() for name, rows in frame.groupby("metric")
    }
    assert scalars["train/loss"] == {
        step: pytest.approx(loop.losses[step - 1]) for step in (2, 4, 5)
    }
    assert scalars["train/learning_rate"] == {2: 0.5, 4: 1.0, 5: 1.25}
    assert scalars["val/loss"] == {4: 2.5}  # once, with the next measurement
    assert frame.groupby("step")["tokens_seen"].first().to_dict() == {0: 0, 2: 96, 4: 192, 5: 240}
    assert set(frame["weights_kind"].dropna()) == {"raw"}


def test_tokens_that_nobody_counts_are_unknown_and_not_none(attach):
    loop = Loop()
    with attach(loop.model, start=4) as tracker:
        tracker.step(loss=loop.step())
    assert tracker.store.to_pandas()["tokens_seen"].isna().all()


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_loop_is_bit_identical(attach, precision):
    plain = Loop(precision=precision)
    tracked = Loop(precision=precision)
    torch.manual_seed(2)
    for _ in range(3):
        plain.step()
    drawn = torch.rand(1)
    torch.manual_seed(2)
    with attach(tracked.model, schedule=1) as tracker:
        for _ in range(3):
            tracker.step(loss=tracked.step())
    assert tracked.losses == plain.losses
    assert torch.equal(torch.rand(1), drawn)
    for expected, found in zip(plain.model.parameters(), tracked.model.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_measured_where_a_checkpoint_is_saved(attach):
    loop = Loop()
    with attach(loop.model, schedule="checkpoints") as tracker:
        for _ in range(4):
            tracker.step(loss=loop.step())
            if tracker.now == 3:
                tracker.measure()
                tracker.measure()
    assert tracker.store.steps("mine") == [0, 3, 4]


@pytest.mark.parametrize("ends", [KeyboardInterrupt, ZeroDivisionError])
def test_what_was_measured_is_kept_when_a_training_breaks_off(attach, ends, caplog):
    loop = Loop()
    tracker = attach(loop.model)

    def break_off() -> None:
        with tracker:
            for _ in range(3):
                tracker.step(loss=loop.step())
            raise ends

    with pytest.raises(ends):
        break_off()
    assert tracker.store.steps("mine") == [0, 2]
    assert "repdyn figures " in caplog.text


def test_a_loop_that_never_counts_a_step_is_told_so(attach, caplog):
    loop = Loop()
    with attach(loop.model):
        loop.step()
    assert "tracker.step() was never called" in caplog.text


def test_the_last_summary_has_every_metric_that_was_asked_for(
    attach, small_probe, monkeypatch, capsys
):
    """Some were measured and nowhere to be seen at the end."""
    monkeypatch.undo()  # what stands for the views
    monkeypatch.setattr("repdyn.views.figures.run.all_figures", lambda *_, **__: {})
    metrics = (
        "anisotropy",
        "two_nn",
        "effective_rank@no_sink",
        "cka_previous",
        Metric(
            name="mine",
            kernel=lambda cloud: cloud.x.mean(),
            meaning="the mean",
            range=(0, 1),
            source="nobody",
        ),
    )
    with attach(HandWritten(), schedule=1, metrics=metrics) as tracker:
        tracker.step()
    summary = " ".join(capsys.readouterr().out.split())
    for metric in (
        "anisotropy, all",
        "two_nn, all",
        "effective_rank (no_sink)",
        "cka_previous (all)",
        "mine (all)",
    ):
        assert f" {metric}" in summary, metric


def test_weights_that_stay_the_same_are_mentioned_once(attach, caplog):
    """The tracker was given another model than the one that is trained; an average may stay the
    same for an epoch.
    """
    with attach(model := HandWritten(), schedule=1, averaged=model) as tracker:
        for _ in range(4):
            tracker.step(loss=1.0)
    assert caplog.text.count("the weights are those of step 0") == 1


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda model: model.requires_grad_(False), "all its parameters are frozen"),
        (lambda model: model.token.weight.grad.fill_(torch.inf), "gradients are inf or NaN"),
        (lambda model: None, "the learning rate is 0"),
    ],
    ids=["frozen", "skipped", "rate"],
)
def test_why_weights_stay_the_same_is_what_is_the_case(attach, caplog, change, cause):
    """Frozen parts and skipped steps were told that the optimizer trains another model."""
    loop = Loop()
    loop.step()
    change(loop.model)
    with attach(loop.model, schedule=1) as tracker:
        for _ in range(3):
            tracker.step(learning_rate=0.0)
    assert caplog.text.count("the weights are those of step 0: ") == 1
    assert cause in caplog.text
    assert "is the model that the tracker was given" not in caplog.text


@pytest.mark.parametrize("method", ["step", "measure", "finish"])
def test_a_tracker_that_is_not_started_says_so(attach, method):
    with pytest.raises(RuntimeError, match="started"):
        getattr(attach(HandWritten()), method)()


def test_an_object_that_holds_a_tracker_can_be_copied_during_a_training(attach):
    loop = Loop()
    loop.tracker = attach(loop.model).start()
    loop.tracker.step(loss=loop.step())
    other = copy.deepcopy(loop)
    assert other.tracker._model is other.model is not loop.model
    with other.tracker as tracker:
        tracker.step(loss=other.step())
    loop.tracker.finish()
    assert [loop.tracker.store.steps(run) for run in loop.tracker.store.runs()] == [[0, 1, 2]]
    assert (
        copy.deepcopy(attach(loop.model, store="memory://mine")).store.location == "memory://mine"
    )


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt, ZeroDivisionError])
def test_a_tracker_that_has_finished_keeps_no_model_alive(attach, ends):
    """Trackers kept for their stores filled the memory with the models of earlier trials."""
    loop = Loop()
    tracker = attach(loop.model, averaged=AveragedModel(loop.model), metrics=["update_ratio"])

    def train(loop: Loop) -> None:
        with tracker:
            for _ in range(3):
                tracker.step(loss=loop.step())
            if ends is not None:
                raise ends

    with nullcontext() if ends is None else pytest.raises(ends):
        train(loop)
    copies = [copy.deepcopy(tracker), pickle.loads(pickle.dumps(tracker))]
    with tracker:  # as long as the model is there, it may start again
        pass
    model = weakref.ref(loop.model)
    del loop
    gc.collect()
    assert model() is None
    assert tracker.store.steps("mine")[:2] == [0, 2]
    for finished in [tracker, *copies]:
        assert finished.state_dict()["step"] == 3
        with pytest.raises(RuntimeError, match="another Tracker"):
            finished.start()


def test_averaged_weights_are_a_run_of_their_own(attach, small_probe):
    loop = Loop()
    average = AveragedModel(loop.model)
    with attach(loop.model, averaged=average) as tracker:
        for _ in range(4):
            loss = loop.step()
            average.update_parameters(loop.model)
            tracker.step(loss=loss)
    frame = tracker.store.to_pandas()
    kinds = frame.dropna(subset="layer").groupby("run")["weights_kind"].unique().map(list).to_dict()
    assert kinds == {"mine": ["raw"], "mine (averaged)": ["averaged"]}
    for run, model in (("mine", loop.model), ("mine (averaged)", average.module)):
        expected = measure(model, small_probe).to_pandas()
        is_of_run = frame["run"] == run
        assert values(frame[is_of_run], 4) == values(expected.assign(step=4), 4)


def test_the_budget_counts_raw_and_averaged_weights_as_one_measurement(attach, monkeypatch):
    """Where the averaged ones counted by themselves, a measurement would pass for half of it."""
    clock = [time.perf_counter()]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def three_seconds(*arguments, **options):
        clock[0] += 3.0
        return measure_with(*arguments, **options)

    monkeypatch.setattr("repdyn.tracking.run.measure_with", three_seconds)
    model = HandWritten()
    average = AveragedModel(model)
    settings = {"schedule": 1, "max_overhead": 0.5, "metrics": ["norm"]}
    with attach(model, averaged=average, **settings) as tracker:
        for _ in range(20):
            clock[0] += 1.0
            tracker.step(loss=1.0)
    # 6 s and another 6 are half of 24, 12 and another 6 half of 36; by 3 s it would be steps 9 and
    # 15; the last step is measured whatever the budget
    assert tracker.store.steps("mine") == [0, 12, 18, 20]
    assert tracker.store.steps("mine (averaged)") == [0, 12, 18, 20]


def test_averaged_weights_of_another_structure_are_refused(attach):
    """The layers that the average lacks had values of the trained weights."""
    with pytest.raises(ValueError, match="same structure"):
        attach(
            nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))),
            averaged=nn.Sequential(nn.Linear(2, 2)),
        )


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo):
        pytest.fail("a model among the settings is copied")


def test_runs_are_told_apart_by_the_settings_of_their_loops(attach, tmp_path):
    """Loops told nothing but a learning rate, and the model of a hyperparameter was copied."""
    for number, rate in enumerate((1e-3, 1e-2)):
        settings = {
            "lr": rate,
            "model": {"layers": 2},
            "key": "hf_abcdefghijklmnopqr",
            "tags": {"a"},
            "of": Uncopied(2, 2),
        }
        with attach(Loop().model, store=tmp_path / f"{number}", configuration=settings):
            pass
    data = described_runs([open_store(tmp_path / f"{number}") for number in range(2)])
    told = comparison_statements(data.runs, data.seeds)[0]
    assert told.sentence == "These runs differ in: lr 0.001 (0), 0.01 (1)."
    assert "hf_" not in next(tmp_path.glob("0/*/run.json")).read_text()


def tracked_with(attach, folder, configurations):
    """Return what is said of one loop for each configuration, and the runs that it is said of."""
    for number, settings in enumerate(configurations):
        torch.manual_seed(number)
        loop = Loop()
        with attach(loop.model, store=folder / f"{number}", configuration=settings):
            pass
    numbers = range(len(configurations))
    data = described_runs([open_store(folder / f"{number}") for number in numbers])
    return comparison_statements(data.runs, data.seeds), data


def test_a_setting_that_two_names_have_is_listed_once(attach, tmp_path):
    """A module's learning rate was listed again as that of its optimizer."""
    rates = [{"learning_rate": rate, "AdamW.lr": rate} for rate in (1e-3, 1e-2)]
    (told, *_), _ = tracked_with(attach, tmp_path, rates)
    assert told.sentence == (
        "These runs differ in: learning_rate and AdamW.lr 0.001 (0), 0.01 (1)."
    )


def test_runs_whose_settings_differ_in_the_seed_alone_are_seeds(attach, tmp_path):
    """Two seeds of one setting were compared as if they were two models."""
    configurations = [{"lr": 1e-3, "seed": 1}, {"lr": 1e-3, "seed": 2}, {"lr": 1e-2, "seed": 3}]
    _, data = tracked_with(attach, tmp_path, configurations)
    assert [[member.name for member in group.members] for group in data.seeds] == [["0", "1"]]
    assert data.seeds[0].label == "0 and 1 (2 seeds)"
    again = described_runs([tmp_path / "0", tmp_path / "1"], seeds=())
    assert not again.seeds


@pytest.mark.parametrize("seeds", [(1, 1), (None, None)])
def test_runs_of_one_seed_are_no_seeds(attach, tmp_path, seeds):
    """One seed twice would count as two independent values."""
    _, data = tracked_with(attach, tmp_path, [{"lr": 1e-3, "seed": seed} for seed in seeds])
    assert not data.seeds


def test_a_rule_about_nothing_that_is_measured_is_mentioned(attach, caplog):
    """A misspelt metric disabled a rule that was to stop the training, without a word."""
    rules = [
        Rule(name=name, when="above", metrics=(metric,), bound=1.0)
        for name, metric in (("a", "two_nn"), ("b", "two_n"))
    ]
    with attach(Loop().model, alerts=rules):
        pass
    assert re.findall(r"the rule '(\w)' raises no alert", caplog.text) == ["b"]


def test_a_mistyped_option_is_named_with_the_one_that_was_meant(attach):
    with pytest.raises(TypeError, match=r"Tracker\(\).*'sedule'.*'schedule'"):
        attach(HandWritten(), sedule=3)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"metrics": ["twonn"]}, "two_nn"),
        ({"on_error": "ignore"}, "warn"),
        ({"layers": "layers.*"}, "matches none"),
        ({"schedule": "hourly"}, "schedule"),
        ({"start": -1}, "start"),
        ({"max_overhead": 2.0}, "max_overhead"),
        ({"log_layers": ["tow_nn"]}, "log_layers"),
        ({"ranks": "some"}, "ranks"),
    ],
)
def test_what_cannot_work_is_refused_at_once(attach, settings, word):
    with pytest.raises(ValueError, match=word):
        attach(HandWritten(), **settings)


def test_what_is_no_probe_or_model_is_refused(attach, small_probe):
    for make in (
        lambda: Tracker(HandWritten(), "text"),  # type: ignore[arg-type]
        lambda: HuggingFaceTracker(random_tokens(8, 12)),  # type: ignore[arg-type]
        lambda: RepresentationDynamics("text"),  # type: ignore[arg-type]
        lambda: Tracker(print, small_probe),  # type: ignore[arg-type]
        lambda: Tracker(HandWritten(), small_probe, loggers="wandb"),
        lambda: Tracker(HandWritten(), small_probe, resume="step.pt"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="expected"):
            make()
    with pytest.raises(TypeError, match="by position"):
        RepresentationDynamics(type("DictConfig", (), {})())  # which Hydra makes of a probe


def test_a_metric_that_raises_costs_its_own_rows(attach, caplog):
    def fails(cloud) -> Tensor:
        raise ZeroDivisionError("no such luck")

    loop = Loop()
    with attach(
        loop.model, metrics=["anisotropy", Metric("broken", fails)], on_error="warn"
    ) as tracker:
        for _ in range(2):
            tracker.step(loss=loop.step())
    frame = tracker.store.to_pandas().dropna(subset="layer")
    failed = frame["metric"] == "broken"
    assert set(frame.loc[failed, "reason"]) == {"ZeroDivisionError: no such luck"}
    assert frame.loc[~failed, "value"].notna().all()
    assert caplog.text.count("broken of layer 0 is undefined") == 1
    with (
        pytest.raises(ZeroDivisionError),
        attach(HandWritten(), metrics=[Metric("broken", fails)], run="strict"),
    ):
        pass


def test_a_metric_of_a_tensor_hears_where_the_tensor_is(attach):
    """Metrics of this package take tensors as well, so that one's own is written for a tensor."""
    with attach(HandWritten(), metrics=[Metric("norm", lambda x: x.norm())], on_error="warn") as t:
        pass
    (reason,) = set(t.store.to_pandas().dropna(subset="layer")["reason"])
    assert reason.endswith("no attribute 'norm'; its vectors, a tensor (n_vectors, dim), are its x")


def test_a_store_of_none_is_the_default_one(small_probe, tmp_path, monkeypatch):
    """So that a flag that is not given can be passed on, as to the callbacks."""
    monkeypatch.chdir(tmp_path)
    assert Tracker(HandWritten(), small_probe, store=None).store.path == tmp_path / "repdyn"


@pytest.mark.parametrize("loss", [torch.ones(3), "none"], ids=["vector", "text"])
def test_a_loss_that_is_no_number_costs_its_own_row(attach, caplog, loss):
    with attach(HandWritten(), schedule=1, on_error="warn") as tracker:
        tracker.step(loss=loss)
    assert tracker.store.steps("mine") == [0, 1]
    assert "loss as one number" in caplog.text


class FullDisk:
    """Refuses to write until there is room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        write = Store.write

        def guarded(store, key, rows, probe=None):
            if self.full and "rescued" not in str(store.path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(store, key, rows, probe)

        monkeypatch.setattr(Store, "write", guarded)


def test_a_full_disk_loses_nothing_once_there_is_room_again(attach, monkeypatch, caplog, tmp_path):
    logger = CSVLogger(tmp_path, name="logs", version="0")
    disk = FullDisk(monkeypatch)
    loop = Loop()
    with attach(loop.model, schedule=1, on_error="warn", loggers=[logger]) as tracker:
        disk.full = True
        for _ in range(2):
            tracker.step(loss=loop.step())
        assert tracker.store.steps("mine") == [0]
        disk.full = False
        tracker.step(loss=loop.step())
    assert tracker.store.steps("mine") == [0, 1, 2, 3]
    assert caplog.text.count("training goes on: OSError") == 1
    logger.save()
    assert (
        len((tmp_path / "logs" / "0" / "metrics.csv").read_text().splitlines()) == 1 + 4
    )  # late, but in order


def test_a_disk_that_stays_full_leaves_the_rows_elsewhere_and_says_where(
    attach, monkeypatch, caplog
):
    disk = FullDisk(monkeypatch)
    loop = Loop()
    with attach(loop.model, schedule=1, on_error="warn") as tracker:
        disk.full = True
        tracker.step(loss=loop.step())
        at_once = re.search(r"wait in memory, and in (\S+)", caplog.text)[1]  # type: ignore[index]
        rescued = open_store(at_once)  # which a killed process leaves
        assert [step for run in rescued.runs() for step in rescued.steps(run)] == [1]
    assert re.search(r"they are in (\S+), from where", caplog.text)[1] == at_once


class Stuck(CSVLogger):
    """Does not return from a call for as long as a tracking server does not answer."""

    answer = threading.Event()

    def log_metrics(self, metrics, step=None):
        self.answer.wait(60)
        super().log_metrics(metrics, step)


def test_a_logger_that_hangs_delays_neither_training_nor_other_loggers(
    attach, tmp_path, monkeypatch
):
    monkeypatch.setattr("repdyn.tracking.sinks.LOGGER_SECONDS", 0.1)
    stuck = Stuck(tmp_path, name="stuck", version="0")
    quick = CSVLogger(tmp_path, name="quick", version="0")
    loop = Loop()
    quick.log_metrics = Mock()
    tracker = attach(loop.model, schedule=1, loggers=[stuck, quick], on_error="warn").start()
    for _ in range(3):
        tracker.step(loss=loop.step())
    assert [call.kwargs["step"] for call in quick.log_metrics.call_args_list] == [0, 1, 2, 3]
    stuck.answer.set()
    tracker.finish()
    stuck.save()
    assert len((tmp_path / "stuck" / "0" / "metrics.csv").read_text().splitlines()) == 1 + 4


def _write_slowly(*_, **__):
    time.sleep(1.0)


def _fail_to_write(*_, **__):
    raise RuntimeError("no font")


def _fail_to_draw(*_, **__):
    raise RuntimeError("no canvas")


@pytest.mark.parametrize("write", [_write_slowly, _fail_to_write])
def test_a_page_that_is_slow_or_fails_ends_no_training(attach, monkeypatch, caplog, write):
    """Under on_error="raise", as the first configuration of the README has it, a page that took
    more than its time on a busy machine ended the training.
    """
    monkeypatch.setattr("repdyn.views.sinks.report.ReportSink.seconds", 0.1)
    monkeypatch.setattr("repdyn.views.sinks.report.MAX_TIME_SHARE", 1e9)  # every step is due
    monkeypatch.setattr("repdyn.views.report.write_report", write)
    monkeypatch.setattr("repdyn.views.publish.results.show_run", _fail_to_draw)
    loop = Loop()
    with attach(loop.model, schedule=1, report=True) as tracker:
        for _ in range(3):
            tracker.step(loss=loop.step())
    assert tracker.store.steps("mine") == [0, 1, 2, 3]
    assert caplog.text.count("drawing at step 0 failed") == 1
    assert caplog.text.count("drawing at the end failed") == 1
    assert caplog.text.count("failed, training goes on") == 2


def test_a_logger_that_fails_ends_no_training_and_hides_no_request_to_stop(
    attach, tmp_path, caplog
):
    class Failing(CSVLogger):
        def log_metrics(self, metrics, step=None):
            raise OSError("no route to host")

    rule = Rule(name="stopping", when="above", metrics=("anisotropy",), bound=-1.0, stop=True)
    loop = Loop()
    logger = Failing(tmp_path, name="logs", version="0")
    with attach(loop.model, schedule=1, loggers=[logger], alerts=[rule]) as tracker:
        tracker.step(loss=loop.step())
    assert tracker.store.steps("mine") == [0, 1]
    assert tracker.should_stop
    assert caplog.text.count("failed, training goes on: OSError: no route to host") == 1


class FullStream:
    """Standard error on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("stream", [FullStream(), None], ids=["full", "closed"])
def test_a_standard_error_that_takes_nothing_ends_no_training(attach, monkeypatch, stream):
    """The line on the cost of a measurement raised, after some steps."""
    monkeypatch.setattr(sys, "stderr", stream)
    loop = Loop()
    with attach(loop.model, metrics=["anisotropy"]) as tracker:
        for _ in range(8):
            tracker.step(loss=loop.step())
    assert tracker.store.steps("mine") == [0, 2, 4, 6, 8]


def test_a_standard_output_that_takes_nothing_ends_no_training(attach, monkeypatch):
    """The summary raised at the end of a training that went well."""
    monkeypatch.undo()  # what stands for the views
    monkeypatch.setattr("repdyn.views.figures.run.all_figures", lambda *_, **__: {})
    monkeypatch.setattr(sys, "stdout", FullStream())
    with attach(HandWritten(), schedule=1) as tracker:
        tracker.step()
    assert tracker.store.steps("mine") == [0, 1]


def test_a_mode_that_counts_operations_sees_none_of_a_measurement(attach, small_probe):
    class Counting(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.n += 1
            return func(*args, **(kwargs or {}))

    tracker = attach(HandWritten())
    assert small_probe.hash  # computed once, of the probe alone
    with Counting() as seen:
        tracker.start()
    assert tracker.store.steps("mine") == [0]
    assert seen.n == 0


@pytest.mark.parametrize("store", ["mine", "~/mine"])
def test_a_script_that_changes_its_folder_keeps_one_store(attach, tmp_path, monkeypatch, store):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    loop = Loop()
    with attach(loop.model, store=store) as tracker:
        monkeypatch.chdir(tmp_path / "other")
        for _ in range(2):
            tracker.step(loss=loop.step())
    assert not list((tmp_path / "other").iterdir())
    assert open_store(tmp_path / "mine").steps("mine") == [0, 2]
    assert tracker.store.path == tmp_path / "mine"


@pytest.mark.parametrize(
    ("layer", "code", "n_unique", "warns"),
    [
        (0, ReasonCode.FEW_DISTINCT, 2, False),
        (0, ReasonCode.FEW_DISTINCT, 1, True),
        (1, ReasonCode.FEW_DISTINCT, 2, True),
        (0, ReasonCode.NOT_FINITE, 2, True),
    ],
)
def test_a_small_vocabulary_is_known_by_the_code_of_the_reason(
    caplog, layer, code, n_unique, warns
):
    row = make_row(layer=layer, value=math.nan, reason="in other words", reason_code=code)
    row = row.with_columns(n_unique=n_unique)
    Notices(on_error="warn").of_measurement([row], None, ())
    assert ("is undefined" in caplog.text) == warns
