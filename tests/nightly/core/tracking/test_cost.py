"""What tracking costs a training: said and bounded."""

from __future__ import annotations

import logging

import pytest

from repdyn.tracking import budget
from repdyn.tracking.budget import Cost
from repdyn.tracking.schedule import Schedule
from repdyn.tracking.signals import LongMeasurement


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time, which tests move."""
    now = [0.0]
    monkeypatch.setattr(budget.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    return now


def measured(costs: Cost, clock: list[float], seconds: float) -> None:
    with costs.counted() as work:
        work.note_attempt()
        work.note_measurement()
        clock[0] += seconds


def test_a_budget_leaves_out_what_would_exceed_it(clock, caplog, capsys):
    costs = Cost(0.1, Schedule(every=1))
    assert costs.allows(0)  # the first always
    measured(costs, clock, 1.0)
    allowed = []
    for step in range(1, 41):
        clock[0] += 1.0
        with caplog.at_level(logging.WARNING):
            if costs.allows(step):
                allowed.append(step)
                measured(costs, clock, 1.0)
    assert allowed == [18, 27, 36]
    assert costs.seconds <= 0.1 * costs.total_seconds
    assert caplog.text.count("max_overhead=0.1") == 1
    costs.report()
    assert "37 scheduled measurements were left out" in capsys.readouterr().err


def test_the_forecast_is_said_once(clock, capsys):
    costs = Cost(None, Schedule(every=10), n_steps=100)
    measured(costs, clock, 2.0)
    for step in range(1, 12):
        clock[0] += 0.1
        costs.count_step(step)
        costs.count_step(step)  # of a second batch under accumulation
    assert (
        capsys.readouterr().err.count("a measurement takes 2 s, as long as 20 training steps") == 1
    )


@pytest.mark.parametrize(
    ("schedule", "share"),
    [
        (Schedule(every=10), "; as scheduled, about 69% of the training"),
        (Schedule(every=1000), "; as scheduled, about 29% of the training"),
        (Schedule(at_checkpoints=True), ""),
    ],
    ids=["every 10 steps", "the ends alone", "checkpoints"],
)
def test_the_share_counts_the_measurement_at_the_end(schedule, share, clock, capsys):
    """It was that of a training without it, and 0% where the trainer's checkpoints are measured."""
    costs = Cost(0.9, schedule, n_steps=98)
    measured(costs, clock, 2.0)
    for step in range(1, 12):
        clock[0] += 0.1
        costs.count_step(step)
    assert capsys.readouterr().err.strip().endswith(f"as long as 20 training steps{share}")


def test_work_inside_work_is_counted_once(clock):
    costs = Cost(None, Schedule(every=1))
    with costs.counted():
        clock[0] += 1.0
        measured(costs, clock, 2.0)
    assert costs.seconds == 3.0


def test_a_long_measurement_says_what_it_is_doing(clock, capsys):
    progress = LongMeasurement(7)
    for share in (0.0, 0.1, 0.5):
        progress("forward", share)
        clock[0] += 20.0
    progress("kernels", 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "measuring step 7: running the model on the probe, 10% done",
        "measuring step 7: computing metrics, 50% done",
    ]
