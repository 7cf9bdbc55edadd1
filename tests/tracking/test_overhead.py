"""What tracking costs: the budget, the forecast, progress of long measurements, and what is counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from repdyn import Schedule, Tracker
from repdyn.tracking import forecast, overhead, tracked_run
from repdyn.tracking.overhead import ExpectedCost, LongMeasurement, Overhead
from repdyn.tracking.tracked_run import TrackedRun
from repdyn.utils.distributed import ALONE


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(overhead.time, "perf_counter", clock)
    monkeypatch.setattr(overhead.time, "monotonic", clock)
    return clock


def measured(account: Overhead, clock: Clock, seconds: float) -> None:
    with account.counted() as work:
        clock.now += seconds
        work.is_attempt = work.is_measurement = True


def begun(budget: float | None = None) -> Overhead:
    account = Overhead(budget)
    account.begin(ALONE)
    return account


def test_nested_work_is_counted_once(clock: Clock) -> None:
    account = begun()
    with account.counted():
        clock.now += 1
        measured(account, clock, 2)
    clock.now += 7
    assert (account.seconds, account.total_seconds) == (3, 10)


def test_a_budget_leaves_out_what_it_has_no_time_for(clock: Clock, caplog) -> None:
    account, done = begun(0.1), []
    for step in range(0, 101):
        if account.allows(step):
            measured(account, clock, 5)
            done.append(step)
        clock.now += 1
        assert account.seconds <= max(5, 0.1 * account.total_seconds)
    # the n-th one ends when the training has taken 45 s for each
    assert done == [0, 90]
    assert account.n_left_out == 99
    assert [record.getMessage() for record in caplog.records] == [
        "step 1 is not measured: another measurement of 5.0 s would exceed max_overhead=0.1 of the training's time; "
        "measured again at the first scheduled step with time for it"
    ]


def test_without_a_budget_nothing_is_left_out(clock: Clock) -> None:
    account = begun()
    measured(account, clock, 1000)
    assert account.allows(1)


@pytest.mark.parametrize("budget", [0, 1, -0.1, 2])
def test_budgets_are_shares(budget: float, hand_written, small_probe, tmp_path) -> None:
    with pytest.raises(ValueError, match="expected max_overhead as a share of the training's time above 0 and below 1"):
        Tracker(hand_written, small_probe, store=tmp_path, max_overhead=budget)


@pytest.mark.parametrize(
    ("schedule", "n_steps", "budget", "text"),
    [
        (Schedule(every=100), None, None, "; measured at every 100 steps, about 9% of the training"),
        (Schedule(every=100), 1000, 0.02, "; measured at every 100 steps, about 10% of the training, of which max_overhead=0.02 allows a part"),
        (Schedule(steps=(1, 2, 3)), None, None, ""),
        (Schedule(steps=(1, 2, 3)), 40, None, "; measured at steps 1, 2, 3, about 50% of the training"),
    ],
)  # fmt: skip
def test_a_forecast_is_printed_once(clock, schedule, n_steps, budget, text: str, capsys) -> None:
    account = begun(budget)
    measured(account, clock, 5)
    for step in range(1, 50):
        clock.now += 0.5
        for _ in range(2):  # two micro-batches
            account.count_step(step, schedule, n_steps)
        if step == forecast.FORECAST_STEPS:
            assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == f"repdyn: a measurement takes 5 s, as long as 10 training steps{text}\n"


def test_a_forecast_counts_neither_what_was_before_the_training_nor_its_first_step(clock, capsys) -> None:
    account = Overhead(0.1)
    clock.now += 1000  # data are loaded
    account.begin(ALONE)
    measured(account, clock, 5)
    clock.now += 60  # compilation, workers that start
    for step in range(1, 9):
        clock.now += 20 if step == 4 else 0.5  # a validation
        account.count_step(step, Schedule(every=100))
    assert capsys.readouterr().err.startswith("repdyn: a measurement takes 5 s, as long as 10 training steps;")
    assert account.total_seconds == 5 + 60 + 7 * 0.5 + 20
    assert not account.allows(9)  # 5 + 5 s of 93.5 s


def test_tracking_between_steps_is_no_part_of_them(clock, capsys) -> None:
    account = begun()
    measured(account, clock, 5)
    for step in range(1, 9):
        clock.now += 0.5
        account.count_step(step, Schedule(every=1))
        measured(account, clock, 5)
    assert capsys.readouterr().err.startswith("repdyn: a measurement takes 5 s, as long as 10 training steps;")


def test_a_forecast_is_corrected_by_a_later_measurement(clock, capsys) -> None:
    account, printed = begun(), []
    measured(account, clock, 15)  # with everything that is done once
    for step in range(1, 40):
        clock.now += 0.5
        account.count_step(step, Schedule(every=10))
        if step % 10 == 0:
            measured(account, clock, 5)
        printed += [line.split(";")[0] for line in capsys.readouterr().err.splitlines()]
    assert printed == [
        "repdyn: a measurement takes 15 s, as long as 30 training steps",
        "repdyn: a measurement now takes 5 s, as long as 10 training steps",
    ]


def test_finding_that_a_step_is_stored_is_no_measurement(clock, capsys) -> None:
    account = begun(0.1)
    with account.counted():
        clock.now += 0.01
    for step in range(1, 20):
        clock.now += 0.5
        account.count_step(step, Schedule(every=10))
        assert account.allows(step)
    assert capsys.readouterr().err == ""
    with account.counted() as work:  # one that fails takes time, but is no forecast of those that do not
        clock.now += 4
        work.is_attempt = True
    account.count_step(20, Schedule(every=10))
    assert capsys.readouterr().err == ""
    assert not account.allows(21)


def test_after_a_resume_the_forecast_is_of_a_whole_measurement(
    hand_written, small_probe, tmp_path, without_figures, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(forecast, "CORRECTED_FROM", 1e9)

    def train(start: int, n_steps: int) -> None:
        with Tracker(hand_written, small_probe, 30, store=tmp_path, run="mine", report=False, start=start) as tracker:
            for _ in range(n_steps):
                tracker.step()

    train(0, 30)
    assert "a measurement takes" in capsys.readouterr().err
    train(30, 25)  # step 30 is in the store
    assert "a measurement" not in capsys.readouterr().err


def test_the_number_of_steps_is_told_to_a_loop_of_ones_own(
    hand_written, small_probe, tmp_path, without_figures, capsys
) -> None:
    with Tracker(hand_written, small_probe, [1], store=tmp_path, report=False, n_steps=1_000_000) as tracker:
        for _ in range(8):
            tracker.step()
    assert "; measured at step 1, about " in capsys.readouterr().err
    with pytest.raises(ValueError, match="expected n_steps >= 1, the optimizer steps of the whole training, got 0"):
        Tracker(hand_written, small_probe, store=tmp_path, n_steps=0)


@pytest.mark.parametrize(
    ("schedule", "n_steps", "budget", "text"),
    [
        (Schedule(every=100), None, None, "every 100 steps"),
        (Schedule(every=100), math.inf, None, "every 100 steps"),
        (Schedule(every=100), 1000.0, None, "every 100 steps, 11 times in 1,000 steps"),
        (Schedule(steps=(1, 2)), 40, 0.02, "steps 1, 2, 4 times in 40 steps, of which max_overhead=0.02 may leave some out"),
        (Schedule(at_checkpoints=True), 1000, None, "every checkpoint"),
    ],
)  # fmt: skip
def test_what_is_known_before_the_first_measurement_is_printed(schedule, n_steps, budget, text: str, capsys) -> None:
    begun(budget).announce(ExpectedCost(3.1416, 3 << 29), schedule, n_steps)
    assert capsys.readouterr().err == (
        "repdyn: each measurement runs the model on the probe for about 3.1 s, then computes metrics in at most about "
        f"1.5 GiB; measured at {text}\n"
    )


def test_a_cost_that_is_not_known_is_not_printed(capsys) -> None:
    begun().announce(None, Schedule(every=100), 1000)
    assert capsys.readouterr().err == ""


def test_a_tracker_announces_its_cost_before_it_measures(
    hand_written, small_probe, tmp_path, without_figures, monkeypatch, capsys
) -> None:
    def measure(*_: Any, **others: Any) -> None:
        printed.append(capsys.readouterr().err)
        raise RuntimeError("enough")

    printed: list[str] = []
    monkeypatch.setattr(tracked_run, "measure", measure)
    with Tracker(hand_written, small_probe, 10, store=tmp_path, report=False, n_steps=35) as tracker:
        for _ in range(2):
            tracker.step()
    assert printed[0].startswith("repdyn: each measurement runs the model on the probe for about ")
    assert printed[0].endswith(" GiB; measured at every 10 steps, 5 times in 35 steps\n")
    assert printed[1:] == [""]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(every=1000), "every 1,000 steps"),
        (Schedule.pythia(), "steps 0, 1, 2, 4 ... 512 and every 1,000 steps"),
        (Schedule(early_every=16, early_until=512, every=100), "every 16 steps until 512 and every 100 steps"),
        (Schedule(steps=(10, 0, 100)), "steps 0, 10, 100"),
        (Schedule(at_checkpoints=True), "every checkpoint"),
        (Schedule(), "step 0"),
    ],
)
def test_schedules_in_words(schedule: Schedule, words: str) -> None:
    assert str(schedule) == words


@pytest.mark.parametrize(
    "schedule",
    [Schedule(every=7), Schedule.pythia(), Schedule(early_every=3, early_until=20, every=10), Schedule(steps=(5, 50))],
)
@pytest.mark.parametrize("last", [0, 5, 20, 2500])
def test_scheduled_steps_are_counted(schedule: Schedule, last: int) -> None:
    assert schedule.count(last) == sum(step in schedule for step in range(last + 1))


def test_progress_of_a_long_measurement(clock: Clock, capsys) -> None:
    tell = LongMeasurement(7)
    for share in (0.1, 0.5):
        clock.now += 10
        tell("forward", share)
    assert capsys.readouterr().err == ""
    clock.now += 20
    tell("forward", 0.8)
    assert (
        capsys.readouterr().err
        == "repdyn: measuring step 7: running the model on the probe, 80% done, about 10 s left of it\n"
    )
    tell("kernels", 0.0)
    clock.now += 300
    tell("kernels", 0.25)
    assert capsys.readouterr().err == "repdyn: measuring step 7: computing metrics, 25% done, about 15 min left of it\n"
    clock.now += 300
    tell("kernels", 1.0)
    assert capsys.readouterr().err == ""


def test_the_tracker_thins_its_schedule_and_measures_the_end(
    hand_written, small_probe, tmp_path, without_figures, monkeypatch, capsys
) -> None:
    decisions = iter([True, False, False, True, False])
    monkeypatch.setattr(Overhead, "_has_time", lambda self: next(decisions))
    monkeypatch.setattr(Overhead, "_last", 1.0, raising=False)
    tracker = Tracker(hand_written, small_probe, schedule=1, store=tmp_path, report=False, max_overhead=0.5).start()
    for _ in range(5):
        tracker.step(loss=torch.tensor(1.0))
    tracker.finish()
    # the first and the last step are measured whatever the budget
    assert tracker.store.steps(tmp_path.name) == [0, 1, 4, 5]
    assert "repdyn: 3 scheduled measurements were left out by max_overhead=0.5" in capsys.readouterr().err


def test_the_trial_and_all_measurements_are_counted(hand_written, small_probe, tmp_path, without_figures) -> None:
    tracker = Tracker(hand_written, small_probe, schedule=1, store=tmp_path, report=False).start()
    run = tracker._tracked
    assert isinstance(run, TrackedRun)
    before = run.overhead.seconds
    assert before > 0
    tracker.step()
    assert run.overhead.seconds > before
    tracker.finish()
