import colorsys
import math

import numpy as np
import pytest
from lanes import extended_except
from matplotlib.colors import to_rgb
from synthetic_runs import SAMPLED

from repdyn.figures.comparison import ComparedRuns, comparison_figures, means_over_layers, profiles
from repdyn.figures.files import save
from repdyn.utils.attempts import attempts

STEPS = (0, 1, 8, 64, 512)


@pytest.fixture
def several(published, finished, frame_of):
    """Two decoders and two encoders, the larger one first in the alphabet."""
    return frame_of(
        published("lab/a-160m", steps=STEPS, parameters=160_000_000, n_blocks=8),
        published("lab/b-70m", steps=STEPS, parameters=70_000_000, n_blocks=4),
        finished("other/bert-large", parameters=300_000_000),
        finished("other/bert-base", parameters=100_000_000),
    )


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def hue(line):
    return colorsys.rgb_to_hsv(*to_rgb(line.get_color()))[0]


def lightness(line):
    return colorsys.rgb_to_hls(*to_rgb(line.get_color()))[1]


@pytest.mark.slow
def test_profiles_are_ordered_by_kind_and_size(several):
    figure = profiles(ComparedRuns(several), "anisotropy")
    assert legend(figure) == ["decoders", "b-70m", "a-160m", "encoders", "bert-base", "bert-large"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "all tokens",
        "without first positions and special tokens",
    ]
    assert figure.get_suptitle().splitlines() == [
        "Anisotropy over depth, 2 decoders, 2 encoders",
        "at step 512 or finished; band: 95 % interval over probes",
        SAMPLED,
    ]


@pytest.mark.slow
def test_profiles_are_taken_at_the_end_over_relative_depth(several):
    small, large, *_ = profiles(ComparedRuns(several), "anisotropy").axes[1].lines
    np.testing.assert_array_equal(small.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert len(np.asarray(large.get_xdata())) == 9
    expected = several.query("run == 'lab/b-70m' and subset == 'no_sink' and step == 512").sort_values("layer")
    np.testing.assert_array_equal(small.get_ydata(), expected["value"])


@pytest.mark.slow
def test_kinds_differ_in_hue_and_sizes_in_lightness(several):
    small, large, base, big = profiles(ComparedRuns(several), "two_nn").axes[0].lines
    assert 0.5 < hue(large) < 0.7, "decoders are blue"
    assert 0.0 < hue(base) < 0.12, "encoders are orange"
    assert lightness(small) > lightness(large) + 0.2
    assert lightness(base) > lightness(big) + 0.2
    assert small.get_marker() != large.get_marker()


@pytest.mark.slow
def test_a_run_looks_the_same_in_every_picture(several):
    looks = {}
    for figure in comparison_figures(several).values():
        for axes in figure.axes:
            for line in axes.lines:
                looks.setdefault((line.get_color(), line.get_marker()), 0)
    assert len(looks) == 4


@pytest.mark.slow
def test_ends_are_named_where_they_differ(published, finished, frame_of):
    frame = frame_of(published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 1000)), finished("lab/c"))
    figure = profiles(ComparedRuns(frame), "two_nn")
    assert legend(figure) == ["decoders", "a, step 8", "b, step 1,000", "encoder", "c"]
    assert figure.get_suptitle().splitlines()[1].startswith("at the last measured step; ")


@pytest.mark.slow
def test_finished_models_have_no_step_zero(finished, frame_of):
    frame = frame_of(finished("lab/a"), finished("lab/b"))
    figure = profiles(ComparedRuns(frame), "two_nn")
    assert "step" not in "".join([figure.get_suptitle(), *legend(figure)])
    assert set(comparison_figures(frame)) == {"profiles_anisotropy", "profiles_two_nn"}


@pytest.mark.slow
def test_a_metric_only_some_were_measured_with(published, frame_of):
    frame = frame_of(published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 8)))
    frame = frame[(frame["run"] == "lab/a") | (frame["metric"] != "two_nn")]
    assert legend(profiles(ComparedRuns(frame), "two_nn")) == ["decoder", "a"]
    dimension, anisotropy, _ = means_over_layers(ComparedRuns(frame)).axes
    assert (len(dimension.lines), len(anisotropy.lines)) == (1, 2)


def test_an_unknown_kind_is_grey_and_said(published, frame_of):
    figure = profiles(ComparedRuns(frame_of(published("lab/a", causal=None), published("lab/b"))), "two_nn")
    assert legend(figure) == ["decoder", "b", "of unknown kind", "a"]
    red, green, blue = to_rgb(figure.axes[0].lines[1].get_color())
    assert red == green == blue


def test_an_unknown_metric_is_an_error(several):
    with pytest.raises(ValueError, match="^expected a measured metric, got 'rank'; measured were anisotropy, two_nn$"):
        profiles(ComparedRuns(several), "rank")


@pytest.mark.slow
def test_means_against_tokens(several):
    figure = means_over_layers(ComparedRuns(several))
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


@pytest.mark.slow
def test_the_margin_is_small_on_the_logarithmic_axis(several):
    axes = means_over_layers(ComparedRuns(several)).axes[-1]
    low, first, last, high = axes.transData.transform(
        [(x, 0) for x in (axes.get_xlim()[0], 0, 512e3, axes.get_xlim()[1])]
    )[:, 0]
    assert first - low == pytest.approx(high - last)
    assert first - low < 0.1 * (high - low)


def test_means_against_steps_where_one_run_does_not_know_its_tokens(published, frame_of):
    frame = frame_of(published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 8, 100), tokens_seen=None))
    axes = means_over_layers(ComparedRuns(frame)).axes[-1]
    np.testing.assert_array_equal(axes.lines[1].get_xdata(), [0, 8, 100])
    assert axes.get_xlabel() == "step (logarithmic; 0 before training)"


@pytest.mark.slow
def test_markers_stay_few_on_many_checkpoints(published, frame_of):
    steps = (0, *range(1000, 143001, 1000))
    frame = frame_of(published("lab/a", steps=steps, n_blocks=1), published("lab/b", steps=(0, 1), n_blocks=1))
    marked = means_over_layers(ComparedRuns(frame)).axes[0].lines[0].get_markevery()
    assert isinstance(marked, list)
    assert len(marked) <= 8
    assert {0, 143} <= set(marked)


def test_means_need_a_run_with_two_checkpoints(finished, frame_of):
    with pytest.raises(ValueError, match="^expected a run with several checkpoints, got none; draw profiles instead$"):
        means_over_layers(ComparedRuns(frame_of(finished("lab/a"), finished("lab/b"))))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"n_vectors": 2048},
            "^expected runs that compare, got batches of different numbers of vectors: 4,096 (a), 2,048 (b); choose among them$",
        ),
        ({"settings": "{}"}, "different settings of two_nn"),
    ],
    ids=["vectors", "settings"],
)
def test_runs_that_do_not_compare_are_an_error(published, frame_of, other, message):
    frame = frame_of(published("lab/a", steps=(0,)), published("lab/b", steps=(0,)))
    for column, value in other.items():
        frame.loc[(frame["run"] == "lab/b") & frame["layer"].notna(), column] = value
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        comparison_figures(frame)


def test_a_run_on_two_probes_is_an_error(published, frame_of):
    frame = frame_of(published("lab/a", probe="one"), published("lab/a", probe="two"), published("lab/b"))
    with pytest.raises(ValueError, match="^expected the rows of one probe, got 2: 'one', 'two'"):
        comparison_figures(frame)


@pytest.mark.extended
@pytest.mark.slow
def test_files_and_determinism(several, tmp_path):
    written = save(comparison_figures(several), tmp_path / "new" / "folder")
    names = ["profiles_anisotropy", "profiles_two_nn", "means_over_layers"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    again = save(comparison_figures(several.sample(frac=1, random_state=0)), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", extended_except({2, 10}, [2, 10, 24]))
def test_no_text_lies_on_another(published, frame_of, n_runs):
    frame = frame_of(
        *(published(f"lab/a-model-of-size-{n}", steps=(0, 1, 1000), n_blocks=2, parameters=n) for n in range(n_runs))
    )
    for figure in comparison_figures(frame).values():
        figure.draw_without_rendering()
        (box,) = [found.get_window_extent() for found in figure.legends]
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
        assert min(axes.get_window_extent().width for axes in figure.axes) > 300


def without(*layers, n_blocks):
    missing = {layer / n_blocks for layer in layers}
    return lambda step, depth: math.nan if depth in missing else 0.3


@pytest.mark.slow
def test_profiles_name_the_layers_left_out_and_keep_their_place(published, frame_of):
    frame = frame_of(
        published("lab/a", steps=(0,), n_blocks=4, dimension=without(0, n_blocks=4)),
        published("lab/b", steps=(0,), n_blocks=8, dimension=without(0, 3, 4, 5, n_blocks=8)),
    )
    dimension, anisotropy = profiles(ComparedRuns(frame), "two_nn"), profiles(ComparedRuns(frame), "anisotropy")
    assert dimension.get_suptitle().splitlines()[-1] == "layers left out: 0 (a), 0, 3-5 (b)"
    assert "left out" not in anisotropy.get_suptitle()
    for axes in [*dimension.axes, *anisotropy.axes]:
        assert axes.get_xlim() == pytest.approx((-0.04, 1.04))


@pytest.mark.slow
def test_many_runs_that_lack_the_same_layers_are_counted(published, frame_of):
    lacking = without(0, n_blocks=2)
    runs = (
        published(f"lab/{name}", steps=(0, 8), n_blocks=2, anisotropy=lacking)
        for name in ("a", "b", "c", "a" * 15, "b" * 15)
    )
    frame = frame_of(*runs)
    assert (
        profiles(ComparedRuns(frame), "anisotropy").get_suptitle().splitlines()[-1]
        == "layers left out: 0 (a, aaaaaaaaaaaaaaa, b, 2 more)"
    )
    _, title, _ = [
        axes.get_title(loc="left").replace("\n", " ") for axes in means_over_layers(ComparedRuns(frame)).axes
    ]
    assert title == "Anisotropy, all tokens (over fewer layers: 5 of 5 runs)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thin", "label", "n_noted"),
    [
        (("anisotropy", "no_sink", "dimension"), "a (4 of 5 layers)", 0),
        (("dimension",), "a (4-5 of 5 layers)", 1),
        ((), "a", 0),
    ],
    ids=["every panel", "one panel", "none"],
)
def test_means_over_fewer_layers_are_said(published, frame_of, thin, label, n_noted):
    curves = dict.fromkeys(thin, without(4, n_blocks=4))
    frame = frame_of(published("lab/a", n_blocks=4, **curves), published("lab/b", n_blocks=4))
    figure = means_over_layers(ComparedRuns(frame))
    assert legend(figure) == ["decoders", label, "b"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.endswith("(over fewer layers: a)") for title in titles] == [True] * n_noted + [False] * (3 - n_noted)


@pytest.mark.slow
def test_of_equal_curves_both_are_seen(published, frame_of):
    frame = frame_of(
        published("lab/a"), published("lab/b"), published("lab/c", dimension=lambda step, depth: 20 + step / 100)
    )
    for figure in (means_over_layers(ComparedRuns(frame)), profiles(ComparedRuns(frame), "two_nn")):
        lower, upper, apart = figure.axes[0].lines
        assert lower.get_linewidth() > upper.get_linewidth() + 1
        assert lower.get_markersize() > upper.get_markersize() + 1
        assert upper.get_linewidth() == apart.get_linewidth()


@pytest.mark.slow
def test_titles_stay_within_the_figure(published, finished, frame_of):
    runs = [published(f"lab/{name}", steps=(0, 8), n_blocks=2, dimension=without(0, n_blocks=2)) for name in "abc"]
    frame = frame_of(*runs, finished("lab/d"), finished("lab/e"), published("lab/f", causal=None, steps=(0, 16)))
    for figure in comparison_figures(frame).values():
        figure.draw_without_rendering()
        (title,) = [text for text in figure.texts if text.get_text() == figure.get_suptitle()]
        box = title.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


@pytest.mark.slow
def test_stacks_of_one_model_are_two_models(two_stacks, frame_of):
    frame = frame_of(two_stacks("lab/t5", steps=(0, 8)))
    figure = profiles(ComparedRuns(frame), "anisotropy")
    assert legend(figure) == ["decoder", "lab/t5 (decoder)", "encoder", "lab/t5 (encoder)"]
    assert figure.get_suptitle().splitlines()[0] == "Anisotropy over depth, 1 decoder, 1 encoder"
    decoder, encoder = figure.axes[0].lines
    assert 0.5 < hue(decoder) < 0.7, "decoders are blue"
    assert 0.0 < hue(encoder) < 0.12, "encoders are orange"
    assert (len(np.asarray(decoder.get_xdata())), len(np.asarray(encoder.get_xdata()))) == (7, 5)
    np.testing.assert_allclose(np.asarray(encoder.get_ydata(), float), 0.3)
    means = means_over_layers(ComparedRuns(frame))
    assert legend(means) == legend(figure)
    assert [len(axes.lines) for axes in means.axes] == [2, 2, 2]


@pytest.mark.slow
def test_layers_left_out_are_those_of_the_stack(two_stacks, frame_of):
    frame = frame_of(two_stacks("lab/t5", steps=(0, 8)))
    thin = (frame["stack"] == "encoder") & (frame["layer"] == 0) & (frame["metric"] == "two_nn")
    frame.loc[thin, ["value", "reason"]] = [math.nan, "2 distinct vectors, 3 needed"]
    assert (
        profiles(ComparedRuns(frame), "two_nn").get_suptitle().splitlines()[-1]
        == "layers left out: 0 (lab/t5 (encoder))"
    )
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in means_over_layers(ComparedRuns(frame)).axes]
    assert legend(means_over_layers(ComparedRuns(frame)))[-1] == "lab/t5 (encoder) (4-5 of 5 layers)"
    assert [title.endswith("(over fewer layers: lab/t5 (encoder))") for title in titles] == [True, False, False]


@pytest.mark.slow
def test_a_comparison_that_fails_keeps_none_of_the_others_from_its_file(several, tmp_path, monkeypatch):
    def broken(_):
        raise RuntimeError("no means today")

    monkeypatch.setattr("repdyn.figures.comparison.means_over_layers", broken)
    with pytest.raises(RuntimeError, match="^no means today$"), attempts() as attempt:
        save(comparison_figures(several, attempt), tmp_path, attempt)
    assert {path.name for path in tmp_path.glob("*.png")} == {"profiles_anisotropy.png", "profiles_two_nn.png"}
