import io
import math

import pandas as pd
import pytest
from rich.console import Console

from repdyn.alerts import Alert
from repdyn.tables.frames import measurements
from repdyn.terminal.curves import layer_table, select_layers

NAN = math.nan


def grid_of(values):
    """One layer a value, at a single step."""
    return pd.DataFrame({0: values}, dtype=float)


def alert_at(layer):
    numbers = {"value": 1.0, "previous_value": 2.0, "previous_step": 0, "event": "fell", "detail": "", "stop": False}
    return Alert("fall", step=8, metric="two_nn", subset="all", stack=None, layer=layer, **numbers)


def test_layers_at_equal_distances():
    assert select_layers([grid_of([NAN] * 49)], range(49), (), 5) == [0, 12, 24, 36, 48]


def test_extreme_layers_take_the_place_of_their_neighbours():
    values = [1.0] * 49
    values[7], values[29] = 0.0, 5.0
    assert select_layers([grid_of(values)], range(49), (), 5) == [0, 7, 29, 36, 48]


def test_layers_with_an_alert_come_before_extreme_ones():
    values = [1.0] * 49
    values[7] = 0.0
    alerts = [alert_at(None), alert_at(20), alert_at(21)]
    assert select_layers([grid_of(values)], range(49), alerts, 4) == [0, 20, 21, 48]
    assert select_layers([grid_of(values)], range(49), alerts, 2) == [0, 48]


def test_a_shallow_model_is_whole():
    assert select_layers([grid_of([1.0, 2.0, 3.0])], range(3), (), 13) == [0, 1, 2]


@pytest.mark.parametrize("several", [True, False], ids=["steps", "one step"])
def test_a_layer_without_any_value_has_a_dash(run, several):
    steps = (0, 8) if several else (0,)
    rows = measurements(run(n_blocks=2, steps=steps, dimension=lambda step, depth: NAN if depth == 0 else 10.0))
    table = layer_table(rows, 13, sparklines=True)
    stream = io.StringIO()
    Console(file=stream, width=80).print(table)
    lines = [line.split() for line in stream.getvalue().splitlines()[2:]]
    assert [line[-1] == "-" for line in lines] == [True, False, False]
    assert "nan" not in stream.getvalue()
