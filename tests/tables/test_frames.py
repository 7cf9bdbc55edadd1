import math
import re

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import DENSE, NO_DESIGN

from repdyn.tables.frames import (
    by_stack,
    causality,
    grid,
    is_finished,
    layer_mean,
    measurements,
    metrics_of,
    of_heads,
    of_training,
    scalar,
    select_steps,
    stack_of,
    subsets_of,
    tokens_by_step,
)
from repdyn.tables.frames import failures as failures_of

NAN = math.nan


def test_measurements_leave_out_scalars_and_sort(run):
    frame = run(steps=(4, 0))
    rows = measurements(frame.sample(frac=1, random_state=0))
    assert set(rows["metric"]) == {"anisotropy", "two_nn"}
    assert rows["layer"].dtype.kind == "i"
    assert rows[["step", "layer"]].to_numpy().tolist() == sorted(rows[["step", "layer"]].to_numpy().tolist())
    assert len(rows) == len(frame) - 2


def with_heads(run, n_heads=2):
    """A layer's values and, for one metric, those of its heads."""
    frame = run(steps=(0, 4), n_blocks=1)
    layers = frame[frame["metric"] == "two_nn"]
    return pd.concat([frame, *(layers.assign(head=head, value=100.0 + head) for head in range(n_heads))])


def test_values_of_heads_are_apart(run):
    frame = with_heads(run)
    rows, heads = measurements(frame), of_heads(frame)
    assert rows["head"].isna().all()
    assert rows["value"].max() < 100
    assert sorted(heads["head"].unique()) == [0, 1]
    assert set(heads["value"]) == {100.0, 101.0}
    assert len(heads) == 8
    assert layer_mean(rows, "two_nn", "all").mean.max() < 100
    assert of_heads(run(steps=(0,))).empty


def test_a_head_measured_twice_is_an_error(run):
    frame = with_heads(run, n_heads=1)
    twice = frame[frame["head"].notna()].assign(settings='{"k": 2}')
    expected = (
        "expected one value per step, layer, metric, subset and head, got 2 of two_nn (all) at step 0, layer 0, head 0, "
        'with settings {"discard": 0.1} and {"k": 2}; select one of them'
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        of_heads(pd.concat([frame, twice]))
    measurements(pd.concat([frame, twice]))


def test_heads_alone_are_no_measurement_of_a_layer(run):
    frame = with_heads(run)
    with pytest.raises(ValueError, match="^expected the measured rows of one run, got none"):
        measurements(frame[frame["head"].notna()])


def test_a_finished_model_is_no_training(run):
    assert len(of_training(run(steps=(0, 4)), "it"))
    with pytest.raises(ValueError, match="which has no steps; draw its profile$"):
        of_training(run(steps=(0,), stage="finished"), "profile")


def test_a_metric_without_a_subset_is_filed_under_all(run):
    rows = measurements(run(steps=(0,)).query("metric != 'anisotropy'").assign(subset=None))
    assert subsets_of(rows, "two_nn") == ["all"]


def test_nullable_columns_give_the_same_numbers(run):
    frame = run(dimension=lambda step, depth: NAN if depth == 0 else step + depth)
    expected = grid(measurements(frame), "two_nn", "all")
    got = grid(measurements(frame.convert_dtypes()), "two_nn", "all")
    np.testing.assert_array_equal(got.to_numpy(float), expected.to_numpy(float))


@pytest.mark.parametrize("only_scalars", [False, True], ids=["empty", "scalars only"])
def test_nothing_measured_is_an_error(run, only_scalars):
    frame = run(steps=(0,))
    frame = frame[frame["layer"].isna()] if only_scalars else frame.iloc[:0]
    with pytest.raises(ValueError, match="^expected the measured rows of one run, got none; measure at least one"):
        measurements(frame)


def test_a_frame_without_columns_is_an_error():
    with pytest.raises(ValueError, match="got none"):
        measurements(pd.DataFrame())


@pytest.mark.parametrize("column", ["run", "model", "probe"])
def test_two_of_a_kind_are_named(run, column):
    frame = pd.concat([run(steps=(0,), **{column: name}) for name in ("second", "first")])
    expected = (
        f"expected the rows of one {column}, got 2: 'first', 'second'; "
        f"select one, for example frame[frame['{column}'] == 'first']"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        measurements(frame)


def test_the_advice_in_the_message_helps(run):
    frame = pd.concat([run(steps=(0,), run="a"), run(steps=(0,), run="b")])
    assert measurements(frame.loc[frame["run"] == "a"])["run"].unique().tolist() == ["a"]


def test_a_metric_under_two_settings_is_an_error(run):
    frame = run(steps=(0,), n_blocks=1)
    again = frame[frame["metric"] == "two_nn"].assign(settings='{"discard": 0.8}')
    expected = (
        "expected one value per step, layer, metric and subset, got 2 of two_nn (all) at step 0, layer 0, "
        'with settings {"discard": 0.1} and {"discard": 0.8}; select one of them'
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        measurements(pd.concat([frame, again]))


def test_a_finished_model_among_steps_is_an_error(run):
    frame = pd.concat([run(steps=(0,), stage="finished"), run(steps=(8,))])
    expected = "expected the steps of a training or one finished model, got both under 'decoder-quickstart'; keep them as two runs"
    with pytest.raises(ValueError, match=f"^{expected}$"):
        measurements(frame)


def test_what_counts_as_finished(run):
    assert is_finished(run(steps=(0,), stage="finished"))
    assert not is_finished(run(steps=(0,), stage="stage1"))
    assert not is_finished(run(steps=(0,)))
    assert not is_finished(run(steps=(0,)).convert_dtypes())


def test_failures_are_scalars_with_a_reason(published, failures, frame_of):
    frame = frame_of(published(steps=(0,)), failures(8))
    assert frame_of(failures(8))["reason"].tolist() == failures_of(frame)["reason"].tolist()


def test_tokens_by_step(run, published, frame_of):
    assert tokens_by_step(frame_of(published(steps=(8, 0, 1)))).to_dict() == {0: 0, 1: 1000, 8: 8000}
    assert tokens_by_step(run(steps=(0, 8))).empty


def test_unknown_metric_and_subset_name_what_there_is(run):
    rows = measurements(run(steps=(0,)))
    with pytest.raises(ValueError, match="^expected a measured metric, got 'rank'; measured were anisotropy, two_nn$"):
        subsets_of(rows, "rank")
    with pytest.raises(ValueError, match="^expected a subset two_nn was measured on, got 'no_sink'; there are all$"):
        grid(rows, "two_nn", "no_sink")


def test_subsets_come_in_their_order(run):
    frame = run(steps=(0,))
    extra = frame[(frame["metric"] == "anisotropy") & (frame["subset"] == "all")].assign(subset="a_third")
    assert subsets_of(measurements(pd.concat([extra, frame])), "anisotropy") == ["all", "no_sink", "a_third"]


def test_scalar_by_step_without_nan(run):
    frame = run(steps=(0, 1), loss=False)
    losses = pd.DataFrame({"layer": [None, None], "metric": "train/loss", "step": [2, 1], "value": [1.5, NAN]})
    assert scalar(pd.concat([frame, losses]), "train/loss").to_dict() == {2: 1.5}
    assert scalar(frame, "train/loss").empty


def test_layer_mean_keeps_to_the_same_layers(run):
    def without_layer_1_at_step_4(step, depth):
        return NAN if (step, depth) == (4, 0.5) else 10 + 10 * depth + step

    frame = run(n_blocks=2, steps=(0, 4), noise=0.1, dimension=without_layer_1_at_step_4)
    means = layer_mean(measurements(frame), "two_nn", "all")
    assert means.mean.to_dict() == {0: 15.0, 4: 19.0}
    # the standard deviations of the layers used are 1.5 and 1.9 on average, of 8 batches
    in_units = 2.3646243 * math.sqrt(2 / 8)
    assert means.margin.to_dict() == pytest.approx({0: 1.5 * in_units, 4: 1.9 * in_units})
    assert (means.n_used, means.n_layers) == (2, 3)


def test_layer_mean_leaves_out_steps_without_any_value(run):
    frame = run(n_blocks=2, steps=(0, 4), dimension=lambda s, d: NAN if s == 0 else 3.0)
    means = layer_mean(measurements(frame), "two_nn", "all")
    assert means.mean.to_dict() == {4: 3.0}
    assert means.n_used == 3


def test_layer_mean_of_nothing(run):
    means = layer_mean(measurements(run(dimension=lambda s, d: NAN)), "two_nn", "all")
    assert means.mean.empty
    assert (means.n_used, means.n_layers) == (0, 7)


def test_layer_mean_does_not_hide_an_unknown_interval(run):
    frame = run(n_blocks=1, steps=(0,))
    frame.loc[(frame["metric"] == "two_nn") & (frame["layer"] == 0), ["low", "high"]] = NAN
    assert layer_mean(measurements(frame), "two_nn", "all").margin.isna().tolist() == [True]


def test_the_margin_is_half_of_the_interval_and_missing_without_one(run):
    rows, pooled = measurements(run(steps=(0,))), measurements(run(steps=(0,), **DENSE))
    np.testing.assert_allclose(rows["margin"], rows["high"] - rows["value"], rtol=1e-12)
    np.testing.assert_allclose(rows["margin"], rows["value"] - rows["low"], rtol=1e-12)
    assert pooled["margin"].isna().all()


def test_the_probes_of_two_designs_are_named_where_they_are_refused(run):
    two = pd.concat([run(steps=(0,)), run(steps=(8,), probe="00d1", **DENSE)])
    expected = (
        "expected the rows of one probe, got 2: '00d1' (sampling design dense), '3f2ab1c09d77e412' (sampling design "
        "independent); select one, for example frame[frame['probe'] == '00d1']"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        measurements(two)


def test_a_resumed_run_is_one_curve_though_its_first_rows_name_no_design(run):
    resumed = pd.concat([run(steps=(0,), **NO_DESIGN), run(steps=(8,), **DENSE)])
    assert layer_mean(measurements(resumed), "two_nn", "all").mean.index.tolist() == [0, 8]


PYTHIA = [0, *(2**power for power in range(10)), *range(1000, 143001, 1000)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", [[0], [5], [0, 7], [*range(9)], PYTHIA, [1000, 2000, 9000]], ids=lambda steps: f"{len(steps)} steps"
)
@pytest.mark.parametrize("limit", [2, 5, 8])
def test_selected_steps_keep_both_ends(steps, limit):
    chosen = select_steps(steps, limit)
    assert chosen[0] == steps[0]
    assert chosen[-1] == steps[-1]
    assert len(chosen) <= limit
    assert chosen == sorted(set(chosen) & set(steps))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([True, True], True), ([False], False), ([None], None), ([True, None], True), ([True, False], None)],
    ids=["decoder", "encoder", "unknown", "partly known", "contradictory"],
)
def test_causality(values, expected):
    assert causality(pd.DataFrame({"causal": values})) is expected


def test_the_main_metrics_come_first():
    rows = pd.DataFrame({"metric": ["effective_rank", "mine", "two_nn", "gride_16", "gride_4", "anisotropy", "a"]})
    assert metrics_of(rows) == ["anisotropy", "two_nn", "gride_4", "gride_16", "effective_rank", "a", "mine"]


def test_by_stack_gives_each_its_layers_and_all_the_scalars(two_stacks, failures, frame_of):
    frame = frame_of(two_stacks(steps=(0, 8)), failures(16, run="lab/t5"))
    stacks = by_stack(frame)
    assert list(stacks) == ["encoder", "decoder"]
    for name, n_layers, causal in (("encoder", 5, False), ("decoder", 7, True)):
        rows = measurements(stacks[name])
        assert (stack_of(rows), len(rows["layer"].unique()), causality(rows)) == (name, n_layers, causal)
        assert (rows["depth"].min(), rows["depth"].max()) == (0, 1)
        assert len(scalar(stacks[name], "train/loss")) == 2
        assert failures_of(stacks[name])["step"].tolist() == [16, 16]
    n_scalars = int(frame["layer"].isna().sum())
    assert sum(len(rows) for rows in stacks.values()) == len(frame) + n_scalars


def test_by_stack_of_a_model_without_named_stacks_is_the_model(run):
    frame = run(steps=(0, 8))
    (found,) = by_stack(frame).items()
    assert found[0] is None
    pd.testing.assert_frame_equal(found[1], frame)
    assert stack_of(measurements(frame)) is None
    assert list(by_stack(frame.convert_dtypes())) == [None]


def test_by_stack_of_failures_alone(failures, frame_of):
    assert {stack: len(rows) for stack, rows in by_stack(frame_of(failures(8))).items()} == {None: 2}


def test_stacks_of_other_names_come_after_by_name(two_stacks, frame_of):
    frame = frame_of(two_stacks())
    names = {"encoder": "vision", "decoder": "text"}
    assert list(by_stack(frame.assign(stack=frame["stack"].map(names)))) == ["text", "vision"]
    some = frame.assign(stack=frame["stack"].map({"decoder": "decoder"}))
    assert list(by_stack(some)) == ["decoder", None]
    assert [len(measurements(rows)["layer"].unique()) for rows in by_stack(some).values()] == [7, 5]


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (
            {"encoder": "encoder", "decoder": "decoder"},
            "'encoder', 'decoder'; select one, for example by_stack(frame)['encoder']",
        ),
        ({"decoder": "decoder"}, "'decoder', None; select one, for example by_stack(frame)['decoder']"),
    ],
    ids=["named", "one without a name"],
)
def test_two_stacks_are_not_mixed(two_stacks, frame_of, names, listed):
    frame = frame_of(two_stacks(steps=(0,)))
    expected = f"expected the rows of one stack of blocks, got 2: {listed}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        measurements(frame.assign(stack=frame["stack"].map(names)))
