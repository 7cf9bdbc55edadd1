"""Overviews of a family: nothing is clipped, and no legend lies on a panel."""

import pytest
from runs_of_everything import everything as everything
from synthetic_runs import measured_runs

from repdyn.views.figures.run import all_figures


@pytest.mark.parametrize("n_blocks", [2, 32])
@pytest.mark.parametrize("along", ["depth", "steps"])
def test_nothing_is_clipped_and_no_legend_lies_on_a_panel(everything, along, n_blocks):
    metrics = ("token_cosine", "token_rank_attention")
    frame = everything(
        n_blocks=n_blocks,
        metrics=metrics,
        run="a rather long name of a run " * 3,
        steps=(0, 4, 143_000),
    )
    figure = all_figures(*measured_runs(frame))[f"{along}_tokens"]
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
