import math

import numpy as np
import pytest
from matplotlib.colors import CenteredNorm, LogNorm, SymLogNorm
from synthetic_families import make_everything

from repdyn.figures.heatmaps import heads_heatmap, heatmap, measured_by_head

HEADS = "attention_topic_gap"


@pytest.fixture
def rows(frame_of):
    return lambda *metrics, **given: frame_of(
        make_everything(**({"n_blocks": 4, "steps": (0, 8, 64), "metrics": metrics, "n_heads": 3} | given))
    )


def test_heads_at_the_last_step(rows):
    frame = rows(HEADS)
    figure = heads_heatmap(frame, HEADS, "all")
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells is not None
    assert cells.shape == (4, 3)
    expected = frame.query("step == 64 and layer == 2 and head == 1")["value"].item()
    assert cells[1, 1] == expected
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "2", "3", "4"]
    low, high = axes.images[0].get_clim()
    assert low == -high, "the colours change at 0"
    assert figure.get_suptitle().startswith("Topic gap of the attention by layer and head, at step 64, all tokens")


def test_heads_without_a_value_are_hatched(rows):
    frame = rows(HEADS, steps=(0,), stage="finished")
    frame.loc[(frame["layer"] == 2) & (frame["head"] == 1), "value"] = math.nan
    figure = heads_heatmap(frame, HEADS, "all")
    assert np.ma.count_masked(figure.axes[0].images[0].get_array()) == 1
    assert figure.axes[0].patch.get_hatch()
    assert ", finished, " in figure.get_suptitle()


def test_a_metric_without_heads_is_an_error_that_names_those_with(rows):
    frame = rows(HEADS, "norm")
    expected = (
        "^expected a metric measured head by head, got 'norm' \\(all\\); measured were attention_topic_gap \\(all\\)$"
    )
    with pytest.raises(ValueError, match=expected):
        heads_heatmap(frame, "norm", "all")
    with pytest.raises(ValueError, match="measured were none$"):
        heads_heatmap(rows("norm"), "norm", "all")


def test_which_metrics_have_heads(rows):
    frame = rows(HEADS, "norm")
    assert measured_by_head(frame) == [(HEADS, "all")]
    assert measured_by_head(frame.assign(value=math.nan)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "norm"),
    [("token_rank", SymLogNorm), ("norm", LogNorm), ("topic_gap", CenteredNorm)],
    ids=["ranks", "lengths", "differences"],
)
def test_colours_follow_the_scale_of_the_metric(rows, metric, norm):
    figure = heatmap(rows(metric), metric, "all")
    figure.draw_without_rendering()
    assert isinstance(figure.axes[0].images[0].norm, norm)


def test_the_first_checkpoint_has_no_column_where_it_has_nothing_to_be_compared_with(rows):
    figure = heatmap(rows("cka_previous"), "cka_previous", "all")
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8", "64"]
    assert "hatched" not in figure.get_suptitle()
    assert figure.get_suptitle().splitlines()[-1] == "each checkpoint compared with the one measured before it"


def test_a_later_gap_is_hatched(rows):
    frame = rows("cka_previous")
    frame.loc[frame["step"] == 8, "value"] = math.nan
    figure = heatmap(frame, "cka_previous", "all")
    assert np.ma.count_masked(figure.axes[0].images[0].get_array()) == 5
    assert "; hatched: none that compares" in figure.get_suptitle().replace("\n", " ")


def test_a_run_of_one_checkpoint_has_an_empty_picture(rows):
    figure = heatmap(rows("cka_previous", steps=(8,)), "cka_previous", "all")
    assert np.ma.count_masked(figure.axes[0].images[0].get_array()) == 5


def test_values_between_layers_say_so(rows):
    axes = heatmap(rows("step_length"), "step_length", "all").axes[0]
    assert axes.get_ylabel() == "layer (0 = embedding output, each to the next)"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2", "3"]
