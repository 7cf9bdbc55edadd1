"""Rows become tables once, for every view: selected, checked for comparability, summarised."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_families import make_everything
from synthetic_runs import DENSE, NO_DESIGN, fill, make_row, make_scalar, measured_runs, to_frame

from repdyn.measurement.estimates import mean_and_spread
from repdyn.metrics import METRICS
from repdyn.metrics.logged import logged_values
from repdyn.store import Store
from repdyn.store.schema import (
    LOSS,
    PROBE_LOSS,
    code_of_text,
)
from repdyn.utils.intervals import interval_within
from repdyn.views.charts.lines import end_lines, mean_lines, profile_lines
from repdyn.views.display import DISPLAYS, FAMILIES
from repdyn.views.judging.metrics import best_covered_mean
from repdyn.views.tables.frames import (
    by_stack,
    causality,
    counted_reasons,
    loss_of_run,
    measurements,
    missing_values,
    of_heads,
    scalar,
    select_steps,
)
from repdyn.views.tables.frames import failures as failures_of
from repdyn.views.tables.runs import differences, is_measured, select, short_names
from repdyn.views.tables.series import intervals, metric_series, thin
from repdyn.views.tables.texts import cost_line, failure_line, sampling

NAN = math.nan


def test_measurements_leave_out_scalars_and_sort(run):
    frame = run(steps=(4, 0))
    rows = measurements(frame.sample(frac=1, random_state=0))
    assert set(rows["metric"]) == {"anisotropy", "two_nn"}
    assert rows["layer"].dtype.kind == "i"
    assert rows[["step", "layer"]].to_numpy().tolist() == sorted(
        rows[["step", "layer"]].to_numpy().tolist()
    )
    assert len(rows) == len(frame) - 2


def with_heads(run, n_heads=2):
    """A layer's values and, for one metric, those of its heads."""
    frame = run(steps=(0, 4), n_blocks=1)
    layers = frame.query("metric == 'two_nn'")
    return pd.concat(
        [frame, *(layers.assign(head=head, value=100.0 + head) for head in range(n_heads))]
    )


def test_values_of_heads_are_apart(run):
    frame = with_heads(run)
    rows = measurements(frame)
    heads = of_heads(frame)
    assert rows["head"].isna().all()
    assert rows["value"].max() < 100
    assert sorted(heads["head"].unique()) == [0, 1]
    assert set(heads["value"]) == {100.0, 101.0}
    assert len(heads) == 8
    assert metric_series(rows)["two_nn", "all"].layer_mean.mean.max() < 100
    assert of_heads(run(steps=(0,))).empty


@pytest.mark.parametrize("column", ["run", "model", "probe", "stack"])
def test_two_of_a_kind_are_named(run, column):
    frame = pd.concat([run(steps=(0,), **{column: name}) for name in ("second", "first")])
    expected = (
        f"expected the rows of one {column}, got 2: 'first', 'second'; "
        f"select one, for example frame[frame['{column}'] == 'first']"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        measurements(frame)


def test_a_metric_under_two_settings_is_an_error(run):
    frame = run(steps=(0,), n_blocks=1)
    again = frame.query("metric == 'two_nn'").assign(settings='{"discard": 0.8}')
    expected = (
        "expected one value per step, layer, metric and subset, got 2 of two_nn (all) at step 0, "
        "layer 0, "
        'with settings {"discard": 0.1} and {"discard": 0.8}; select one of them'
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        measurements(pd.concat([frame, again]))


def test_few_rows_whose_metrics_have_many_categories_are_distinct():
    """A key of step and metric that counts with as many texts as there are rows takes two cells for
    one."""
    frame = to_frame([make_row(step=step, metric="two_nn", layer=1) for step in (0, 1)])
    more = [f"metric_{number:02d}" for number in range(40)]
    frame["metric"] = pd.Categorical(["a", "d"], categories=["a", "b", "c", "d", "e", *more])
    frame["step"] = [1, 0]
    assert len(measurements(frame)) == 2


def test_a_finished_model_among_steps_is_an_error(run):
    frame = pd.concat([run(steps=(0,), stage="finished"), run(steps=(8,))])
    expected = (
        "expected the steps of a training or one finished model, got both under "
        "'decoder-quickstart'; keep them as two runs"
    )
    with pytest.raises(ValueError, match=f"^{expected}$"):
        measurements(frame)


def test_failures_are_scalars_with_a_reason(published, failures, frame_of):
    frame = frame_of(published(steps=(0,)), failures(8))
    assert frame_of(failures(8))["reason"].tolist() == failures_of(frame)["reason"].tolist()


def test_layer_mean_keeps_to_the_same_layers(run):
    def without_layer_1_at_step_4(step, depth):
        return NAN if (step, depth) == (4, 0.5) else 10 + 10 * depth + step

    frame = run(n_blocks=2, steps=(0, 4), noise=0.1, dimension=without_layer_1_at_step_4)
    means = metric_series(measurements(frame))["two_nn", "all"].layer_mean
    assert means.mean.to_dict() == {0: 20.0, 4: 24.0}
    # the standard deviations of the block that is used are 2.0 and 2.4, of 8 batches
    in_units = 2.3646243 * math.sqrt(2 / 8)
    assert means.margin.to_dict() == pytest.approx({0: 2.0 * in_units, 4: 2.4 * in_units})
    assert means.n_used == 1
    assert means.n_layers == 2


def test_layer_mean_does_not_hide_an_unknown_interval(run):
    frame = run(n_blocks=1, steps=(0,))
    frame.loc[(frame["metric"] == "two_nn") & (frame["layer"] == 1), ["low", "high"]] = NAN
    assert metric_series(measurements(frame))[
        "two_nn", "all"
    ].layer_mean.margin.isna().tolist() == [True]


def test_the_margin_is_half_of_the_interval_and_missing_without_one(run):
    rows = measurements(run(steps=(0,)))
    pooled = measurements(run(steps=(0,), **DENSE))
    np.testing.assert_allclose(rows["margin"], rows["high"] - rows["value"], rtol=1e-12)
    np.testing.assert_allclose(rows["margin"], rows["value"] - rows["low"], rtol=1e-12)
    assert pooled["margin"].isna().all()


def naive_interval(value, half):
    """On the scale whose derivative is that of the spread of a fraction, by the delta method."""
    low, high = (
        np.clip(
            np.arcsin(value**0.5) + sign * half / (2 * (value * (1 - value)) ** 0.5), 0, np.pi / 2
        )
        for sign in (-1, 1)
    )
    return np.sin(low) ** 2, np.sin(high) ** 2


@pytest.mark.parametrize("value", [0.003, 0.02, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("half", [0.001, 0.05, 0.4])
def test_the_interval_of_a_fraction_stays_inside(value, half):
    """The bands of anisotropy reached 1.12, and those of sink_rate -0.077."""
    values = np.array([value - half / 2, value + half / 2])
    spread = values.std(ddof=1)
    summary = mean_and_spread(values, True, (0.0, 1.0))
    expected = naive_interval(value, 12.7062047 * spread)
    assert (summary["low"], summary["high"]) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert 0 <= summary["low"] <= value <= summary["high"] <= 1
    low, high = interval_within(2 * value - 1, 2 * half, (-1.0, 1.0))
    expected = naive_interval(value, half)
    assert (low, high) == pytest.approx([2 * end - 1 for end in expected], abs=1e-9)
    of_length = mean_and_spread(values, True, (0.0, math.inf))
    assert of_length["high"] - value == pytest.approx(value - of_length["low"])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_fraction_of_exactly_none_or_all_has_an_interval(value):
    summary = mean_and_spread(np.full(3, value), True, (0.0, 1.0))
    assert summary["low"] == value
    assert summary["value"] == value
    assert summary["high"] == value
    assert [float(end) for end in interval_within(1.0 + 1e-9, 0.1, (0.0, 1.0))] == [
        pytest.approx(0.9),
        pytest.approx(1.1),
    ]


def test_bands_follow_the_stored_ends_and_none_leaves_the_range(run):
    frame = run(n_blocks=2, steps=(0, 4))
    is_share = frame["metric"] == "anisotropy"
    frame.loc[is_share, ["value", "low", "high"]] = 0.9, 0.7, 0.97
    frame.loc[~is_share, ["value", "low", "high"]] = 8.0, 7.0, 11.0
    series = metric_series(measurements(frame))
    for name, ends in (("anisotropy", (0.7, 0.97)), ("two_nn", (7.0, 11.0))):
        curve = series[name, "all"]
        lines = [*profile_lines(curve, {0: "red"}), *end_lines(curve, colour="red")]
        for line in [*lines, *mean_lines(curve, colour="red")]:
            for drawn, end in zip(line.band, ends, strict=True):
                np.testing.assert_allclose(drawn, end)
    # a store written before: symmetric
    frame.loc[is_share, ["low", "high"]] = 0.68, 1.12
    old = metric_series(measurements(frame))["anisotropy", "all"]
    low, high = naive_interval(0.9, 0.22)
    np.testing.assert_allclose(old.lows, low)
    np.testing.assert_allclose(old.highs, high)


PYTHIA = [0, *(2**power for power in range(10)), *range(1000, 143001, 1000)]


@pytest.mark.parametrize(
    "steps",
    [[0], [5], [0, 7], [*range(9)], PYTHIA, [1000, 2000, 9000]],
    ids=lambda steps: f"{len(steps)} steps",
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
    [
        ([True, True], True),
        ([False], False),
        ([None], None),
        ([True, None], True),
        ([True, False], None),
    ],
    ids=["decoder", "encoder", "unknown", "partly known", "contradictory"],
)
def test_causality(values, expected):
    assert causality(pd.DataFrame({"causal": values})) is expected


def test_by_stack_gives_each_its_layers_and_all_the_scalars(two_stacks, failures, frame_of):
    frame = frame_of(two_stacks(steps=(0, 8)), failures(16, run="lab/t5"))
    stacks = by_stack(frame)
    assert list(stacks) == ["encoder", "decoder"]
    for name, n_layers, causal in (("encoder", 5, False), ("decoder", 7, True)):
        rows = measurements(stacks[name])
        assert len(rows["layer"].unique()) == n_layers
        assert causality(rows) == causal
        assert rows["depth"].min() == 0
        assert rows["depth"].max() == 1
        assert len(scalar(stacks[name], "train/loss")) == 2
        assert failures_of(stacks[name])["step"].tolist() == [16, 16]
    n_scalars = int(frame["layer"].isna().sum())
    assert sum(len(rows) for rows in stacks.values()) == len(frame) + n_scalars


def test_every_metric_has_a_display_with_a_title_a_unit_and_a_known_family():
    """A metric that is added without one would be drawn under its name, as a user's own is."""
    assert DISPLAYS.keys() == METRICS.keys()
    for name, display in DISPLAYS.items():
        assert display.title, name
        assert display.unit, name
        assert display.family in FAMILIES, name


def test_what_lacks_values_is_told_with_its_reason(frame_of):
    frame = frame_of(
        make_everything(steps=(0, 1), n_blocks=2, metrics=("norm", "token_rank", "token_cosine"))
    )
    tokens = frame["metric"].isin(["token_rank", "token_cosine"]) & (frame["subset"] == "all")
    frame.loc[tokens, ["value", "reason"]] = [
        NAN,
        "batch 0: the input embeddings have 64 coordinates",
    ]
    chosen = (frame["metric"] == "norm") & (frame["layer"] == 1) & (frame["subset"] == "no_sink")
    frame.loc[chosen, ["value", "reason"]] = [NAN, "infinite"]
    first = (
        (frame["metric"] == "norm")
        & (frame["layer"] == 0)
        & (frame["subset"] == "no_sink")
        & (frame["step"] == 1)
    )
    frame.loc[first, ["value", "reason"]] = [
        NAN,
        "fewer than half of the vectors are distinct: 3 of 9",
    ]
    harmless = (
        "fewer than half of the vectors are distinct: 3 of 9 (harmless: tokens repeat in layer 0)"
    )
    has_reason = frame["reason"].notna()
    frame.loc[has_reason, "reason_code"] = [
        code_of_text(why) for why in frame["reason"][has_reason]
    ]
    assert missing_values(measurements(frame)) == [
        ([("norm", "no_sink")], 3, 6, f"2 cells: infinite; 1 cell: {harmless}"),
        (
            [("token_rank", "all"), ("token_cosine", "all")],
            6,
            6,
            "the input embeddings have 64 coordinates",
        ),
    ]


def test_order_is_kind_then_size_then_name(published, finished, frame_of):
    frame = frame_of(
        published("lab/z", parameters=7),
        published("lab/b", parameters=7),
        published("lab/a", parameters=70),
        published("lab/unsized", parameters=None),
        published("lab/unknown", causal=None, parameters=1),
        finished("lab/encoder", parameters=2),
    )
    assert [run.label for run in measured_runs(frame)] == [
        "b",
        "z",
        "a",
        "unsized",
        "encoder",
        "unknown",
    ]


def test_what_a_run_knows_of_itself(published, finished, failures, frame_of):
    frame = frame_of(published(steps=(0, 8)), finished(), failures(16), failures(32))
    model, bert = measured_runs(frame)
    assert model.name == "lab/model-70m"
    assert model.causal is True
    assert model.parameters == 1_234_567
    assert model.steps == [0, 8]
    assert model.n_failed == 2
    assert bert.n_failed == 0
    assert model.finished is False
    assert bert.finished is True
    assert model.tokens.to_dict() == {0: 0, 8: 8000}
    assert bert.tokens.empty


def test_runs_that_only_failed_are_left_out(published, failures, frame_of):
    frame = frame_of(published("lab/a"), failures(0, run="lab/gone"))
    assert [run.name for run in measured_runs(frame)] == ["lab/a"]


NAMES = {
    "one owner": (["E/pythia-70m", "E/pythia-160m"], [], ["pythia-70m", "pythia-160m"]),
    "published": (
        ["E/pythia-70m", "google/bert"],
        ["E/pythia-70m", "google/bert"],
        ["pythia-70m", "bert"],
    ),
    "parts": (
        ["E/a/stage1", "E/a/stage2", "F/b"],
        ["E/a/stage1", "E/a/stage2", "F/b"],
        ["a/stage1", "a/stage2", "b"],
    ),
    "live runs": (["decoder/12-00", "encoder/12-00"], [], ["decoder/12-00", "encoder/12-00"]),
    "one live run of several": (["quick/12-00", "quick/13-00"], [], ["12-00", "13-00"]),
    "no owner": (["gpt2", "E/b"], ["gpt2", "E/b"], ["gpt2", "b"]),
    "a namesake": (["E/b", "b"], ["E/b"], ["E/b", "b"]),
    "part of a name": (["E/b", "E/b/c"], [], ["b", "b/c"]),
    "alone": (["quick/12-00"], [], ["quick/12-00"]),
}


@pytest.mark.parametrize(("names", "published", "expected"), NAMES.values(), ids=NAMES)
def test_short_names(names, published, expected):
    assert short_names(names, published) == dict(zip(names, expected, strict=True))


def test_differences(published, frame_of):
    frame = frame_of(published("lab/a"), published("lab/b"), published("lab/c"))
    assert differences(measured_runs(frame)) is None
    frame.loc[(frame["run"] == "lab/c") & frame["layer"].notna(), "n_vectors"] = 512
    expected = "batches of different numbers of vectors: 4,096 (a, b), 512 (c)"
    assert differences(measured_runs(frame)) == expected
    of_class = frame.assign(metric="isoscore", subset="rare").drop_duplicates(
        ["run", "step", "layer"]
    )
    assert (
        differences(measured_runs(of_class)) == expected
    )  # means over a class compare, a spectrum does not


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (DENSE, "different sampling designs: independent (a), dense (b)"),
        (NO_DESIGN, "different sampling designs: independent (a), not recorded (b)"),
        ({"own_window_excluded": False}, "own window's neighbours: left out (a), counted (b)"),
    ],
    ids=["another design", "one from before designs had names", "one of the same name"],
)
def test_runs_of_different_designs_differ(published, frame_of, changes, expected):
    assert (
        differences(measured_runs(frame_of(published("lab/a"), published("lab/b", **changes))))
        == expected
    )


@pytest.fixture
def store(published, failures, filled, tmp_path):
    return filled(
        tmp_path / "sweeps",
        published("lab/pythia-70m", steps=(0, 8), probe="aaa1"),
        published("lab/pythia-70m", steps=(8,), probe="aab2"),
        published("lab/other", steps=(0,), probe="aaa1"),
        failures(0, run="lab/gone", probe="ccc3"),
    )


def test_everything(store):
    frames = select(store)
    assert list(frames) == [
        ("lab/gone", "ccc3"),
        ("lab/other", "aaa1"),
        ("lab/pythia-70m", "aaa1"),
        ("lab/pythia-70m", "aab2"),
    ]
    assert [is_measured(frame) for frame in frames.values()] == [False, True, True, True]
    frame = frames["lab/pythia-70m", "aab2"]
    assert set(frame["step"]) == {8}
    assert set(frame["probe"]) == {"aab2"}
    assert set(frame["run"]) == {"lab/pythia-70m"}
    assert "seconds/load" in set(frame["metric"])


def test_a_named_run_that_was_not_measured_on_the_probe_is_an_error(store):
    message = "^expected runs measured on the probe aab2, got lab/other, which were not$"
    with pytest.raises(ValueError, match=message):
        select(store, ["lab/other", "lab/pythia-70m"], "aab2")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("lab/pythia-7Om", "did you mean 'lab/pythia-70m'?"),
        ("pythia-70m", "did you mean 'lab/pythia-70m'?"),
        ("Lab/Other", "did you mean 'lab/other'?"),
        ("zzz", "it has lab/gone, lab/other, lab/pythia-70m"),
    ],
)
def test_a_mistyped_run_says_what_it_resembles(store, typed, hint):
    with pytest.raises(
        ValueError, match=re.escape(f"expected a run of {store.path}, got {typed!r}; {hint}")
    ):
        select(store, [typed])


def scalars(name: str, values: dict[int, float], **given):
    return [make_scalar(step, value, name, **given) for step, value in values.items()]


def test_the_loss_on_the_probe_comes_first():
    rows = [*scalars(LOSS, {8: 4.0, 16: 3.0}), *scalars(PROBE_LOSS, {16: 3.5, 0: 5.0, 8: math.nan})]
    name, losses = loss_of_run(to_frame(rows))
    assert name == PROBE_LOSS
    assert losses.to_dict() == {0: 5.0, 16: 3.5}
    assert losses.index.tolist() == [0, 16]


def test_sampling_names_the_design_and_the_windows(run):
    assert sampling(measurements(run())) == (
        "independent design: 8 batches of 4,096 vectors, 8 of each of 512 windows of 64 tokens, "
        "own window's neighbours "
        "left out"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "band: 95% interval over probes"),
        (DENSE, "no interval: batches share windows"),
        (NO_DESIGN, "no interval: batches share windows"),
        ({"n_batches": 1}, "no interval: a single batch"),
    ],
    ids=["disjoint", "pooled", "old", "single"],
)
def test_what_a_band_means(run, given, expected):
    assert intervals(measurements(run(**given))) == expected


def test_cost_is_the_median_and_bytes_the_sum(published, frame_of, scalar_row):
    frame = frame_of(published(steps=(0, 1, 2)))
    frame.loc[(frame["metric"] == "seconds/download") & (frame["step"] == 2), "value"] = 100.0
    assert cost_line(frame) == (
        "per checkpoint: download 3.1 s, load 0.5 s, forward 2.1 s, kernels 1.4 s (20% of it in "
        "the kernels); "
        "0.42 GB downloaded"
    )


def test_failures_of_many_steps_and_kinds(failures, frame_of):
    rows = [
        failures(step, f"out of memory: {step} bytes wanted, " + "and so on " * 20)
        for step in range(8)
    ]
    rows += [
        failures(step, reason) for step, reason in ((10, "gated"), (11, "broken"), (12, "gone"))
    ]
    text = failure_line(frame_of(*rows))
    assert text == (
        "11 checkpoints failed: steps 0, 1, 2, 3, 4 and 3 more: out of memory: 0 bytes wanted, "
        "and so on and so on and so "
        "on and so...; step 10: gated; 2 for other reasons; --retry-failed tries again"
    )


NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.just(NAN))


@st.composite
def curves(draw):
    steps = sorted(draw(st.sets(st.integers(0, 200_000), min_size=1, max_size=60)))
    return steps, draw(st.lists(NUMBERS, min_size=len(steps), max_size=len(steps)))


@settings(max_examples=150, deadline=None)
@given(curves(), st.integers(4, 12))
def test_ends_and_extremes_are_always_kept(curve, limit):
    steps, values = curve
    thinned = thin(steps, values, limit)
    assert thinned == sorted(set(thinned))
    assert len(thinned) <= limit
    assert {0, len(steps) - 1} <= set(thinned)
    defined = [value for value in values if not math.isnan(value)]
    if defined:
        drawn = [values[index] for index in thinned if not math.isnan(values[index])]
        assert max(drawn) == max(defined)
        assert min(drawn) == min(defined)


REASON = "fewer than half of the vectors are distinct: 80 of 4096"


NOW = {
    "n_unique": 80,
    "on_distinct": True,
    "value": math.nan,
    "std": math.nan,
    "reason": REASON,
    "own_window_excluded": True,
}


@pytest.fixture
def store_of_too_few_distinct(tmp_path) -> Store:
    """A run of three layers at two steps, the first layer with too few distinct vectors."""
    rows = []
    for step in (0, 8):
        for layer in range(3):
            cell = {
                "layer": layer,
                "depth": layer / 2,
                "step": step,
                "metric": "two_nn",
                "n_batches": 4,
            }
            few = NOW if layer == 0 else {}
            rows.append(make_row(**{"value": 10.0 + layer, "std": 0.1} | cell | few))
    return fill(tmp_path / "store", rows)


def test_the_frame_has_no_value_and_the_reason(store_of_too_few_distinct):
    rows = measurements(store_of_too_few_distinct.to_pandas())
    few = rows.query("layer == 0")
    assert few[["value", "std", "margin"]].isna().all(axis=None)
    assert set(few["reason"]) == {REASON}
    assert rows.loc[rows["layer"] > 0, "value"].notna().all()
    means = metric_series(rows)["two_nn", "all"].layer_mean
    assert means.mean.tolist() == [11.5, 11.5]
    assert means.n_used == 2
    assert means.n_layers == 2


def test_embeddings_enter_no_mean_over_layers_whatever_the_view():
    """TwoNN of 741 at layer 0 made the mean 131 where the blocks have 9.5."""

    def value_of(metric, layer):
        return 741.0 if metric == "two_nn" and layer == 0 else 9.0 + layer

    cells = [("two_nn", layer) for layer in range(4)]
    cells += [("linearity", layer) for layer in range(3)]
    rows = [
        make_row(
            step=step, layer=layer, depth=layer / 3, metric=metric, value=value_of(metric, layer)
        )
        for step in (0, 8)
        for metric, layer in cells
    ]
    series = metric_series(measurements(to_frame(rows)))
    logged = logged_values([row for row in rows if row.step == 8])
    # linearity tells at layer 0 of the first block
    for metric, of_blocks in (("two_nn", 11.0), ("linearity", 10.0)):
        curve = series[metric, "all"]
        assert curve.layer_mean.mean.tolist() == [of_blocks, of_blocks]
        assert curve.layer_mean.n_layers == 3
        assert best_covered_mean(curve).mean.tolist() == [of_blocks, of_blocks]
        assert logged[f"{metric}/mean"] == of_blocks
    assert logged["two_nn/max"] == 12.0
    assert logged["two_nn/layer_00"] == 741.0


@pytest.mark.parametrize(
    ("reason", "code", "n_unique", "told"),
    [
        ("said otherwise", "few_distinct", 1, "all 9 vectors are equal"),
        ("batch 0: 2 distinct of 9 points", "few_distinct", 2, "2 distinct of 9 points"),
        ("1 distinct of 9 points, at least 3 needed", "undefined", 9, None),
        ("batch 3: of another package", "error", 1, None),
    ],
)
def test_a_reason_is_told_by_its_code(reason, code, n_unique, told):
    cells = pd.DataFrame({"layer": [1], "reason": [reason], "reason_code": [code]})
    cells = cells.assign(n_unique=n_unique, n_vectors=9)
    assert counted_reasons(cells) == (told or reason)


def test_reasons_of_one_code_count_as_one_and_errors_by_their_texts():
    codes = ["not_finite", "not_finite", "error", "error", "few_distinct", "few_distinct"]
    reasons = ["NaN in the states", "infinite", "KeyError: a", "KeyError: b", "few", "equal"]
    cells = pd.DataFrame({"layer": 1, "reason": reasons, "reason_code": codes})
    cells = cells.assign(n_unique=[9, 9, 9, 9, 2, 1], n_vectors=9)
    assert counted_reasons(cells) == (
        "2 cells: NaN in the states; 1 cell: KeyError: a; 1 cell: KeyError: b; 1 cell: few; "
        "1 cell: all 9 vectors are equal"
    )
