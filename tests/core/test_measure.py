"""measure: one row for each layer, metric and subset, its numbers those of the kernels."""

import math
import pickle
import sys
import weakref
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from hub_fixtures import SIZES
from small import HandWritten, random_tokens
from torch import nn

from repdyn import Probe, kernels, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.measurement.options import MeasurementOptions
from repdyn.metrics import METRICS, LayerView, Metric, resolve
from repdyn.metrics.inputs import clouds
from repdyn.models import build_model
from repdyn.store.schema import COLUMNS, Checkpoint
from repdyn.utils.intervals import interval_within

LAYER_BYTES = 192 * 16 * 4
"""States of one layer of ``hand_written`` at the tokens that ``small_probe`` samples for one
subset.
"""


def ends_about(row, half):
    """Return the ends of an interval that would be symmetric without the range of the metric."""
    return [float(end) for end in interval_within(row.value, half, METRICS[row.metric].range)]


def test_values_are_the_kernels_on_the_sampled_states(hand_written, small_probe):
    frame = measure(hand_written, small_probe).to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    subsets = ["all", "no_sink", "distinct_inputs"]
    states = capture(
        replace(prepare(hand_written, small_probe), causal={None: True}), small_probe, subsets
    )
    for row in frame.itertuples():
        layer = states.layers[row.layer].states
        sample = small_probe.sample(row.subset)
        batches = [layer[states.rows_of(tokens)].clone() for tokens in sample]
        groups = [torch.from_numpy(small_probe.window_of_token[tokens]) for tokens in sample]
        if row.metric == "anisotropy":
            values = [kernels.anisotropy(batch).item() for batch in batches]
        else:
            values = [
                kernels.two_nn(kernels.Cloud(x, groups=of)).item()
                for x, of in zip(batches, groups, strict=True)
            ]
        assert row.value == np.mean(values)
        assert row.std == np.std(values, ddof=1)
        assert row.std_error == row.std / math.sqrt(2)
        # Student's t of one degree of freedom
        ends = ends_about(row, 12.7062 * row.std)
        assert (row.low, row.high) == pytest.approx(ends, rel=1e-4, abs=1e-6)
        assert row.design == "independent"
        assert row.n_windows == 12
        assert row.vectors_per_window == 8
        assert row.window_tokens == 12
        assert row.n_unique == min(len(torch.unique(batch, dim=0)) for batch in batches)
        assert row.n_batches == 2
        assert row.n_vectors == 96
        assert row.dim == 16
        assert row.dtype == "float32"


def test_the_interval_of_one_cloud_is_for_other_windows(hand_written):
    """One for the mean of the same windows is narrower by the root of 2."""
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192)
    frame = measure(hand_written, probe, ["anisotropy"]).to_pandas()
    assert set(frame["n_windows"]) == {24}
    half = 2.0686576 * math.sqrt(2) * frame["std_error"]  # Student's t of 23 degrees of freedom
    for end, expected in zip(
        ("low", "high"), interval_within(frame["value"], half, (0.0, 1.0)), strict=True
    ):
        np.testing.assert_allclose(frame[end], expected, rtol=1e-6)


def test_default_rows(hand_written, small_probe):
    frame = measure(
        hand_written, small_probe, checkpoint=Checkpoint(run="r", step=7, tokens_seen=70)
    ).to_pandas()
    expected = {
        (m, s, layer)
        for m, s in [
            ("anisotropy", "all"),
            ("anisotropy", "no_sink"),
            ("two_nn", "all"),
            ("two_nn", "distinct_inputs"),
        ]
        for layer in range(4)
    }
    assert set(frame[["metric", "subset", "layer"]].itertuples(index=False, name=None)) == expected
    assert len(frame) == len(expected)
    assert set(frame["model"]) == {"HandWritten"}
    assert set(frame["causal"]) == {True}
    assert set(frame[["run", "step", "tokens_seen"]].itertuples(index=False, name=None)) == {
        ("r", 7, 70)
    }
    assert set(frame["probe"]) == {small_probe.hash}
    assert set(frame["torch_version"]) == {version("torch")}
    assert frame.loc[frame.metric == "two_nn", "settings"].unique().tolist() == [
        '{"discard": 0.1, "duplicates": "collapse", "estimator": "regression"}'
    ]


def test_twice_the_same(hand_written, small_probe):
    first, second = (measure(hand_written, small_probe).to_pandas() for _ in range(2))
    assert first["value"].equals(second["value"])


def test_undefined_has_a_reason(small_probe):
    model = HandWritten()
    nn.init.zeros_(model.token.weight)
    nn.init.zeros_(model.position.weight)
    frame = measure(model, small_probe).to_pandas()
    embedded = frame.query("layer == 0")
    assert embedded["value"].isna().all()
    assert set(embedded["reason"]) == {"batch 0: 1 distinct of 96 points, at least 3 needed"}
    assert set(embedded["n_unique"]) == {1}
    nn.init.constant_(model.blocks[1].norm.weight, math.nan)
    frame = measure(model, small_probe).to_pandas()
    assert frame.loc[frame.layer == 3, "reason"].unique().tolist() == [
        "batch 0: the points contain NaN"
    ]
    assert frame["causal"].isna().all()


def test_nothing_is_computed_after_the_first_undefined_batch(hand_written, small_probe):
    """One batch without a value leaves the layer without one, whatever the others would give."""
    calls = []

    def kernel(cloud):
        calls.append(cloud)
        raise kernels.UndefinedError("no value")

    frame = measure(
        hand_written,
        small_probe,
        [
            Metric(
                name="none", kernel=kernel, meaning="never defined", range=(0, 1), source="nobody"
            )
        ],
    ).to_pandas()
    assert set(frame["reason"]) == {"batch 0: no value"}
    assert frame["n_batches"].tolist() == [small_probe.n_batches] * 4
    assert len(calls) == 4


def test_a_failing_kernel_is_raised_or_recorded(hand_written, small_probe):
    def kernel(cloud):
        raise RuntimeError("out of memory")

    broken = Metric(
        name="broken", kernel=kernel, meaning="always fails", range=(0, 1), source="nobody"
    )
    with pytest.raises(RuntimeError, match="out of memory"):
        measure(hand_written, small_probe, [broken])
    frame = measure(hand_written, small_probe, [broken, "two_nn"], on_error="record").to_pandas()
    assert set(frame.loc[frame.metric == "broken", "reason"]) == {"RuntimeError: out of memory"}
    assert frame.loc[frame.metric == "two_nn", "value"].notna().all()


def test_settings_reach_the_kernel_and_the_row(hand_written, small_probe):
    frame = measure(hand_written, small_probe, ["two_nn[discard=0.8]", "two_nn"]).to_pandas()
    by_settings = frame.groupby("settings")["value"].mean()
    assert len(by_settings) == 2
    assert by_settings.iloc[0] != by_settings.iloc[1]


@pytest.mark.parametrize(
    "states_bytes", [0, 2 * LAYER_BYTES], ids=["all in files", "first in memory"]
)
def test_values_do_not_depend_on_where_the_states_wait(hand_written, small_probe, states_bytes):
    expected = measure(hand_written, small_probe).to_pandas()
    spilled = measure(hand_written, small_probe, states_bytes=states_bytes).to_pandas()
    times = ["seconds", "measured_at"]
    pd.testing.assert_frame_equal(
        spilled.drop(columns=times), expected.drop(columns=times), check_exact=True
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("states_bytes", "files"), [(0, [4, 3, 2, 1]), (2 * LAYER_BYTES, [2, 2, 2, 1])]
)
def test_a_layer_is_let_go_when_it_is_measured(
    hand_written, small_probe, tmp_path, monkeypatch, states_bytes, files
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_files = []
    alive = []
    measured = []

    def watch(view, subset):
        in_files.append(Path("/proc/self/maps").read_text().count(f"{tmp_path}/"))
        alive.append(sum(states() is not None for states in measured))
        measured.extend(
            map(weakref.ref, [view.layer.states, *(cloud.x for cloud in view.clouds(subset))])
        )
        assert not list(tmp_path.iterdir())  # without a name, a file goes with the process
        return clouds(view, subset)

    measure(
        hand_written,
        small_probe,
        [replace(METRICS["two_nn"], select_inputs=watch, subsets=("all",))],
        states_bytes=states_bytes,
    )
    assert in_files == files
    assert alive == [0, 0, 0, 0]
    assert not any(states() for states in measured)
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_is_left_after_an_error(hand_written, small_probe, tmp_path, monkeypatch):
    def kernel(cloud):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="out of memory"):
        measure(
            hand_written,
            small_probe,
            [
                Metric(
                    name="broken",
                    kernel=kernel,
                    meaning="always fails",
                    range=(0, 1),
                    source="nobody",
                )
            ],
            states_bytes=0,
        )
    assert not list(tmp_path.iterdir())
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


def test_batches_of_the_first_subset_are_not_copied(hand_written, small_probe):
    states = capture(prepare(hand_written, small_probe), small_probe, ["all", "no_sink"])
    view = LayerView(states.take(), states, small_probe)
    memory = view.layer.states.untyped_storage().data_ptr()
    assert [cloud.x.untyped_storage().data_ptr() for cloud in view.clouds("all")] == [
        memory,
        memory,
    ]


def test_each_token_runs_once_beside_the_few_sequences_that_tell_causality(
    hand_written, small_probe
):
    n_sequences = []

    def forward(model, batch):
        n_sequences.append(len(batch.input_ids))
        return model(batch.input_ids)

    measure(hand_written, small_probe, forward=forward, tokens_per_forward=96)
    assert n_sequences == [1, 4, 4, 8, 8, 8]  # the first one tells what the model writes to


def test_no_sink_takes_a_sink_out():
    """One far row in every sequence, at its first position: what a trained decoder does to it."""
    torch.manual_seed(0)
    model = HandWritten()
    with torch.no_grad():
        model.position.weight[0] = 300.0 * torch.randn(16)
    probe = Probe.from_tokens(random_tokens(80, 30), max_vectors=2000)
    frame = (
        measure(model, probe, ["anisotropy"]).to_pandas().set_index(["subset", "layer"])["value"]
    )
    assert frame["all"][0] > 0.99
    assert frame["no_sink"][0] < 0.4


def test_resolve():
    names = [
        (request.name, request.subset)
        for request in resolve(["two_nn", "two_nn@no_sink", "two_nn@all", "anisotropy"])
    ]
    assert names == [
        ("two_nn", "all"),
        # one of these, as the probe allows
        ("two_nn", "types"),
        ("two_nn", "distinct_inputs"),
        ("two_nn", "no_sink"),
        ("anisotropy", "all"),
        ("anisotropy", "no_sink"),
    ]


def test_an_identity_names_what_is_measured():
    def identity(*metrics, layers=None):
        return MeasurementOptions(metrics=metrics, layers=layers).identity()

    same = [
        identity("anisotropy", "two_nn"),
        identity("two_nn", "anisotropy@no_sink", "anisotropy@all"),
    ]
    assert same[0] == same[1]
    others = [
        identity("two_nn"),
        identity("anisotropy", "two_nn", layers="blocks.*"),
        identity("anisotropy", "two_nn[discard=0.8]"),
    ]
    assert len({*same, *others}) == 4


def test_a_metric_that_writes_into_its_input_changes_no_other(hand_written, small_probe):
    """Eleven of twelve values after such a metric were those of what it had left behind."""
    metrics = ["anisotropy", "two_nn", "norm", "alignment"]

    def spoil(cloud: kernels.Cloud) -> torch.Tensor:
        cloud.x.mul_(0).add_(torch.arange(len(cloud.x))[:, None])
        return kernels.two_nn(cloud)

    alone = measure(hand_written, small_probe, metrics).rows
    beside = measure(
        hand_written, small_probe, [Metric("spoil", spoil), *metrics], on_error="record"
    ).rows
    assert [row.value for row in beside if row.metric != "spoil"] == [row.value for row in alone]


def test_a_single_cloud_has_an_interval_from_its_windows_and_few_windows_have_none(hand_written):
    for row in measure(
        hand_written, many_windows(40), ["anisotropy@all", "two_nn", "norm@all"]
    ).rows:
        if row.layer == 0 and row.metric == "two_nn":
            continue  # embeddings repeat
        assert row.n_batches == 1
        assert math.isnan(row.std)
        assert row.low < row.value < row.high
        # for the value on another probe, whose error is as large; Student's t of 39 degrees of
        # freedom
        half = math.sqrt(2) * 2.0227 * row.std_error
        ends = ends_about(row, half)
        assert (row.low, row.high) == pytest.approx(ends, rel=1e-3)
    few = measure(hand_written, many_windows(9), ["anisotropy"]).rows[0]
    assert few.std_error is None
    assert few.low is None
    assert few.high is None


def many_windows(n: int) -> Probe:
    return Probe.from_tokens(random_tokens(n, 12), max_vectors=n * 4)


def test_noise_of_a_forward_is_the_same_in_every_measurement(small_probe):
    """A live value would not be that of its checkpoint."""

    class Noisy(nn.Dropout):
        def forward(self, x):
            return x + np.random.rand() * torch.randn_like(x)

    model = HandWritten()
    model.blocks[1] = nn.Sequential(model.blocks[1], Noisy())
    values = [
        [row.value for row in measure(model, small_probe, ["anisotropy"]).rows] for _ in range(2)
    ]
    assert values[0] == values[1]


def test_no_bit_of_a_value_depends_on_which_other_metrics_are_asked_for():
    """The anisotropy of more than 64 directions was read off the whole spectrum where another
    metric needed it.
    """
    torch.manual_seed(0)
    model = HandWritten(n_layers=1, dim=80)
    probe = Probe.from_tokens(random_tokens(40, 12), max_vectors=240, batch_vectors=120)
    together = measure(model, probe, ["all"])
    of_metric = {
        (row.metric, row.subset, row.settings, row.layer, row.head): row for row in together.rows
    }
    for name in dict.fromkeys(row.metric for row in together.rows):
        for row in measure(model, probe, [name]).rows:
            other = of_metric.get((row.metric, row.subset, row.settings, row.layer, row.head))
            if other is not None:
                of_both = [(each.value, each.std, each.std_error) for each in (row, other)]
                assert repr(of_both[0]) == repr(of_both[1]), name


class Classifier(nn.Module):
    """A module of one's own around a model of transformers."""

    def __init__(self, implementation):
        super().__init__()
        self.parts = nn.ModuleDict({"text": build_model("gpt_neox", **SIZES)})
        self.parts["text"].set_attn_implementation(implementation)

    def forward(self, **batch):
        return self.parts["text"](**batch)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_rows_name_the_attention_of_a_model_inside_a_module_of_ones_own(implementation):
    """A sweep with another one differs in the last bits, and no row said why."""
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192)
    rows = measure(Classifier(implementation), probe, ["anisotropy"]).rows
    assert {row.attention for row in rows} == {implementation}


def test_what_rows_say_of_a_cloud_is_found_out_once_for_a_subset(
    hand_written, small_probe, monkeypatch
):
    """Windows were counted again for every metric of a layer."""
    counted = Mock(wraps=type(small_probe).window_of)
    monkeypatch.setattr(type(small_probe), "window_of", lambda *given: counted(*given))
    calls = []
    for metrics in (["norm"], ["norm", "effective_rank", "isoscore"]):
        counted.reset_mock()
        measure(hand_written, small_probe, metrics)
        calls.append(counted.call_count)
    assert 0 < calls[1] < 2 * calls[0]


def test_a_row_is_read_by_its_columns_and_changed_by_them(hand_written, small_probe):
    """A column of the wrong part would be lost, and one that does not exist taken for None."""
    row = measure(hand_written, small_probe, ["two_nn"], checkpoint=Checkpoint(step=3)).rows[0]
    assert row.step == row.checkpoint.step == 3
    assert row.columns() == {name: row.columns()[name] for name in COLUMNS}
    changed = row.with_columns(step=4, value=1.5, head=2, subset="rare")
    parts = (changed.checkpoint.step, changed.estimate.value, changed.quantity.head)
    assert (*parts, changed.cloud.subset) == (4, 1.5, 2, "rare")
    assert changed.with_columns(**row.columns()) == row
    assert pickle.loads(pickle.dumps(row)) == row  # as ranks exchange it
    with pytest.raises(AttributeError, match="none_such"):
        row.none_such  # noqa: B018
    with pytest.raises(TypeError, match="none_such"):
        row.with_columns(none_such=1)
