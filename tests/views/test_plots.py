"""Plots for notebooks hold the stored values."""

import math
from base64 import b64decode
from io import BytesIO

import numpy as np
import plotly.graph_objects as go
import pytest
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from small import HandWritten
from synthetic_runs import fill, make_published

import repdyn
from repdyn.views.plots import compare, heatmap, means, profile

STEPS = (0, 8, 64)


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "one", make_published("lab/a-70m", steps=STEPS))


@pytest.fixture
def both(tmp_path):
    return fill(
        tmp_path / "two",
        make_published("lab/a-70m", steps=STEPS),
        make_published("lab/b-1b", steps=(0, 8)),
    )


def values(store, metric, step=None):
    rows = store.to_pandas().query("metric == @metric and subset == 'all' and layer.notna()")
    grid = rows.pivot(index="layer", columns="step", values="value")
    return grid.to_numpy() if step is None else grid[step].to_numpy()


def test_a_heatmap_shows_the_stored_values(store):
    figure = heatmap(store, "two_nn")
    assert isinstance(figure, go.Figure)
    np.testing.assert_array_equal(np.asarray(figure.data[0].z, float), values(store, "two_nn"))
    assert figure.layout.title.text.startswith("Intrinsic dimension (TwoNN), all tokens<br>")
    assert figure == heatmap(str(store.path), "two_nn")


def test_stores_that_are_no_list_are_named(store, both):
    """The error asked for a metric and printed a store."""
    with pytest.raises(TypeError, match="list"):
        compare(store, both, "two_nn")


def test_the_averaged_weights_of_a_run_are_shown_only_by_name(tmp_path):
    averaged = [
        row.with_columns(run="mine (averaged)", value=1.0)
        for row in make_published("mine", steps=STEPS)
    ]
    both = fill(tmp_path, make_published("mine", steps=STEPS), averaged)
    shown = heatmap(both, "two_nn")
    by_name = heatmap(both, "two_nn", run="mine (averaged)")
    assert set(np.ravel(shown.data[0].z)) != {1.0}
    assert set(np.ravel(by_name.data[0].z)) == {1.0}


def test_a_band_has_a_gap_where_a_layer_has_no_value(tmp_path):
    rows = [
        row.with_columns(value=math.nan) if row.layer == 2 else row
        for row in make_published("lab/a", steps=STEPS)
    ]
    band = profile(fill(tmp_path, rows), "two_nn").data[-2]
    x = np.asarray(band.x)
    assert [
        part.tolist() for part in np.split(x[~np.isnan(x)], np.flatnonzero(np.isnan(x))[:1])
    ] == [
        [0, 1, 1, 0],
        [3, 4, 5, 6, 6, 5, 4, 3],
    ]


@pytest.mark.parametrize("step", STEPS)
def test_a_profile_at_a_step(store, step):
    figure = profile(store, "two_nn", step=step)
    np.testing.assert_array_equal(
        np.asarray(figure.data[-1].customdata, float), values(store, "two_nn", step)
    )
    assert f"all tokens, step {step}<br>" in figure.layout.title.text
    assert not figure.layout.sliders


def test_a_profile_with_a_slider(store):
    figure = profile(store, "anisotropy")
    assert (
        figure.to_json() == profile(store, "anisotropy").to_json()
    )  # arrays with NaN are not equal
    assert [stop.label for stop in figure.layout.sliders[0].steps] == ["0", "8", "64"]
    assert figure.layout.margin.b > 60


def test_means_during_training(store):
    figure = means(store, "two_nn")
    assert figure.to_json() == means(store, "two_nn").to_json()
    of_blocks = values(store, "two_nn")[1:]
    np.testing.assert_allclose(
        np.asarray(figure.data[-1].customdata, float), of_blocks.mean(axis=0)
    )


def test_runs_are_compared_over_depth_and_training(both):
    figure = compare(both, "two_nn")
    shown = {trace.name: trace for trace in figure.data if trace.showlegend}
    assert list(shown) == ["a-70m", "b-1b"]
    np.testing.assert_array_equal(
        np.asarray(shown["a-70m"].customdata, float),
        values_of(both, "lab/a-70m", "two_nn", STEPS[-1]),
    )
    figure = compare(both, "two_nn", over="training", runs=["lab/a-70m"])
    (line,) = [trace for trace in figure.data if trace.showlegend]
    assert figure.layout.xaxis.type == "log"
    assert len(line.x) == len(STEPS)
    assert min(line.x) > 0


def values_of(store, run, metric, step):
    rows = store.to_pandas(run).query(
        "metric == @metric and subset == 'all' and step == @step and layer.notna()"
    )
    return rows.sort_values("layer")["value"].to_numpy()


def test_stores_are_compared(store, tmp_path):
    other = fill(tmp_path / "other", make_published("lab/b-1b", steps=(0, 8), n_vectors=512))
    figure = compare([store, other], "two_nn", over="training")
    assert [trace.name for trace in figure.data if trace.showlegend] == ["a-70m", "b-1b"]
    assert "not comparable: batches of different numbers of vectors" in figure.layout.title.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected one run, got 2: a-70m, b-1b; choose with run=, probe= or stack="),
        ({"run": "lab/c"}, "expected a run of .*, got 'lab/c'"),
        (
            {"run": "lab/a-70m", "stack": "encoder"},
            "got stack='encoder'; it has a single one without a name",
        ),
        ({"run": "lab/a-70m", "probe": "f"}, "expected the beginning of one probe's hash, got 'f'"),
        (
            {"run": "lab/a-70m", "step": 9},
            "at which two_nn was measured, got 9; the closest are 0, 8, 64",
        ),
        ({"run": "lab/a-70m", "subset": "rare"}, r"got two_nn \(rare\); there are"),
    ],
    ids=str,
)
def test_what_is_not_there(both, arguments, message):
    with pytest.raises(ValueError, match=message):
        profile(both, "two_nn", **arguments)


def test_what_cannot_be_compared(both, tmp_path):
    with pytest.raises(ValueError, match="expected over='depth' or over='training', got 'layers'"):
        compare(both, "two_nn", over="layers")
    with pytest.raises(ValueError, match=r"got cka \(all\); there are .*two_nn \(all\)"):
        compare(both, "cka")
    single = fill(tmp_path / "single", make_published("lab/a", steps=(8,)))
    with pytest.raises(ValueError, match="at least two checkpoints, got none; use over='depth'"):
        compare(single, "two_nn", over="training")


def test_a_cell_that_ends_with_a_profile_or_a_store_shows_a_picture(
    store, both, tmp_path, small_probe
):
    """Also finds a store without a measurement whose cell shows a traceback."""
    shell = InteractiveShell.instance()
    try:
        repdyn._show_in_notebooks()
        finished = fill(tmp_path / "finished", make_published("lab/a-70m", steps=(0,)))
        for each in (store, both, finished, repdyn.measure(HandWritten(), small_probe)):
            shown, _ = shell.display_formatter.format(each)
            image = Image.open(BytesIO(shown["image/png"]))
            assert len(image.convert("L").getcolors()) > 20, "a picture of nothing"
        assert [*shell.display_formatter.format(repdyn.open_store(tmp_path / "empty"))[0]] == [
            "text/plain"
        ]
    finally:
        InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    "draw",
    [
        lambda store, both: heatmap(store, "two_nn"),
        lambda store, both: profile(store, "two_nn"),
        lambda store, both: profile(store, "anisotropy", step=8),
        lambda store, both: means(store, "anisotropy"),
        lambda store, both: compare(both, "two_nn"),
        lambda store, both: compare(both, "two_nn", over="training"),
    ],
    ids=["heatmap", "profile", "step", "means", "depth", "training"],
)
def test_a_plot_has_a_picture_for_readers_without_javascript(store, both, draw, monkeypatch):
    """In the HTML that nbconvert makes of a notebook the cell was empty."""
    figure = draw(store, both)
    shell = InteractiveShell.instance()
    monkeypatch.setattr("plotly.io.renderers.default", "plotly_mimetype")
    shown = []

    def display(bundle, raw):
        shown.append(bundle)

    monkeypatch.setattr("IPython.display.display", display)
    try:
        shell.display_formatter.format(figure)
    finally:
        InteractiveShell.clear_instance()
    (bundle,) = shown
    assert {"application/vnd.plotly.v1+json", "image/png"} <= set(bundle)
    image = Image.open(BytesIO(b64decode(bundle["image/png"])))
    assert len(image.convert("L").getcolors()) > 20, "a picture of nothing"


def test_a_profile_of_a_step_is_drawn_at_that_step(store):
    """The picture would show others as well, or the last one."""
    figure = profile(store, "anisotropy", step=8)
    (axes,) = figure._drawing().axes
    drawn = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) > 2]
    assert len(drawn) == 1
    np.testing.assert_array_equal(drawn[0], values(store, "anisotropy", 8))


def test_the_picture_of_seeds_has_one_panel(tmp_path):
    """A group of seeds was narrowed without its members, and drew every subset of theirs."""
    seeds = [
        [row.with_columns(probe="0" * 16) for row in make_published(f"lab/a-seed{n}", steps=STEPS)]
        for n in (1, 2)
    ]
    figure = compare(fill(tmp_path, *seeds), "two_nn", seeds=["lab/a-seed*"])
    assert len(figure._drawing().axes) == 1
