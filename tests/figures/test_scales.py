import math

import numpy as np
import pytest
from synthetic_families import make_everything

from repdyn.figures.scales import DIMENSIONS, scales

pytestmark = pytest.mark.slow

GRIDE = DIMENSIONS[:5]


@pytest.fixture
def rows(frame_of):
    return lambda **given: frame_of(
        make_everything(**({"n_blocks": 6, "steps": (0, 8, 64), "metrics": DIMENSIONS} | given))
    )


def solid(panel):
    return [line for line in panel.lines if line.get_linestyle() == "-"]


def test_dimension_against_neighbours(rows):
    frame = rows()
    figure = scales(frame)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["step 0", "step 8", "step 64"]
    last = figure.axes[-1]
    assert len(solid(last)) == 7
    expected = frame.query("step == 64 and layer == 3 and metric.str.startswith('gride')")
    np.testing.assert_array_equal(solid(last)[3].get_xdata(), [2, 4, 8, 16, 32])
    np.testing.assert_array_equal(np.sort(solid(last)[3].get_ydata())[::-1], np.sort(expected["value"])[::-1])
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["2", "4", "8", "16", "32"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *(f"layer {layer}" for layer in range(6, -1, -1)),
        "TwoNN",
        "Levina-Bickel",
    ]


def test_other_estimates_stand_at_the_neighbours_they_look_at(rows):
    frame = rows(settings='{"k": 12}')
    frame.loc[frame["metric"].str.startswith("gride"), "settings"] = [
        f'{{"k": {name.removeprefix("gride_")}}}'
        for name in frame.loc[frame["metric"].str.startswith("gride"), "metric"]
    ]
    panel = scales(frame).axes[-1]
    marks = {
        line.get_marker(): np.asarray(line.get_xdata()).tolist() for line in panel.lines if line.get_marker() in "sD"
    }
    assert marks == {"s": [2], "D": [12]}


def test_some_layers_of_a_deep_model_and_some_steps_of_a_long_training(rows):
    figure = scales(rows(n_blocks=32, steps=(0, 1, 2, 4, 512, 1000), metrics=GRIDE))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"layer {layer}" for layer in (32, 27, 21, 16, 11, 5, 0)
    ]
    assert len(figure.axes) == 3


def test_a_layer_without_a_value_is_left_out(rows):
    frame = rows()
    frame.loc[frame["layer"] == 0, "value"] = math.nan
    assert "layer 0" not in [text.get_text() for text in scales(frame).legends[0].get_texts()]


def test_a_finished_model_has_one_panel(rows):
    figure = scales(rows(steps=(0,), stage="finished"))
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["finished"]


def test_one_scale_is_no_picture(rows):
    expected = (
        "^expected two of gride_2, gride_4, gride_8, gride_16, gride_32 with values, got fewer; measure several scales$"
    )
    with pytest.raises(ValueError, match=expected):
        scales(rows(metrics=("gride_2", "two_nn")))
