"""Alerts while a model trains: in the log, in the loggers, kept beside the rows, and a stop only where it is asked for."""

import logging
import math

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from small import HandWritten
from synthetic_runs import fill, make_row

from repdyn import Tracker
from repdyn.alerts import RULES, Rule, find_alerts, read_rules, stored_rules
from repdyn.tables.lines import alert_lines
from repdyn.tracking.alert_monitor import AlertMonitor

ANY = Rule(name="any", when="above", bound=0.0, metrics=("anisotropy",), subsets=("all",))
HALT = Rule(name="halt", when="undefined", metrics=("*",), stop=True)


@pytest.fixture
def tracked(tmp_path, small_probe, without_figures):
    def make(**given):
        torch.manual_seed(0)
        return Tracker(HandWritten(), small_probe, store=tmp_path / "mine", **{"schedule": 1} | given)

    return make


def break_weights(tracker):
    torch.nn.init.constant_(tracker._model.blocks[1].norm.weight, math.nan)


def alerts_said(caplog):
    return [
        r.message for r in caplog.records if r.name == "repdyn.tracking.alert_monitor" and r.levelno == logging.WARNING
    ]


@pytest.mark.slow
def test_a_broken_training_is_told_of_once_and_goes_on(tracked, caplog):
    with tracked(metrics=["anisotropy@all"]) as tracker:
        tracker.step()
        break_weights(tracker)
        tracker.step()
        tracker.step()
    assert not tracker.should_stop
    (said,) = alerts_said(caplog)
    assert said.startswith(
        "alert at step 2, no value: anisotropy (all) of layers 2-3 has no value any more: in layer 2, "
    )
    assert said.endswith("the points contain NaN")


@pytest.mark.slow
def test_the_store_tells_what_the_run_told(tracked, caplog):
    rules = [*RULES, ANY]
    with tracked(alerts=rules) as tracker:
        tracker.step(loss=2.0)
        tracker.step(loss=5.0)
        break_weights(tracker)
        tracker.step(loss=math.nan)
    frame = tracker.store.to_pandas()
    lines = alert_lines(find_alerts(frame, stored_rules(tracker.store.alerts_path("mine"))))
    assert [f"alert at {line}" for line in lines] == alerts_said(caplog)
    assert {line.split(", ")[1].partition(":")[0] for line in lines} == {"any", "loss rises", "no value"}


def test_a_stop_is_asked_for_by_a_rule_alone(tracked, caplog):
    with tracked(alerts=[HALT], metrics=["anisotropy@all"]) as tracker:
        tracker.step()
        assert not tracker.should_stop
        break_weights(tracker)
        tracker.step()
        assert tracker.should_stop
    assert alerts_said(caplog)[1] == "the training is to stop at step 2, as requested by: halt"


@pytest.mark.slow
def test_a_run_that_goes_on_knows_its_past(tracked, caplog):
    with tracked(metrics=["anisotropy@all"]) as tracker:
        tracker.step(loss=1.0)
    caplog.clear()
    with tracked(metrics=["anisotropy@all"], start=1) as resumed:
        resumed.step(loss=2.0)
    assert alerts_said(caplog) == [
        "alert at step 2, loss rises: train/loss rose to 1.25 times what it was or more: 1 at step 1, now 2"
    ]


def test_what_a_training_has_gone_back_from_is_not_its_past(tmp_path, caplog):
    def row(step, value):
        return make_row(run="mine", step=step, metric="two_nn", layer=1, value=value, std=0.0)

    store = fill(tmp_path, [row(0, 8.0), row(10, 8.0), row(20, 2.0)])
    watch = AlertMonitor([Rule(name="falls", when="falls", bound=0.5, metrics=("two_nn",))], tuple)
    watch.begin(store, "mine", row(0, 8.0).probe, resumed=True)
    for step, value in ((10, 4.5), (20, 3.0), (30, 1.5)):
        assert not watch.check([row(step, value)])
    # 4.5 against the 8 at step 0; 3 against the 4.5 that the training has been through since, not the 8 it had at step 10
    assert [said.partition(",")[0] for said in alerts_said(caplog)] == ["alert at step 30"]


def test_rules_are_kept_beside_the_rows(tracked, tmp_path):
    with tracked(alerts=[HALT]) as tracker:
        pass
    assert read_rules(tmp_path / "mine" / "mine" / "alerts.yaml") == (HALT,)
    assert tracker.store.runs() == ["mine"]


def test_no_rules_no_alerts(tracked, caplog):
    with tracked(alerts=None) as tracker:
        break_weights(tracker)
        tracker.step()
    assert alerts_said(caplog) == []
    assert stored_rules(tracker.store.alerts_path("mine")) == ()


@pytest.mark.slow
def test_loggers_hear_of_alerts(tracked, tmp_path):
    alerts = []

    class Experiment:
        def alert(self, **given):
            alerts.append(given)

        def define_metric(self, *_, **__):
            pass

        def log(self, *_, **__):
            pass

    wandb = WandbLogger.__new__(WandbLogger)
    wandb._experiment = Experiment()
    board = TensorBoardLogger(tmp_path, name="", version="")
    with tracked(alerts=[ANY], metrics=["anisotropy@all"], loggers=[wandb, board]):
        pass
    (alert,) = alerts
    assert alert["title"] == "step 0, any"
    assert alert["text"].startswith("step 0, any: anisotropy (all) of layers 0-3 rose above 0: in layer ")
    board.experiment.flush()
    written = b"".join(path.read_bytes() for path in tmp_path.glob("events*"))
    assert b"alerts/text_summary" in written
    assert b"rose above 0" in written


@pytest.mark.slow
def test_a_logger_that_fails_keeps_no_alert_from_stopping(tracked, caplog):
    class Failing(WandbLogger):
        def __init__(self):
            pass

        @property
        def experiment(self):
            raise ConnectionError("no connection")

    with tracked(alerts=[Rule(**{**vars(ANY), "stop": True})], loggers=[Failing()]) as tracker:
        assert tracker.should_stop
    assert any("no connection" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("alerts", "message"),
    [("missing.yaml", "missing.yaml"), ([1], r"expected rules as repdyn\.alerts\.Rule, got 1")],
)
def test_rules_that_cannot_be_had_are_refused_at_once(tracked, alerts, message):
    with pytest.raises((ValueError, OSError), match=message):
        tracked(alerts=alerts)
