"""Figures of one run and of several draw the stored values, and say what they leave out."""

import math

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import CenteredNorm, LogNorm, Normalize, SymLogNorm
from runs_of_everything import everything as everything
from scipy.stats import t as student_t
from synthetic_families import PYTHIA, make_everything
from synthetic_runs import make_published, measured_runs, to_frame

from repdyn.views.figures.comparison import means_over_layers, profiles
from repdyn.views.figures.panes import LARGE, SMALL, panes_of
from repdyn.views.figures.run import (
    MAX_STEPS,
    all_figures,
    heads_heatmap,
    heatmap,
    mean_over_layers,
    over_depth,
    steps_overview,
)
from repdyn.views.tables.seeds import seed_groups, with_seeds

NAN = math.nan
SAMPLED = "8 x 4,096 vectors (independent)"


def of(frame):
    """The only run of a frame."""
    (one,) = measured_runs(frame)
    return one


def compared(frame):
    runs = measured_runs(frame)
    return with_seeds(runs, seed_groups(runs))


def panels(figure):
    """The axes without colour bars and twins."""
    return [
        axes
        for axes in figure.axes
        if axes.get_subplotspec() is not None and axes.get_label() != "<colorbar>"
    ]


def legend_of(axes):
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_profile_draws_selected_steps_with_their_values(run):
    frame = run(n_blocks=4, steps=PYTHIA)
    figure = over_depth(of(frame), ["anisotropy"], "Anisotropy", LARGE)
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
    axes = over_depth(of(frame), ["anisotropy"], "Anisotropy", LARGE).axes[0]
    (band,) = [artist for artist in axes.collections if isinstance(artist, PolyCollection)]
    corners = {
        (x, round(y, 9)) for x, y in np.asarray(band.get_paths()[0].vertices, float).tolist()
    }
    ends = frame.query("metric == 'anisotropy' and subset == 'all'")[
        ["layer", "low", "high"]
    ].to_numpy(float)
    assert corners == {(layer, round(end, 9)) for layer, *both in ends for end in both}
    assert ends[0, 2] - ends[0, 1] == pytest.approx(2 * 2.3646243 * np.sqrt(2 / 8) * 0.1)


def test_mean_over_layers_with_loss(run):
    frame = run(n_blocks=2, steps=(0, 8, 64), dimension=lambda step, depth: 10 + depth + step)
    figure = mean_over_layers(of(frame))
    dimension, anisotropy = panels(figure)[:2]
    np.testing.assert_array_equal(dimension.lines[0].get_xdata(), [0, 8, 64])
    np.testing.assert_allclose(
        np.asarray(dimension.lines[0].get_ydata(), float), [10.75, 18.75, 74.75]
    )
    assert dimension.get_title(loc="left") == "Intrinsic dimension (TwoNN), all tokens"
    assert dimension.get_ylabel() == "dimension"
    assert anisotropy.get_xscale() == "symlog"
    assert anisotropy.get_xlim()[0] < 0, "step 0 shows"
    assert legend_of(anisotropy) == ["all tokens", "without first positions and special tokens"]
    (twin,) = [axes for axes in figure.axes if axes.get_ylabel() == "training loss (dashed)"]
    np.testing.assert_array_equal(
        twin.lines[0].get_ydata(), frame.query("metric == 'train/loss'")["value"]
    )


def test_a_finished_model_has_profiles_alone(run):
    frame = run(steps=(0,), stage="finished", causal=False)
    figures = all_figures(of(frame))
    assert list(figures) == ["profile_anisotropy", "profile_two_nn"]
    for figure in figures.values():
        assert figure.legends == []
        assert figure.get_suptitle().splitlines()[0].endswith("over depth, finished")


def test_heatmap_shows_every_cell(run):
    steps = (0, 1, 100)
    frame = run(
        n_blocks=3,
        steps=steps,
        dimension=lambda step, depth: NAN if step == depth == 0 else step + depth,
    )
    figure = heatmap(of(frame), "two_nn", "all")
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells is not None
    assert cells.shape == (4, 3)
    np.testing.assert_array_equal(
        np.ma.getmaskarray(cells), [[True, False, False], *[[False] * 3] * 3]
    )
    assert cells[3, 2] == 101
    assert axes.images[0].origin == "lower"
    assert axes.patch.get_hatch()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "100"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2", "3"]
    assert figure.get_suptitle().splitlines()[0].endswith("all tokens; hatched: no value")
    assert figure.axes[1].get_ylabel() == "dimension"


HEADS = "attention_topic_gap"


@pytest.fixture
def rows(frame_of):
    return lambda *metrics, **fields: frame_of(
        make_everything(
            **({"n_blocks": 4, "steps": (0, 8, 64), "metrics": metrics, "n_heads": 3} | fields)
        )
    )


def test_heads_at_the_last_step(rows):
    frame = rows(HEADS)
    figure = heads_heatmap(of(frame), HEADS, "all")
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells is not None
    assert cells.shape == (4, 3)
    expected = frame.query("step == 64 and layer == 2 and head == 1")["value"].item()
    assert cells[1, 1] == expected
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "2", "3", "4"]
    low, high = axes.images[0].get_clim()
    assert low == -high, "the colours change at 0"
    assert figure.get_suptitle().startswith(
        "Topic gap of the attention by layer and head, at step 64, all tokens"
    )


@pytest.mark.parametrize(
    ("metric", "norm"),
    [("token_rank", SymLogNorm), ("norm", LogNorm), ("topic_gap", CenteredNorm)],
    ids=["ranks", "lengths", "differences"],
)
def test_colours_follow_the_scale_of_the_metric(rows, metric, norm):
    figure = heatmap(of(rows(metric)), metric, "all")
    figure.draw_without_rendering()
    assert isinstance(figure.axes[0].images[0].norm, norm)


@pytest.mark.parametrize(
    ("dimension", "norm", "limits", "label"),
    [
        (
            lambda step, depth: 90.0 if depth == 0 else 8 + step / 32,
            Normalize,
            (8, 12),
            "dimension; the brightest: 12 to 90",
        ),
        (lambda step, depth: 900.0 if step == 128 else 8 + depth, LogNorm, (8, 900), "dimension"),
    ],
    ids=["a layer", "a step"],
)
def test_values_far_above_the_others_leave_these_their_colours(run, dimension, norm, limits, label):
    figure = heatmap(of(run(steps=tuple(range(0, 129, 4)), dimension=dimension)), "two_nn", "all")
    image = figure.axes[0].images[0]
    assert type(image.norm) is norm
    assert image.get_clim() == limits
    assert figure.axes[1].get_ylabel() == label


def title(axes):
    return axes.get_title(loc="left").replace("\n", ", ")


def test_over_depth_a_line_is_a_step(everything):
    frame = everything(metrics=("effective_rank", "alpha_req"))
    figure = over_depth(of(frame), of(frame).metrics("spectrum"), "Spectrum", SMALL)
    rank, alpha = figure.axes
    assert [title(axes) for axes in (rank, alpha)] == [
        "Effective rank",
        "Decay of the spectrum (alpha-ReQ)",
    ]
    assert [axes.get_ylabel() for axes in (rank, alpha)] == ["directions", "exponent"]
    at_last = frame.query("metric == 'effective_rank' and step == 64")
    np.testing.assert_array_equal(rank.lines[-1].get_xdata(), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(rank.lines[-1].get_ydata(), at_last["value"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["64", "8", "0"]
    assert " ".join(figure.get_suptitle().split()) == (
        f"Spectrum over depth decoder-quickstart, {SAMPLED}; all tokens; band: 95% interval "
        f"over probes"
    )


def test_against_step_a_line_is_a_mean_over_layers(everything):
    frame = everything(metrics=("norm", "linearity"))
    norm, linearity = steps_overview(of(frame), "evolution").axes
    assert legend_of(norm) == ["all tokens", "no sinks"]
    of_blocks = frame.query("metric == 'norm' and subset == 'all' and layer > 0")
    expected = of_blocks.groupby("step")["value"].mean()
    np.testing.assert_allclose(np.asarray(norm.lines[0].get_ydata(), float), expected)
    np.testing.assert_array_equal(norm.lines[0].get_xdata(), [0, 8, 64])
    assert title(linearity) == "Linearity from this layer to the next, all tokens"
    assert linearity.get_xscale() == "symlog"


@pytest.fixture
def panes(frame_of):
    """Of some metrics at two steps of a model with two blocks, over depth."""

    def make(*metrics, **given):
        run = of(frame_of(make_everything(steps=(0, 8), n_blocks=2, metrics=metrics, **given)))
        return panes_of(run.keys_of(metrics), "depth")

    return make


def told(panes):
    return [(pane.title, pane.tokens, [trace.label for trace in pane.traces]) for pane in panes]


def test_each_metric_and_subset_has_a_panel(panes):
    assert told(panes("mean_cosine", "isoscore")) == [
        ("Mean cosine of two tokens", "all tokens", ["all tokens"]),
        ("Mean cosine of two tokens", "no sinks", ["no sinks"]),
        ("IsoScore", "all tokens", ["all tokens"]),
    ]


def test_classes_that_are_held_against_each_other_share_a_panel(panes):
    classes = ("rare", "verbs", "function", "frequent", "nouns", "content")
    found = panes("token_cosine", classes=classes)
    assert [(pane.tokens, [trace.label for trace in pane.traces], pane.pair) for pane in found] == [
        ("all tokens", ["all tokens"], False),
        ("frequent and rare", ["frequent", "rare"], True),
        ("function and content", ["function", "content"], True),
        ("classes of tokens", ["nouns", "verbs"], False),
    ]


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def test_profiles_are_ordered_by_kind_and_size(several):
    figure = profiles(compared(several), "anisotropy")
    assert legend(figure) == ["decoders", "b-70m", "a-160m", "encoders", "bert-base", "bert-large"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "all tokens",
        "without first positions and special tokens",
    ]
    assert figure.get_suptitle().splitlines() == [
        "Anisotropy over depth, 2 decoders, 2 encoders",
        f"at step 512 or finished; {SAMPLED}; band: 95% interval over probes",
    ]


def test_profiles_are_taken_at_the_end_over_relative_depth(several):
    small, large, *_ = profiles(compared(several), "anisotropy").axes[1].lines
    np.testing.assert_array_equal(small.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert len(np.asarray(large.get_xdata())) == 9
    expected = several.query(
        "run == 'lab/b-70m' and subset == 'no_sink' and step == 512"
    ).sort_values("layer")
    np.testing.assert_array_equal(small.get_ydata(), expected["value"])


def test_means_against_tokens(several):
    figure = means_over_layers(compared(several))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "Intrinsic dimension (TwoNN), all tokens",
        "Anisotropy, all tokens",
        "Anisotropy, without first positions and special tokens",
    ]
    axes = figure.axes[-1]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 1000, 8000, 64000, 512000])
    assert axes.get_xscale() == "symlog"
    assert axes.get_xlabel() == "training tokens (logarithmic; 0 before training)"
    assert axes.get_xlim()[0] < 0 < 512_000 < axes.get_xlim()[1]
    figure.draw_without_rendering()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1k", "10k", "100k"]
    assert legend(figure) == ["decoders", "b-70m", "a-160m"]
    assert figure.get_suptitle().splitlines()[0] == (
        "Mean over layers during training, 2 decoders; 2 with one checkpoint left out"
    )


STEPS_OF_SEED_FIGURES = (0, 1, 8, 64)


@pytest.fixture
def frame():
    """Three seeds whose dimension is 1, 2 and 6 at every layer and step, and another model with
    4.
    """

    def rows(name, dimension, **fields):
        return make_published(
            name,
            steps=STEPS_OF_SEED_FIGURES,
            n_blocks=2,
            probe="0" * 16,
            dimension=lambda step, depth: dimension,
            **fields,
        )

    seeds = [rows(f"lab/m-seed{number}", number) for number in (1, 2, 6)]
    return to_frame(
        [row for of_one in (*seeds, rows("lab/own", 4.0, parameters=10)) for row in of_one]
    )


def legend_of_seed_figures(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axes):
    return [np.asarray(line.get_ydata(), float).tolist() for line in axes.lines]


def band(axes, number):
    """Lowest and highest value of a band."""
    heights = axes.collections[number].get_paths()[0].vertices[:, 1]
    return heights.min(), heights.max()


HALF = student_t.ppf(0.975, 2) * np.std([1, 2, 6], ddof=1) / np.sqrt(3)


def test_seeds_are_one_line_with_a_band_above_thin_lines(frame):
    figure = profiles(compared(frame), "two_nn")
    assert legend_of_seed_figures(figure) == ["decoders", "own", "m (3 seeds)"]
    single, *seeds, mean = figure.axes[0].lines
    assert lines(figure.axes[0]) == [[4.0] * 3, [1.0] * 3, [2.0] * 3, [6.0] * 3, [3.0] * 3]
    assert {line.get_linewidth() for line in seeds} == {0.7}
    assert mean.get_linewidth() == single.get_linewidth() == 1.8
    assert (
        {line.get_color() for line in (*seeds, mean)} == {mean.get_color()} != {single.get_color()}
    )
    np.testing.assert_allclose(band(figure.axes[0], 1), [3 - HALF, 3 + HALF])
    assert (
        "band: 95% interval over probes; band of seeds: 95% interval over seeds, each a thin line"
        in (figure.get_suptitle().replace("\n", " "))
    )
    assert figure.get_suptitle().startswith("Intrinsic dimension (TwoNN) over depth, 2 decoders")


def test_an_axis_over_depth_is_scaled_by_the_blocks(run):
    """TwoNN of layer 0, 741 beside blocks of 15, made every profile a flat line."""
    described = measured_runs(run(dimension=lambda step, depth: 15 + depth if depth else 741.0))
    figure = all_figures(*described)["profile_two_nn"]
    assert figure.axes[0].get_ylim()[1] < 30
    assert "layer 0 lies above the axis" in figure.get_suptitle()
    low = measured_runs(run(dimension=lambda step, depth: 15 + depth if depth else 20.0))
    assert "layer 0 lies above" not in all_figures(*low)["profile_two_nn"].get_suptitle()
