"""Which steps a schedule names."""

import numpy as np
import pytest

from repdyn import Schedule
from repdyn.tracking.schedule import ScheduleState


def steps(schedule: Schedule, until: int) -> list[int]:
    return [step for step in range(until + 1) if step in schedule]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(4, [0, 4, 8, 12], id="every n"),
        pytest.param(np.array([3, 5]), [0, 3, 5], id="explicit, with step 0"),
        pytest.param(
            Schedule(doubling_until=4, every=6), [0, 1, 2, 4, 6, 12], id="doubling, then every"
        ),
        pytest.param(
            Schedule(early_every=3, early_until=7, every=5),
            [0, 3, 5, 6, 10],
            id="early, then every",
        ),
        pytest.param("checkpoints", [0], id="at checkpoints only the start is known"),
    ],
)
def test_steps(spec, expected):
    assert steps(Schedule.parse(spec), 13) == expected


def test_pythia_is_the_published_list():
    published = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 143001, 1000)]
    assert len(published) == 154
    assert steps(Schedule.parse("pythia"), 143000) == published


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule(every=0), "expected every >= 1, got 0"),
        (
            lambda: Schedule(early_every=16),
            "expected early_every and early_until together, got 16 and None",
        ),
        (lambda: Schedule(doubling_until=-1), "expected doubling_until >= 1, got -1"),
        (lambda: Schedule(steps=(5, -2)), "expected steps >= 0, got -2"),
        (
            lambda: Schedule.parse("pithia"),
            'expected a schedule: .* "pythia" or "checkpoints", got \'pithia\'',
        ),
        (lambda: Schedule.parse(True), "expected a schedule: .* got True"),
        (lambda: Schedule.parse(None), "expected a schedule: .* got None"),
        (lambda: Schedule.parse([0.9, 1.5]), r"expected a schedule: .* got \[0.9, 1.5\]"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_step_is_due_once_however_often_it_is_reached():
    """Gradient accumulation reaches a step several times; a step that was left out may still be the
    last one.
    """
    state = ScheduleState(2)
    steps_asked = []
    assert [state.is_due(step) for step in (0, 0, 1, 2, 2, 3)] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    state.has_time = steps_asked.append
    assert [state.is_due(4), state.is_due(4), state.is_due(4, "end"), state.is_due(4, "end")] == [
        0,
        0,
        1,
        0,
    ]
    assert steps_asked == [4]
    assert ScheduleState("checkpoints").is_due(7, "checkpoint")
    assert not state.is_due(9, "checkpoint")
