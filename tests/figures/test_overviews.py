import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from synthetic_families import PYTHIA, make_everything
from synthetic_runs import SAMPLED

from repdyn.figures.captions import compared
from repdyn.figures.files import save
from repdyn.figures.overviews import depth_overview, steps_overview
from repdyn.tables.frames import by_stack, measurements

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


def title(axes):
    return axes.get_title(loc="left").replace("\n", ", ")


def solid(axes):
    """The lines of values: no zero line, none of the first step."""
    return [line for line in axes.lines if line.get_linestyle() == "-" and len(np.asarray(line.get_xdata())) > 2]


def test_over_depth_a_line_is_a_step(everything):
    frame = everything(metrics=("effective_rank", "alpha_req"))
    figure = depth_overview(frame, "spectrum")
    rank, alpha = figure.axes
    assert [title(axes) for axes in (rank, alpha)] == ["Effective rank", "Decay of the spectrum (alpha-ReQ)"]
    assert [axes.get_ylabel() for axes in (rank, alpha)] == ["directions", "exponent"]
    at_last = frame.query("metric == 'effective_rank' and step == 64")
    np.testing.assert_array_equal(rank.lines[-1].get_xdata(), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(rank.lines[-1].get_ydata(), at_last["value"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["64", "8", "0"]
    assert " ".join(figure.get_suptitle().split()) == (
        f"Spectrum over depth decoder-quickstart, GPTNeoXForCausalLM, {SAMPLED} "
        "layer 0 is the embedding output; all tokens; band: 95 % interval over probes"
    )


def test_of_many_steps_eight_are_drawn(everything):
    figure = depth_overview(everything(metrics=("isoscore",), steps=PYTHIA, n_blocks=1), "similarity")
    assert len(figure.axes[0].lines) == 8
    assert figure.legends[0].get_texts()[0].get_text() == "143,000"


def test_lines_that_share_a_panel_are_named_and_dotted_at_the_first_step(everything):
    figure = depth_overview(everything(metrics=("components_50", "components_99")), "spectrum")
    (axes,) = figure.axes
    assert legend_of(axes) == ["50 %", "99 %"]
    assert [line.get_linestyle() for line in axes.lines].count(":") == 2
    assert not figure.legends
    assert "named lines: at step 64, dotted at step 0" in figure.get_suptitle()


def test_the_gap_of_two_classes_is_shaded(everything):
    frame = everything(metrics=("token_top1_match",), classes=("frequent", "rare"))
    _, pair = depth_overview(frame, "tokens").axes
    assert title(pair) == "Tokens closest to their own embedding, frequent and rare"
    bands = [found for found in pair.collections if isinstance(found, FillBetweenPolyCollection)]
    corners = np.asarray(bands[-1].get_paths()[0].vertices, float)
    frequent, rare = (
        frame.query(f"subset == '{name}' and step == 64 and layer == 2")["value"].item()
        for name in ("frequent", "rare")
    )
    assert {round(y, 9) for x, y in corners.tolist() if x == 2} == {round(frequent, 9), round(rare, 9)}


def test_what_lies_between_two_layers_is_drawn_between_them(everything):
    figure = depth_overview(everything(metrics=("norm", "step_length")), "evolution")
    *norms, step = figure.axes
    np.testing.assert_array_equal(step.lines[-1].get_xdata(), [0.5, 1.5, 2.5, 3.5])
    assert {axes.get_xlim() for axes in [*norms, step]} == {(-0.16, 4.16)}
    assert "values between two layers are drawn between them" in figure.get_suptitle()


def test_a_metric_between_layers_alone_has_the_whole_axis(everything):
    (axes,) = depth_overview(everything(metrics=("step_cosine",)), "evolution").axes
    assert axes.get_xlim() == (-0.16, 4.16)


def test_what_the_embedding_output_lacks_is_no_gap(everything):
    (axes,) = depth_overview(everything(metrics=("token_rank_attention",), classes=()), "tokens").axes
    np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [1, 2, 3, 4])
    assert not any(np.isnan(np.asarray(line.get_ydata(), float)).any() for line in axes.lines)


def test_ranks_are_logarithmic_and_show_their_zero(everything):
    frame = everything(metrics=("token_rank", "token_rank_attention"), classes=())
    rank, after = depth_overview(frame, "tokens").axes
    assert rank.get_yscale() == "symlog"
    assert rank.get_ylim()[0] < 0
    assert rank.get_ylim() == after.get_ylim(), "one quantity has one scale"
    assert [tick.get_text() for tick in rank.get_yticklabels()][:3] == ["0", "1", "10"]


def test_lengths_are_logarithmic_where_they_span_decades(everything):
    frame = everything(metrics=("norm", "step_length"))
    *norms, step = depth_overview(frame, "evolution").axes
    assert [axes.get_yscale() for axes in norms] == ["symlog", "symlog"]
    assert norms[0].get_ylim()[0] > 0
    assert step.get_yscale() == "linear"


def test_shares_start_at_zero_and_differences_have_a_zero_line(everything):
    kept = depth_overview(everything(metrics=("token_top1_match",), classes=()), "tokens").axes[0]
    assert kept.get_ylim()[0] == 0
    gap = steps_overview(everything(metrics=("topic_gap",)), "topics").axes[0]
    assert [list(map(float, line.get_ydata())) for line in gap.lines if len(np.asarray(line.get_xdata())) == 2] == [
        [0, 0]
    ]


def test_against_step_a_line_is_a_mean_over_layers(everything):
    frame = everything(metrics=("norm", "linearity"))
    norm, linearity = steps_overview(frame, "evolution").axes
    assert legend_of(norm) == ["all tokens", "no sinks"]
    expected = frame.query("metric == 'norm' and subset == 'all'").groupby("step")["value"].mean()
    np.testing.assert_allclose(np.asarray(norm.lines[0].get_ydata(), float), expected)
    np.testing.assert_array_equal(norm.lines[0].get_xdata(), [0, 8, 64])
    assert title(linearity) == "Linearity from this layer to the next, all tokens"
    assert linearity.get_xscale() == "symlog"


def test_topics_against_step_show_the_embedding_output_by_itself(everything):
    frame = everything(metrics=("topic_gap", "attention_topic_gap"))
    gap, attention = steps_overview(frame, "topics").axes
    assert legend_of(gap) == ["mean over layers", "layer 0"]
    at_zero = frame.query("metric == 'topic_gap' and layer == 0")["value"]
    np.testing.assert_array_equal(solid(gap)[1].get_ydata(), at_zero)
    of_layers = frame[(frame["metric"] == "attention_topic_gap") & frame["head"].isna()]
    means = of_layers.groupby("step")["value"].mean()
    np.testing.assert_allclose(np.asarray(solid(attention)[0].get_ydata(), float), means)


def test_means_over_fewer_layers_say_so(everything):
    frame = everything(metrics=("norm", "isoscore"))
    frame.loc[(frame["layer"] == 0) & (frame["subset"] != "no_sink") & (frame["step"] == 8), "value"] = NAN
    assert legend_of(steps_overview(frame, "evolution").axes[0]) == ["all tokens\n(4 of 5 layers)", "no sinks"]
    assert title(steps_overview(frame, "similarity").axes[0]) == "IsoScore, (4 of 5 layers)"


def test_a_first_checkpoint_without_one_before_it_is_no_line(everything):
    frame = everything(metrics=("cka_previous",))
    figure = depth_overview(frame, "change")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["64", "8"]
    assert "each checkpoint compared with the one measured before it" in figure.get_suptitle().replace("\n", " ")
    np.testing.assert_array_equal(steps_overview(frame, "change").axes[0].lines[0].get_xdata(), [8, 64])


def test_comparisons_with_other_checkpoints_are_named(everything):
    frame = everything(metrics=("cka_previous",), steps=(0, 1, 2, 4, 8, 16))
    frame.loc[frame["step"] == 4, "compared_to"] = 1
    assert compared(measurements(frame)).endswith("before it, but step 4 with 1")
    frame.loc[frame["step"] > 1, "compared_to"] = 0
    assert compared(measurements(frame)).endswith("before it, but step 2 with 0, step 4 with 0, step 8 with 0, 1 more")
    assert compared(measurements(everything(metrics=("norm",)))) == ""
    without = frame.loc[frame["step"] > 0].assign(compared_to=0)
    assert "step 1 " not in compared(measurements(without)), "what was measured before the rows is not known"


@pytest.mark.slow
def test_a_finished_model_has_one_line_and_no_steps(everything):
    frame = everything(
        steps=(0,), stage="finished", run="lab/bert", metrics=("isoscore", "components_50", "components_90")
    )
    figure = depth_overview(frame, "similarity")
    assert figure.get_suptitle().splitlines()[0] == "Similarity of vectors over depth, finished"
    assert not figure.legends
    assert len(figure.axes[0].lines) == 1
    assert "dotted" not in depth_overview(frame, "spectrum").get_suptitle()
    expected = (
        "^expected checkpoints of a training, got the finished model 'lab/bert', which has no steps; "
        "draw its depth_overview$"
    )
    with pytest.raises(ValueError, match=expected):
        steps_overview(frame, "similarity")


@pytest.mark.slow
def test_a_single_checkpoint_is_named(everything):
    figure = depth_overview(everything(steps=(8,), metrics=("isoscore",)), "similarity")
    assert figure.get_suptitle().splitlines()[0] == "Similarity of vectors over depth, at step 8"


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


@pytest.mark.slow
def test_a_single_batch_has_no_interval_but_lines(everything):
    frame = everything(metrics=("components_50", "components_90", "norm"), n_batches=1)
    assert "no interval: a single batch" in " ".join(depth_overview(frame, "spectrum").get_suptitle().split())
    assert len(solid(depth_overview(frame, "spectrum").axes[0])) == 2
    assert len(solid(depth_overview(frame, "evolution").axes[0])) == 3


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


@pytest.mark.slow
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


@pytest.mark.extended
@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes(everything, tmp_path):
    frame = everything(metrics=("token_rank", "token_cosine"), classes=("frequent", "rare"))
    mixed = frame.sample(frac=1, random_state=0)
    files = [
        save({"depth": depth_overview(rows, "tokens"), "steps": steps_overview(rows, "tokens")}, tmp_path / name)
        for name, rows in (("a", frame), ("b", mixed))
    ]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_two_runs_are_an_error(everything):
    frame = pd.concat([everything(metrics=("norm",), run="a"), everything(metrics=("norm",), run="b")])
    with pytest.raises(ValueError, match="^expected the rows of one run, got 2: 'a', 'b'; select one"):
        depth_overview(frame, "evolution")
