import doctest
import math

import pytest
from synthetic_families import make_everything

from repdyn.diagnosis import insight
from repdyn.figures import axes, convergence
from repdyn.metrics import FAMILIES, METRICS
from repdyn.tables import families, series, style, texts
from repdyn.tables.families import drop_first_comparison, members_of, overview_families, undefined
from repdyn.tables.frames import measurements

NAN = math.nan


@pytest.mark.parametrize(
    "module", [axes, convergence, families, insight, series, style, texts], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_metric_has_a_title_a_unit_and_a_known_family(metric):
    assert metric.title
    assert metric.unit
    assert metric.family in FAMILIES


def test_families_are_in_their_order_and_those_with_figures_of_their_own_left_out():
    assert overview_families(["topic_gap", "two_nn", "mine", "norm", "gride_4", "gride_2"]) == [
        "dimension",
        "evolution",
        "topics",
    ]


def test_members_are_in_the_order_of_the_table(frame_of):
    rows = measurements(frame_of(make_everything(steps=(0,), n_blocks=1)))
    assert members_of(rows, "change") == ["cka_previous", "mutual_knn_previous", "procrustes_previous"]
    first = ["mean_cosine", "isoscore", "massive_activation_share"]
    further = ["outlier_kurtosis", "next_token_variance", "sequence_cosine", "largest_activation"]
    assert members_of(rows, "similarity") == [*first, *further]
    with pytest.raises(
        ValueError, match="^expected a family of measured metrics, got 'colour'; measured were change, "
    ):
        members_of(rows, "colour")


def test_what_has_no_value_anywhere_is_told_with_its_reason(frame_of):
    frame = frame_of(make_everything(steps=(0, 1), n_blocks=2, metrics=("norm", "token_rank", "token_cosine")))
    tokens = frame["metric"].isin(["token_rank", "token_cosine"])
    frame.loc[tokens, ["value", "reason"]] = [NAN, "batch 0: the input embeddings have 64 coordinates"]
    frame.loc[tokens & (frame["subset"] == "rare"), ["value", "reason"]] = [0.5, None]
    frame.loc[(frame["metric"] == "norm") & (frame["layer"] == 1), ["value", "reason"]] = [NAN, "infinite"]
    found = undefined(measurements(frame))
    assert list(found) == ["the input embeddings have 64 coordinates"]
    assert "token_rank (all)" in found["the input embeddings have 64 coordinates"]
    assert "token_rank (rare)" not in found["the input embeddings have 64 coordinates"]
    frame.loc[tokens, "value"] = NAN
    assert ["token_cosine", "token_rank"] in undefined(measurements(frame)).values()


def test_geometry_without_a_value_is_not_told_for_it_has_figures_that_say_so(run):
    assert undefined(measurements(run(steps=(0,), dimension=lambda step, depth: NAN))) == {}


def test_nothing_to_compare_with_is_no_failure_at_the_first_step_alone(frame_of):
    frame = frame_of(make_everything(steps=(2, 4, 8), n_blocks=2, metrics=("norm", "cka_previous")))
    later = (frame["metric"] == "cka_previous") & (frame["step"] == 4)
    frame.loc[later, ["value", "reason"]] = [NAN, "no earlier checkpoint of this run is at hand"]
    rows = drop_first_comparison(measurements(frame))
    assert rows.loc[rows["metric"] == "cka_previous", "step"].unique().tolist() == [4, 8]
    assert rows.loc[rows["metric"] == "norm", "step"].unique().tolist() == [2, 4, 8]
