"""The statement on the largest activation over training."""

import numpy as np
import pytest
from synthetic_runs import make_row, to_frame

from repdyn.diagnosis import describe_run

STEPS = np.array([0, 100, 200, 500, *range(1000, 40_001, 1000)], float)


def grows(amplitude, decay, time_scale, baseline):
    x = time_scale * STEPS + 1
    return amplitude * np.exp(-decay * x) * np.log(x) + baseline


COURSES = [np.full(len(STEPS), 3.0), grows(90, 0.05, 1e-3, 2), grows(200, 0.01, 5e-5, 4), np.sin(STEPS / 2e3)]


def found(courses, metric="largest_activation", **given):
    rows = [
        make_row(step=int(step), layer=layer, depth=layer / 3, metric=metric, value=float(value), std=0.0, **given)
        for layer, values in enumerate(courses)
        for step, value in zip(STEPS, values, strict=True)
    ]
    return [each for each in describe_run(to_frame(rows), []).statements if each.kind == "activation growth"]


def test_the_layers_that_follow_the_formula():
    (statement,) = found(COURSES)
    assert statement.sentence == (
        "Largest activation follows A exp(-lambda x) log(x) + K with x = gamma step + t0 in 2 of 4 layers (mean R² 1.000), with a "
        "maximum within the run in layer 1; in layer 2 A 200, lambda 0.01, gamma 5e-05, t0 1, K 4 (R² 1.000, 44 steps)."
    )
    assert statement.layers == (1, 2)
    assert statement.steps == (0, 40_000)
    assert statement.evidence["amplitude"] == pytest.approx(200, rel=1e-2)
    assert statement.evidence["n_steps"] == 44
    assert statement.evidence["layers"] == 2
    assert statement.severity == "note"


def test_where_none_has_its_maximum_yet():
    (statement,) = found(COURSES[2:])
    assert "in 1 of 2 layers (mean R² 1.000), with a maximum within the run in none of them; in layer 0 A" in (
        statement.sentence
    )


def test_nothing_is_said_of_other_courses_and_metrics():
    assert found([COURSES[0], COURSES[3]]) == []
    assert found(COURSES, metric="norm") == []
    assert found([np.where(STEPS < 5000, course, np.nan) for course in COURSES]) == []
