"""Thinned curves keep their extremes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repdyn.tables.series import thin

NAN = math.nan
QUICKSTART = [0, *(2**power for power in range(8)), 200, 400, 600, 800, 1000]
PYTHIA = [0, *(2**power for power in range(10)), *range(1000, 143001, 1000)]

NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.just(NAN))


@st.composite
def curves(draw):
    steps = sorted(draw(st.sets(st.integers(0, 200_000), min_size=1, max_size=60)))
    return steps, draw(st.lists(NUMBERS, min_size=len(steps), max_size=len(steps)))


@settings(max_examples=150, deadline=None)
@given(curves(), st.integers(4, 12))
def test_ends_and_extremes_are_always_kept(curve, limit):
    steps, values = curve
    kept = thin(steps, values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= limit
    assert {0, len(steps) - 1} <= set(kept)
    known = [value for value in values if not math.isnan(value)]
    if known:
        drawn = [values[index] for index in kept if not math.isnan(values[index])]
        assert max(drawn) == max(known)
        assert min(drawn) == min(known)


@pytest.mark.parametrize("steps", [QUICKSTART, PYTHIA, list(range(0, 100_001, 100))], ids=len)
@pytest.mark.parametrize("limit", [4, 7, 8, 20])
def test_as_many_points_as_there_is_room_for(steps, limit):
    room = min(limit, len(steps))
    assert room - 1 <= len(thin(steps, np.sin(np.arange(len(steps))).tolist(), limit)) <= room


def test_a_shorter_curve_is_kept_as_it_is():
    assert thin([0, 5, 7], [NAN, 1.0, 0.0], 4) == [0, 1, 2]
    assert thin([], [], 4) == []


def test_steps_without_a_value_give_way():
    values = [1.0, *(NAN if at % 2 else 2.0 for at in range(12)), 1.0]
    kept = thin(QUICKSTART, values, 7)
    assert not any(math.isnan(values[index]) for index in kept)


def test_a_local_extreme_represents_its_neighbours():
    values = np.zeros(14)
    values[3], values[6], values[9] = 5.0, -7.0, 9.0
    assert {3, 6, 9} <= set(thin(QUICKSTART, values.tolist(), 7))


def test_errors():
    with pytest.raises(ValueError, match="expected a limit of at least 4 points, got 3"):
        thin([0], [1.0], 3)
    with pytest.raises(ValueError, match="expected a value for each step, got 1 values for 2 steps"):
        thin([0, 1], [1.0], 4)
