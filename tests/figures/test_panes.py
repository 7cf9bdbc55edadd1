import math

import pytest
from synthetic_families import make_everything

from repdyn.figures.panes import depth_panes, n_columns, single_panes, step_panes
from repdyn.tables.frames import measurements


@pytest.fixture
def rows(frame_of):
    """Of some metrics at two steps of a model with two blocks."""

    def make(*metrics, **given):
        return measurements(frame_of(make_everything(steps=(0, 8), n_blocks=2, metrics=metrics, **given)))

    return make


def told(panes):
    return [(pane.title, pane.tokens, [trace.label for trace in pane.traces]) for pane in panes]


def test_each_metric_and_subset_has_a_panel(rows):
    assert told(depth_panes(rows("mean_cosine", "isoscore"), "similarity")) == [
        ("Mean cosine of two tokens", "all tokens", ["all tokens"]),
        ("Mean cosine of two tokens", "no sinks", ["no sinks"]),
        ("IsoScore", "all tokens", ["all tokens"]),
    ]


def test_metrics_that_differ_in_a_number_share_a_panel(rows):
    (pane,) = depth_panes(rows("components_99", "components_50"), "spectrum")
    assert told([pane]) == [("Directions for a share of the variance", "all tokens", ["50 %", "99 %"])]
    assert pane.ordered
    scales, single = depth_panes(rows("gride_2", "gride_8", "levina_bickel"), "dimension")
    assert [trace.label for trace in scales.traces] == ["k = 2", "k = 8"]
    assert single.metric == "levina_bickel"


def test_one_of_a_group_is_a_metric_like_any_other(rows):
    (pane,) = depth_panes(rows("gride_16"), "dimension")
    assert told([pane]) == [("Intrinsic dimension (Gride, neighbours 16 and 8)", "all tokens", ["all tokens"])]


def test_classes_that_are_held_against_each_other_share_a_panel(rows):
    classes = ("rare", "verbs", "function", "frequent", "nouns", "content")
    found = depth_panes(rows("token_cosine", classes=classes), "tokens")
    assert [(pane.tokens, [trace.label for trace in pane.traces], pane.pair) for pane in found] == [
        ("all tokens", ["all tokens"], False),
        ("frequent and rare", ["frequent", "rare"], True),
        ("function and content", ["function", "content"], True),
        ("classes of tokens", ["nouns", "verbs"], False),
    ]


def test_metrics_with_fewer_panels_come_after_those_that_fill_a_row(rows):
    found = rows("token_cosine", "token_rank", "token_top1_match", classes=("frequent", "rare", "function", "content"))
    found = found.loc[(found["metric"] != "token_rank") | (found["subset"] == "all")]
    panes = depth_panes(found, "tokens")
    assert [pane.metric for pane in panes] == ["token_cosine"] * 3 + ["token_top1_match"] * 3 + ["token_rank"]
    assert n_columns(panes) == 3


def test_a_class_without_its_counterpart_is_alone(rows):
    _, alone = depth_panes(rows("token_cosine", classes=("rare",)), "tokens")
    assert (alone.tokens, alone.pair) == ("rare", False)


def test_against_step_all_and_no_sink_share_a_panel(rows):
    norm, step = step_panes(rows("norm", "step_length"), "evolution")
    assert told([norm, step]) == [
        ("Norm", "", ["all tokens", "no sinks"]),
        ("Step to the next layer", "all tokens", ["all tokens"]),
    ]


def test_the_embedding_output_is_told_apart_where_it_says_more(rows):
    (pane, *_) = step_panes(rows("alignment", classes=()), "convergence")
    assert told([pane]) == [("Alignment with the last layer", "all tokens", ["mean over layers", "layer 0"])]
    assert [trace.layer for trace in pane.traces] == [None, 0]


def test_without_a_value_of_the_embedding_output_it_is_left_out(rows):
    found = rows("alignment", classes=())
    found.loc[found["layer"] == 0, "value"] = math.nan
    (pane,) = step_panes(found, "convergence")
    assert [trace.label for trace in pane.traces] == ["all tokens"]


def test_what_has_no_value_anywhere_has_no_panel(rows):
    found = rows("mean_cosine", "isoscore")
    found.loc[(found["metric"] == "isoscore") | (found["subset"] == "no_sink"), "value"] = math.nan
    for panes in (depth_panes, step_panes, single_panes):
        assert [pane.metric for pane in panes(found, "similarity")] == ["mean_cosine"]


def test_runs_are_compared_metric_by_metric_but_for_pairs_of_classes(rows):
    found = single_panes(rows("alignment", classes=("frequent", "rare", "nouns")), "convergence")
    assert [pane.tokens for pane in found] == ["all tokens", "nouns", "frequent and rare"]
    assert len(single_panes(rows("gride_2", "gride_4"), "dimension")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metrics", "classes", "columns"),
    [
        (("norm",), (), 2),
        (("isoscore",), (), 1),
        (("mean_cosine", "isoscore", "massive_activation_share"), (), 3),
        (("token_cosine", "token_rank", "token_top1_match"), ("frequent", "rare"), 2),
        (("token_cosine", "token_rank", "token_top1_match", "token_rank_attention"), ("frequent", "rare"), 4),
        (("token_cosine", "token_rank"), ("frequent", "rare", "function", "content"), 3),
    ],
    ids=["2 of one", "1", "5 of three", "2 each of three", "2 each of four", "3 each of two"],
)
def test_panels_of_one_metric_share_a_row_where_they_can(rows, metrics, classes, columns):
    found = rows(*metrics, classes=classes)
    family = {"n": "evolution", "i": "similarity", "m": "similarity", "t": "tokens"}[metrics[0][0]]
    assert n_columns(depth_panes(found, family)) == columns
