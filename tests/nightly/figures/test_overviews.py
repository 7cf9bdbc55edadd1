"""x"""

import math

import numpy as np
import pytest
from synthetic_families import make_everything

from repdyn.figures.overviews import depth_overview, steps_overview
from repdyn.tables.frames import by_stack

NAN = math.nan


@pytest.fixture
def everything(frame_of):
    def make(**given):
        return frame_of(make_everything(**({"n_blocks": 4, "steps": (0, 8, 64)} | given)))

    return make


def legend_of(axes):
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def solid(axes):
    """The lines of values: no zero line, none of the first step."""
    return [line for line in axes.lines if line.get_linestyle() == "-" and len(np.asarray(line.get_xdata())) > 2]


def test_shares_start_at_zero_and_differences_have_a_zero_line(everything):
    kept = depth_overview(everything(metrics=("token_top1_match",), classes=()), "tokens").axes[0]
    assert kept.get_ylim()[0] == 0
    gap = steps_overview(everything(metrics=("topic_gap",)), "topics").axes[0]
    assert [list(map(float, line.get_ydata())) for line in gap.lines if len(np.asarray(line.get_xdata())) == 2] == [
        [0, 0]
    ]


def test_topics_against_step_show_the_embedding_output_by_itself(everything):
    frame = everything(metrics=("topic_gap", "attention_topic_gap"))
    gap, attention = steps_overview(frame, "topics").axes
    assert legend_of(gap) == ["mean over layers", "layer 0"]
    at_zero = frame.query("metric == 'topic_gap' and layer == 0")["value"]
    np.testing.assert_array_equal(solid(gap)[1].get_ydata(), at_zero)
    of_layers = frame[(frame["metric"] == "attention_topic_gap") & frame["head"].isna()]
    means = of_layers.groupby("step")["value"].mean()
    np.testing.assert_allclose(np.asarray(solid(attention)[0].get_ydata(), float), means)


@pytest.mark.parametrize("draw", [depth_overview, steps_overview], ids=["depth", "steps"])
def test_a_family_without_a_value_is_an_error_that_says_why(everything, draw):
    frame = everything(metrics=("isoscore",))
    frame[["value", "reason"]] = [NAN, "batch 0: infinite"]
    expected = "^expected a value of the family 'similarity' at some layer and step, got none; isoscore: infinite$"
    with pytest.raises(ValueError, match=expected):
        draw(frame, "similarity")
    with pytest.raises(
        ValueError, match="^expected a family of measured metrics, got 'topics'; measured were similarity$"
    ):
        draw(frame, "topics")


def test_each_stack_has_overviews_of_its_own(frame_of):
    rows = [
        row
        for stack, n_blocks in (("encoder", 2), ("decoder", 3))
        for row in make_everything(n_blocks=n_blocks, steps=(0, 8), metrics=("isoscore",), stack=stack, loss=False)
    ]
    drawn = {stack: depth_overview(rows, "similarity") for stack, rows in by_stack(frame_of(rows)).items()}
    assert [figure.get_suptitle().split(":")[0] for figure in drawn.values()] == ["encoder", "decoder"]
    assert [len(np.asarray(figure.axes[0].lines[0].get_xdata())) for figure in drawn.values()] == [3, 4]
    with pytest.raises(ValueError, match="^expected the rows of one stack of blocks, got 2"):
        depth_overview(frame_of(rows), "similarity")


@pytest.mark.parametrize("n_blocks", [2, 32])
@pytest.mark.parametrize("draw", [depth_overview, steps_overview], ids=["depth", "steps"])
def test_nothing_is_clipped_and_no_legend_lies_on_a_panel(everything, draw, n_blocks):
    metrics = ("token_cosine", "token_rank_attention")
    frame = everything(
        n_blocks=n_blocks, metrics=metrics, run="a rather long name of a run " * 3, steps=(0, 4, 143_000)
    )
    figure = draw(frame, "tokens")
    figure.draw_without_rendering()
    panels = [axes.get_window_extent() for axes in figure.axes]
    legends = [found for axes in figure.axes if (found := axes.get_legend())] + list(figure.legends)
    for legend in legends:
        box = legend.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
        assert not any(box.overlaps(panel) for panel in panels)
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y0 >= 0
    heading = figure.texts[0].get_window_extent()
    assert heading.x0 >= 0
    assert heading.x1 <= figure.bbox.x1
    assert min(panel.width for panel in panels) > 200
