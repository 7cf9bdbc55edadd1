"""x"""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image
from synthetic_families import make_run_of_everything
from synthetic_runs import DENSE, NO_DESIGN, SAMPLED

from repdyn.figures.files import save
from repdyn.figures.run import all_figures, heatmap, mean_over_layers, profile_over_depth
from repdyn.tables.frames import by_stack, layer_mean, measurements
from repdyn.utils.attempts import attempts

pytestmark = pytest.mark.slow


def panels(figure):
    """The axes without colour bars and twins."""
    return [axes for axes in figure.axes if axes.get_subplotspec() is not None and axes.get_label() != "<colorbar>"]


def caption(figure):
    return " ".join(figure.get_suptitle().split())


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


def test_a_run_of_everything_can_be_drawn_and_any_metric_alone():
    frame = make_run_of_everything(n_blocks=2, steps=(0, 8), n_heads=2)
    assert len(all_figures(frame)) == 31
    profile = profile_over_depth(frame, "step_length").axes[0]
    np.testing.assert_array_equal(profile.lines[-1].get_xdata(), [0.5, 1.5])
    assert profile.get_xlabel() == "layer (0 = embedding output, each to the next)"
    assert heatmap(frame, "token_rank", "rare").axes[1].get_ylabel() == "input embeddings closer"
    assert len(mean_over_layers(frame, ["norm", "token_rank"]).axes) == 3, "two panels and the loss"


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
