import math

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure
from PIL import Image
from synthetic_families import make_run_of_everything
from synthetic_runs import DENSE, NO_DESIGN, SAMPLED, make_rows, make_scalar, to_frame

from repdyn.figures.files import save
from repdyn.figures.run import MAX_STEPS, all_figures, heatmap, mean_over_layers, profile_over_depth
from repdyn.tables.frames import by_stack, layer_mean, measurements
from repdyn.utils.attempts import attempts

pytestmark = pytest.mark.slow
NAN = math.nan
PYTHIA = (0, *(2**power for power in range(10)), *range(1000, 143001, 1000))


def panels(figure):
    """The axes without colour bars and twins."""
    return [axes for axes in figure.axes if axes.get_subplotspec() is not None and axes.get_label() != "<colorbar>"]


def legend_of(axes):
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_profile_draws_selected_steps_with_their_values(run):
    frame = run(n_blocks=4, steps=PYTHIA)
    figure = profile_over_depth(frame, "anisotropy")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "all tokens",
        "without first positions and special tokens",
    ]
    for axes, subset in zip(figure.axes, ("all", "no_sink"), strict=True):
        labels = [line.get_label() for line in axes.lines]
        assert labels[0] == "0"
        assert labels[-1] == "143,000"
        assert MAX_STEPS - 1 <= len(labels) <= MAX_STEPS
        at_last = frame.query(f"metric == 'anisotropy' and subset == '{subset}' and step == 143000")
        np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [0, 1, 2, 3, 4])
        np.testing.assert_array_equal(axes.lines[-1].get_ydata(), at_last["value"])
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "step"
    assert legend.get_texts()[0].get_text() == "143,000"


def test_profile_band_is_the_interval(run):
    frame = run(n_blocks=1, steps=(0,), anisotropy=lambda step, depth: 0.2 + 0.2 * depth, noise=0.5)
    axes = profile_over_depth(frame, "anisotropy").axes[0]
    (band,) = [artist for artist in axes.collections if isinstance(artist, FillBetweenPolyCollection)]
    corners = {(x, round(y, 9)) for x, y in np.asarray(band.get_paths()[0].vertices, float).tolist()}
    ends = frame.query("metric == 'anisotropy' and subset == 'all'")[["layer", "low", "high"]].to_numpy(float)
    assert corners == {(layer, round(end, 9)) for layer, *both in ends for end in both}
    assert ends[0, 2] - ends[0, 1] == pytest.approx(2 * 2.3646243 * np.sqrt(2 / 8) * 0.1)


def test_profile_leaves_gaps_and_says_when_it_is_empty(run):
    frame = run(
        anisotropy=lambda step, depth: NAN if depth == 0.5 else 0.3, no_sink=lambda step, depth: NAN, steps=(0, 4)
    )
    gap, empty = profile_over_depth(frame, "anisotropy").axes
    assert np.isnan(gap.lines[0].get_ydata()).tolist() == [False] * 3 + [True] + [False] * 3
    assert not gap.texts
    assert [text.get_text() for text in empty.texts] == ["no value at any layer or step"]


@pytest.mark.parametrize("steps", [(0,), (512,), (0, 1, 512)], ids=str)
def test_share_of_variance_starts_at_zero_and_nothing_is_cut_off(run, steps):
    for axes in profile_over_depth(run(steps=steps, noise=0.2), "anisotropy").axes:
        low, high = axes.get_ylim()
        assert low == 0
        assert high > axes.dataLim.ymax


def test_mean_over_layers_with_loss(run):
    frame = run(n_blocks=2, steps=(0, 8, 64), dimension=lambda step, depth: 10 + depth + step)
    figure = mean_over_layers(frame)
    dimension, anisotropy = panels(figure)[:2]
    np.testing.assert_array_equal(dimension.lines[0].get_xdata(), [0, 8, 64])
    np.testing.assert_allclose(np.asarray(dimension.lines[0].get_ydata(), float), [10.5, 18.5, 74.5])
    assert dimension.get_title(loc="left") == "Intrinsic dimension (TwoNN), all tokens (3 layers)"
    assert dimension.get_ylabel() == "dimension"
    assert anisotropy.get_xscale() == "symlog"
    assert anisotropy.get_xlim()[0] < 0, "step 0 shows"
    assert legend_of(anisotropy) == [
        "all tokens (3 layers)",
        "without first positions and special tokens (3 layers)",
    ]
    (twin,) = [axes for axes in figure.axes if axes.get_ylabel() == "train/loss (dashed)"]
    np.testing.assert_array_equal(twin.lines[0].get_ydata(), frame[frame["metric"] == "train/loss"]["value"])


def test_mean_over_layers_with_the_loss_on_the_probe():
    on_probe = [make_scalar(step, 10.0 - step, "probe/loss") for step in (0, 8)]
    frame = to_frame([*make_rows(n_blocks=2, steps=(0, 8)), *on_probe])
    (twin,) = [axes for axes in mean_over_layers(frame).axes if "loss" in axes.get_ylabel()]
    assert twin.get_ylabel() == "probe/loss (dashed)"
    np.testing.assert_array_equal(twin.lines[0].get_ydata(), [10.0, 2.0])
    (chosen,) = [axes for axes in mean_over_layers(frame, loss="train/loss").axes if "loss" in axes.get_ylabel()]
    assert chosen.get_ylabel() == "train/loss (dashed)"


def test_mean_over_layers_without_loss_and_with_missing_values(run):
    frame = run(loss=False, dimension=lambda step, depth: NAN if depth == 0 else 10.0, no_sink=lambda step, depth: NAN)
    figure = mean_over_layers(frame)
    dimension, anisotropy = figure.axes
    assert dimension.get_title(loc="left") == "Intrinsic dimension (TwoNN), all tokens (6 of 7 layers)"
    assert legend_of(anisotropy)[1] == "without first positions and special tokens (no value)"
    assert not anisotropy.texts


def above_of(figure):
    (above,) = [axes for axes in figure.axes if axes.get_xlabel() == "training tokens"]
    return above


def test_tokens_stand_above_the_steps(run):
    frame = run(steps=(0, 1, 10, 100))
    frame["tokens_seen"] = (frame["step"] * 4096).astype("Int64")
    figure = mean_over_layers(frame)
    above, below = above_of(figure), panels(figure)[1]
    assert [tick.get_text() for tick in above.get_xticklabels()] == ["0", "10k", "100k", "410k"]
    places = above.get_xticks()
    np.testing.assert_allclose(places, [0, 10_000 / 4096, 100_000 / 4096, 100])
    # at the same place as the step that has as many tokens
    figure.draw_without_rendering()
    at = [axes.transData.transform([(place, 0) for place in places])[:, 0] for axes in (above, below)]
    np.testing.assert_allclose(*at)


@pytest.mark.parametrize("missing", ["one", "all", "falling"])
def test_tokens_are_left_out_where_they_are_not_known_or_fall(run, missing):
    frame = run(steps=(0, 10, 100))
    frame["tokens_seen"] = (frame["step"] * 4096).astype("Int64")
    frame.loc[frame["step"] == 10, "tokens_seen"] = 10**9 if missing == "falling" else None
    frame = frame.assign(tokens_seen=None) if missing == "all" else frame
    assert "training tokens" not in [axes.get_xlabel() for axes in mean_over_layers(frame).axes]


def test_a_step_axis_without_step_zero(run):
    axes = panels(mean_over_layers(run(steps=(1000, 20_000))))[1]
    assert axes.get_xlabel() == "step (logarithmic)"
    assert 0 < axes.get_xlim()[0] < 1000


def test_a_finished_model_has_profiles_alone(run):
    frame = run(steps=(0,), stage="finished", causal=False)
    figures = all_figures(frame)
    assert list(figures) == ["profile_anisotropy", "profile_two_nn"]
    for figure in figures.values():
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["finished"]
        assert legend.get_title().get_text() == ""


@pytest.mark.parametrize("draw", [mean_over_layers, lambda f: heatmap(f, "two_nn", "all")], ids=["mean", "heatmap"])
def test_a_finished_model_has_no_steps(run, draw):
    expected = (
        "expected checkpoints of a training, got the finished model 'lab/bert', which has no steps; "
        "draw its profile_over_depth"
    )
    with pytest.raises(ValueError, match=f"^{expected}$"):
        draw(run(steps=(0,), stage="finished", run="lab/bert"))


def test_mean_over_layers_of_unmeasured_metrics_is_an_error(run):
    with pytest.raises(ValueError, match="^expected one of the metrics rank, got rows of anisotropy, two_nn; name one"):
        mean_over_layers(run(steps=(0,)), ["rank"])


def test_heatmap_shows_every_cell(run):
    steps = (0, 1, 100)
    frame = run(n_blocks=3, steps=steps, dimension=lambda step, depth: NAN if step == depth == 0 else step + depth)
    figure = heatmap(frame, "two_nn", "all")
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells is not None
    assert cells.shape == (4, 3)
    np.testing.assert_array_equal(np.ma.getmaskarray(cells), [[True, False, False], *[[False] * 3] * 3])
    assert cells[3, 2] == 101
    assert axes.images[0].origin == "lower"
    assert axes.patch.get_hatch()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "100"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2", "3"]
    assert figure.get_suptitle().splitlines()[0].endswith("all tokens; hatched: none that compares")
    assert figure.axes[1].get_ylabel() == "dimension"


def test_heatmap_of_many_steps_takes_log_spaced_ones(run):
    frame = run(n_blocks=2, steps=PYTHIA)
    axes = heatmap(frame, "anisotropy", "all").axes[0]
    cells = axes.images[0].get_array()
    assert cells is not None
    assert cells.shape == (3, 29)
    assert axes.get_xlabel() == "step (29 of 154 measured, log-spaced)"
    assert axes.images[0].get_clim() == (0, pytest.approx(0.6, abs=0.01))


def test_heatmap_without_any_value(run):
    figure = heatmap(run(steps=(0, 1), no_sink=lambda step, depth: NAN), "anisotropy", "no_sink")
    figure.draw_without_rendering()
    assert figure.axes[0].images[0].get_clim() == (0, 1)


def caption(figure):
    return " ".join(figure.get_suptitle().split())


def test_titles_state_run_model_and_sampling(run):
    expected = f"my run, MyModel, {SAMPLED}".replace("4,096", "5,000")
    for name, figure in all_figures(run(steps=(0, 4), run="my run", model="MyModel", n_vectors=5000)).items():
        assert expected in caption(figure), name
        neighbours = "anisotropy" not in name
        assert caption(figure).count("own window's neighbours left out") == neighbours, name


@pytest.mark.parametrize(
    ("given", "told", "sampled"),
    [
        ({}, "band: 95 % interval over probes", SAMPLED),
        (
            DENSE,
            "no interval: batches share windows",
            "dense design: 8 batches of 4,096 vectors, up to 76 of each of 80",
        ),
        (NO_DESIGN, "no interval: batches share windows", "8 batches of 4,096 vectors, sampling design not recorded"),
    ],
    ids=["disjoint", "pooled", "old"],
)
def test_bands_are_intervals_or_said_to_be_missing(run, given, told, sampled):
    frame = run(steps=(0, 8), n_blocks=2, noise=0.1, **given)
    means = layer_mean(measurements(frame), "two_nn", "all")
    for figure in (profile_over_depth(frame, "two_nn"), mean_over_layers(frame, ("two_nn",))):
        assert told in caption(figure)
        assert sampled in caption(figure)
        bands = [band.get_paths() for band in figure.axes[0].collections]
        assert all(bool(paths) == (not given) for paths in bands)
    if not given:
        (band,) = figure.axes[0].collections
        np.testing.assert_allclose(band.get_paths()[0].vertices[:, 1].min(), (means.mean - means.margin).min())


GEOMETRY = [
    "profile_anisotropy",
    "profile_two_nn",
    "mean_over_layers",
    "heatmap_anisotropy_all",
    "heatmap_anisotropy_no_sink",
    "heatmap_two_nn_all",
]
FAMILIES = ("dimension", "spectrum", "similarity", "sinks", "convergence", "evolution", "change", "tokens", "topics")


@pytest.fixture
def names_of(monkeypatch):
    """The names of all figures, none of which is drawn."""
    drawn = ("profile_over_depth", "mean_over_layers", "heatmap", "heads_heatmap", "scales", "convergence")
    for name in (*drawn, "depth_overview", "steps_overview"):
        monkeypatch.setattr(f"repdyn.figures.run.{name}", lambda *_, **__: Figure())
    return lambda frame: list(all_figures(frame))


def test_every_family_beyond_geometry_has_overviews(names_of):
    found = names_of(make_run_of_everything(n_blocks=2, steps=(0, 8), n_heads=2))
    assert found[:6] == GEOMETRY
    overviews = {f"{kind}_{family}" for family in FAMILIES for kind in ("depth", "steps")}
    alone = {"scales", "convergence", "heads_attention_topic_gap", "heads_sink_rate"}
    change = {f"heatmap_{metric}_previous_all" for metric in ("cka", "mutual_knn", "procrustes")}
    assert set(found[6:]) == overviews | alone | change
    assert [name.removeprefix("depth_") for name in found if name.startswith("depth_")] == list(FAMILIES)


def test_everything_of_a_finished_model(names_of):
    frame = make_run_of_everything(n_blocks=2, steps=(0,), n_heads=2, stage="finished", loss=False)
    overviews = {f"depth_{family}" for family in FAMILIES if family != "change"}
    alone = {"scales", "convergence", "heads_attention_topic_gap", "heads_sink_rate"}
    assert set(names_of(frame)) == {*GEOMETRY[:2], *overviews, *alone}


def test_the_users_own_metrics_are_drawn_like_geometry(names_of, run):
    frame = run(steps=(0, 8))
    own = frame[frame["metric"] == "two_nn"].assign(metric="mine")
    assert set(names_of(pd.concat([frame, own]))) == {*GEOMETRY, "profile_mine", "heatmap_mine_all"}


def test_without_geometry_there_are_no_means_over_layers(names_of):
    frame = make_run_of_everything(n_blocks=2, steps=(0, 8), metrics=("norm", "gride_2"))
    assert names_of(frame) == ["depth_dimension", "steps_dimension", "depth_evolution", "steps_evolution"]


def test_a_family_without_a_value_has_no_figure(names_of):
    frame = make_run_of_everything(n_blocks=2, steps=(0, 8), metrics=("norm", "alignment_gradient"))
    frame.loc[frame["metric"] == "alignment_gradient", "value"] = NAN
    assert names_of(frame) == ["depth_evolution", "steps_evolution"]


def test_a_run_of_everything_can_be_drawn_and_any_metric_alone():
    frame = make_run_of_everything(n_blocks=2, steps=(0, 8), n_heads=2)
    assert len(all_figures(frame)) == 31
    profile = profile_over_depth(frame, "step_length").axes[0]
    np.testing.assert_array_equal(profile.lines[-1].get_xdata(), [0.5, 1.5])
    assert profile.get_xlabel() == "layer (0 = embedding output, each to the next)"
    assert heatmap(frame, "token_rank", "rare").axes[1].get_ylabel() == "input embeddings closer"
    assert len(mean_over_layers(frame, ["norm", "token_rank"]).axes) == 3, "two panels and the loss"


def test_many_subsets_stand_in_rows_of_three(run):
    frame = run(steps=(0,))
    more = [frame[frame["metric"] == "two_nn"].assign(subset=name) for name in ("a", "b", "c")]
    figure = profile_over_depth(pd.concat([frame, *more]), "two_nn")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["all tokens", "a", "b", "c"]
    assert figure.get_size_inches().tolist() == pytest.approx([3 * 4.6 + 1.4, 8.6])
    assert [axes.get_ylabel() for axes in figure.axes] == ["dimension", "", "", "dimension"]


def test_long_titles_are_wrapped(run):
    title = heatmap(run(steps=(0,), run="a rather long name " * 6), "anisotropy", "all").get_suptitle()
    assert len(title.splitlines()) > 2
    assert max(map(len, title.splitlines())) <= 86


@pytest.mark.extended
def test_files_and_determinism(run, tmp_path):
    frame = run(n_blocks=2, steps=(0, 8))
    written = save(all_figures(frame), tmp_path / "new" / "folder")
    names = ["profile_anisotropy", "profile_two_nn", "mean_over_layers"]
    names += ["heatmap_anisotropy_all", "heatmap_anisotropy_no_sink", "heatmap_two_nn_all"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    with Image.open(tmp_path / "new" / "folder" / "heatmap_two_nn_all.png") as picture:
        assert picture.size == (1080, 645)  # 7.2 x 4.3 inches at 150 dpi
    again = save(all_figures(frame.sample(frac=1, random_state=0)), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_the_users_style_neither_matters_nor_changes(run, tmp_path):
    frame = run(n_blocks=2, steps=(0, 8)).query("metric == 'two_nn'")
    (plain, *_) = save(all_figures(frame), tmp_path / "plain")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "figure.dpi": 50}):
        before = dict(matplotlib.rcParams)
        (styled, *_) = save(all_figures(frame), tmp_path / "styled")
        assert dict(matplotlib.rcParams) == before
    assert styled.read_bytes() == plain.read_bytes()
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(
    "draw",
    [lambda f: profile_over_depth(f, "two_nn"), mean_over_layers, lambda f: heatmap(f, "two_nn", "all"), all_figures],
    ids=["profile", "mean", "heatmap", "all"],
)
def test_two_runs_are_an_error(run, draw):
    frame = pd.concat([run(steps=(0,), run="a"), run(steps=(0,), run="b")])
    with pytest.raises(ValueError, match="^expected the rows of one run, got 2: 'a', 'b'; select one"):
        draw(frame)


def test_every_picture_of_a_stack_says_first_which_it_is(two_stacks, frame_of):
    frame = frame_of(two_stacks(steps=(0, 8)))
    drawn = {stack: all_figures(rows) for stack, rows in by_stack(frame).items()}
    assert list(drawn["encoder"]) == list(drawn["decoder"])
    for stack, figures in drawn.items():
        for figure in figures.values():
            assert figure.get_suptitle().startswith(f"{stack}: ")
            assert "lab/t5, T5ForConditionalGeneration" in figure.get_suptitle()
    first, second = (figures["mean_over_layers"] for figures in drawn.values())
    assert panels(first)[0].get_title(loc="left").endswith("(5 layers)")
    assert panels(second)[0].get_title(loc="left").endswith("(7 layers)")
    for figure in (first, second):
        (twin,) = [axes for axes in figure.axes if axes.get_ylabel() == "train/loss (dashed)"]
        np.testing.assert_array_equal(np.asarray(twin.lines[0].get_xdata()), [0, 8])


def test_two_stacks_are_not_drawn_as_one(two_stacks, frame_of):
    with pytest.raises(ValueError, match="^expected the rows of one stack of blocks, got 2: 'encoder', 'decoder'"):
        all_figures(frame_of(two_stacks()))


def test_a_figure_that_cannot_be_drawn_keeps_none_of_the_others_from_its_file(run, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no mean today")

    monkeypatch.setattr("repdyn.figures.run.mean_over_layers", broken)
    with pytest.raises(RuntimeError, match="^no mean today$"), attempts() as attempt:
        save(all_figures(run(n_blocks=2, steps=(0, 8)), attempt), tmp_path, attempt)
    names = {path.stem for path in tmp_path.glob("*.png")}
    assert names == {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {
        "profile_anisotropy",
        "profile_two_nn",
        "heatmap_anisotropy_all",
        "heatmap_anisotropy_no_sink",
        "heatmap_two_nn_all",
    }
