"""Figures of a run as files: which there are, byte for byte the same, whatever the user's style."""

import matplotlib
import numpy as np
from matplotlib import pyplot
from PIL import Image
from synthetic_families import make_run_of_everything
from synthetic_runs import measured_runs

from repdyn.views.charts.on_matplotlib import save
from repdyn.views.figures.panes import LARGE
from repdyn.views.figures.run import all_figures, heatmap, mean_over_layers, over_depth


def test_a_run_of_everything_can_be_drawn_and_any_metric_alone():
    frame = make_run_of_everything(n_blocks=2, steps=(0, 8), n_heads=2)
    assert len(all_figures(*measured_runs(frame))) == 36
    profile = over_depth(*measured_runs(frame), ["step_length"], "Step", LARGE).axes[0]
    np.testing.assert_array_equal(profile.lines[-1].get_xdata(), [0.5, 1.5])
    assert profile.get_xlabel() == "layer (0 = embedding output, each to the next)"
    assert (
        heatmap(*measured_runs(frame), "token_rank", "rare").axes[1].get_ylabel()
        == "input embeddings closer"
    )
    assert len(mean_over_layers(*measured_runs(frame), ["norm", "two_nn"]).axes) == 4, (
        "the norm, the dimension of all vectors and of those without repeats, and the loss"
    )


def test_files_and_determinism(run, tmp_path):
    frame = run(n_blocks=2, steps=(0, 8))
    written = save(all_figures(*measured_runs(frame)), tmp_path / "new" / "folder")
    names = ["profile_anisotropy", "profile_two_nn", "mean_over_layers"]
    names += ["heatmap_anisotropy_all", "heatmap_anisotropy_no_sink", "heatmap_two_nn_all"]
    assert [path.name for path in written] == [
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    ]
    with Image.open(tmp_path / "new" / "folder" / "heatmap_two_nn_all.png") as picture:
        assert picture.size == (1080, 645)  # 7.2 x 4.3 inches at 150 dpi
    again = save(
        all_figures(*measured_runs(frame.sample(frac=1, random_state=0))), tmp_path / "again"
    )
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_the_users_style_neither_matters_nor_changes(run, tmp_path):
    frame = run(n_blocks=2, steps=(0, 8)).query("metric == 'two_nn'")
    (plain, *_) = save(all_figures(*measured_runs(frame)), tmp_path / "plain")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "figure.dpi": 50}):
        before = dict(matplotlib.rcParams)
        (styled, *_) = save(all_figures(*measured_runs(frame)), tmp_path / "styled")
        assert dict(matplotlib.rcParams) == before
    assert styled.read_bytes() == plain.read_bytes()
    assert pyplot.get_fignums() == []
