"""The report's charts as figures of Plotly: what they show, and where 0 lies."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from synthetic_families import make_run_of_everything
from synthetic_runs import DENSE, make_finished, make_rows, make_run, make_two_stacks, to_frame

from repdyn.figures.axes import placed, training_axes, value_axis
from repdyn.figures.captions import run_colours
from repdyn.figures.charts import ZERO_SHARE
from repdyn.metrics import METRICS
from repdyn.report.figures import heatmap, means, profile
from repdyn.report.plotly_panels import DARK_COLOURS, colour_axis, coloured, dark_run_colours, plotly_axis
from repdyn.report.write import Packer, as_text
from repdyn.tables.frames import grid, layer_mean, measurements
from repdyn.tables.runs import measured_runs

STEPS = (0, 1, 8, 64)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_run_of_everything(n_blocks=3, steps=STEPS, n_heads=2)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_every_picture(frame, metric):
    for draw in (heatmap, profile, means):
        figure = draw(frame, metric, "all")
        json.loads(figure.to_json())
        assert "<br>independent design: 8 batches of " in figure.layout.title.text


def test_a_heatmap_shows_the_values_of_the_store(frame):
    values = grid(measurements(frame), "anisotropy", "all")
    (cells,) = heatmap(frame, "anisotropy", "all").data
    np.testing.assert_array_equal(cells.z, values)
    assert cells.x == ("0", "1", "8", "64")
    assert cells.y == ("0", "1", "2", "3")


def test_logarithmic_colours_keep_a_place_for_zero():
    values = np.array([[0.0, 1.0], [10.0, 1000.0]])
    axis = value_axis("token_rank", values)
    np.testing.assert_allclose(coloured(values, axis), [[-0.4, 0], [1, 3]], atol=1e-6)
    bar = colour_axis(axis)["colorbar"]
    assert bar["ticktext"] == ["0", "1", "10", "100", "1k"]
    np.testing.assert_allclose(bar["tickvals"], [-0.4, 0, 1, 2, 3], atol=1e-12)


def test_a_signed_metric_has_zero_in_the_middle_of_its_colours():
    colours = colour_axis(value_axis("topic_gap", np.array([[-0.1, 0.4]])))
    assert colours["cmin"] == -colours["cmax"] == pytest.approx(-0.4)


def test_an_axis_of_values_holds_the_bands_and_starts_a_share_at_zero():
    values, margins = np.array([[0.4, 0.6]]), np.array([[0.1, np.nan]])
    assert plotly_axis(value_axis("anisotropy", values, margins))["range"] == [0, pytest.approx(0.63)]
    low, high = plotly_axis(value_axis("two_nn", values, margins))["range"]
    assert (low, high) == (pytest.approx(0.285), pytest.approx(0.615))


def test_metrics_without_a_value_have_an_axis_all_the_same():
    nothing = np.full((2, 2), np.nan)
    assert plotly_axis(value_axis("two_nn", nothing, nothing))["range"] == [0, 1]
    assert colour_axis(value_axis("token_rank", nothing))["cmin"] == 0


def test_the_training_counts_steps_and_tokens_and_zero_has_a_place():
    axes = training_axes([0, 1, 100], [0.0, 2e6, 2e8])
    assert list(axes) == ["steps-log", "steps-linear", "tokens-log", "tokens-linear"]
    assert axes["steps-log"].floor == ZERO_SHARE
    assert plotly_axis(axes["steps-log"])["ticktext"] == ["0", "1", "10", "100"]
    assert plotly_axis(axes["tokens-log"])["ticktext"] == ["0", "1M", "10M", "100M"]
    assert list(training_axes([5, 10], [])) == ["steps-log", "steps-linear"]
    np.testing.assert_allclose(placed(np.array([0.0, 0.1, 7.0]), ZERO_SHARE), [ZERO_SHARE, ZERO_SHARE, 7.0])


@pytest.mark.slow
def test_a_profile_plays_at_most_forty_of_many_steps():
    figure = profile(make_run(n_blocks=2, steps=range(100)), "two_nn", "all")
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) <= 40
    assert figure.frames[-1].name == "99"
    values = grid(measurements(make_run(n_blocks=2, steps=range(100))), "two_nn", "all")
    np.testing.assert_allclose(figure.frames[0].data[2].y, values[0], rtol=1e-6)
    np.testing.assert_allclose(figure.data[-1].y, values[99], rtol=1e-6)


def test_means_switch_between_steps_and_tokens_with_the_loss():
    frame = to_frame(make_rows(steps=STEPS)).assign(tokens_seen=lambda f: f["step"] * 1000)
    figure = means(frame, "two_nn", "all")
    assert [note.text for note in figure.layout.annotations] == [
        "training loss",
        "Intrinsic dimension (TwoNN), all tokens, mean over 7 layers (dimension)",
    ]
    buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == ["steps, log", "steps, linear", "tokens, log", "tokens, linear"]
    np.testing.assert_allclose(buttons[3].args[0]["x"][3], [0, 1000, 8000, 64000])
    np.testing.assert_allclose(figure.data[3].y, layer_mean(measurements(frame), "two_nn", "all").mean, rtol=1e-6)


def test_hovering_over_a_cell_tells_its_interval_where_there_is_one():
    (cells,) = heatmap(make_run(steps=STEPS), "two_nn", "all").data
    assert "%{customdata:.2g} (95 % interval)" in cells.hovertemplate
    margins = grid(measurements(make_run(steps=STEPS)), "two_nn", "all", "margin")
    np.testing.assert_array_equal(cells.customdata, margins)
    (cells,) = heatmap(make_run(steps=STEPS, **DENSE), "two_nn", "all").data
    assert "interval" not in cells.hovertemplate


@pytest.mark.slow
def test_charts_of_what_is_not_there_are_refused(frame):
    with pytest.raises(
        ValueError, match=r"^expected a metric and a subset it was measured on, got two_nn \(nouns\); there"
    ):
        heatmap(frame, "two_nn", "nouns")
    with pytest.raises(ValueError, match=r"^expected checkpoints of a training, got the finished model 'lab/bert'.*"):
        means(to_frame(make_finished()), "two_nn", "all")
    with pytest.raises(ValueError, match=r"^expected the rows of one stack of blocks, got 2"):
        profile(to_frame(make_two_stacks()), "two_nn", "all")


@pytest.mark.slow
def test_every_run_has_colours_of_its_own_on_both_backgrounds():
    rows = [row for number in range(12) for row in make_rows(run=f"r{number}", n_blocks=1, steps=(0,), loss=False)]
    runs = measured_runs(to_frame(rows))
    colours, dark = run_colours(runs), dark_run_colours(runs)
    assert len(set(colours.values())) == len(set(dark.values())) == 12
    assert set(colours.values()) == set(dark)
    assert not set(DARK_COLOURS) & set(dark)


def test_an_array_is_stored_once_and_nan_is_no_json():
    packer, shared = Packer(), np.arange(6, dtype=np.float64).reshape(2, 3)
    assert packer.pack({"a": shared, "b": [shared, 1, "c"], "d": np.zeros(2)}) == {
        "a": {"$": [0, 2, 3]},
        "b": [{"$": [0, 2, 3]}, 1, "c"],
        "d": {"$": [6, 2]},
    }
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        as_text({"a": float("nan")})
