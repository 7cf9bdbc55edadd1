import math

import pytest

from repdyn.terminal.curves import WIDTH, sparkline

NAN = math.nan


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([NAN, NAN], "  "), ([5.0, 5.0], "▁▁"), ([0.0, NAN, 7.0, 3.0], "▁ █▄"), ([-2.0, -1.0], "▁█")],
    ids=["empty", "nan", "constant", "gap", "negative"],
)
def test_sparkline(values, bars):
    assert sparkline(list(range(len(values))), values) == bars


@pytest.mark.parametrize("peak", range(14))
def test_a_peak_of_one_step_is_drawn_wherever_it_is(peak):
    steps = [0, *(2**power for power in range(8)), 200, 400, 600, 800, 1000]
    bars = sparkline(steps, [9.0 if at == peak else 1.0 for at in range(14)])
    assert bars.count("█") == 1
    assert len(bars) <= WIDTH
