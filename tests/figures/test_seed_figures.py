import numpy as np
import pytest
from scipy.stats import t as student_t
from synthetic_runs import make_published, to_frame

from repdyn.figures.comparison import ComparedRuns, compare_family, comparison_figures, means_over_layers, profiles

STEPS = (0, 1, 8, 64)


@pytest.fixture
def frame():
    """Three seeds whose dimension is 1, 2 and 6 at every layer and step, and another model with 4."""

    def rows(name, dimension, **given):
        return make_published(
            name, steps=STEPS, n_blocks=2, probe="0" * 16, dimension=lambda step, depth: dimension, **given
        )

    seeds = [rows(f"lab/m-seed{number}", number) for number in (1, 2, 6)]
    return to_frame([row for of_one in (*seeds, rows("lab/own", 4.0, parameters=10)) for row in of_one])


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axes):
    return [np.asarray(line.get_ydata(), float).tolist() for line in axes.lines]


def band(axes, number):
    """Lowest and highest value of a band."""
    heights = axes.collections[number].get_paths()[0].vertices[:, 1]
    return heights.min(), heights.max()


HALF = student_t.ppf(0.975, 2) * np.std([1, 2, 6], ddof=1) / np.sqrt(3)


@pytest.mark.slow
def test_seeds_are_one_line_with_a_band_above_thin_lines(frame):
    figure = profiles(ComparedRuns(frame), "two_nn")
    assert legend(figure) == ["decoders", "own", "m (3 seeds)"]
    own, *seeds, mean = figure.axes[0].lines
    assert lines(figure.axes[0]) == [[4.0] * 3, [1.0] * 3, [2.0] * 3, [6.0] * 3, [3.0] * 3]
    assert {line.get_linewidth() for line in seeds} == {0.7}
    assert mean.get_linewidth() == own.get_linewidth() == 1.8
    assert {line.get_color() for line in (*seeds, mean)} == {mean.get_color()} != {own.get_color()}
    np.testing.assert_allclose(band(figure.axes[0], 1), [3 - HALF, 3 + HALF])
    assert "band: 95 % interval over probes; band of seeds: 95 % interval over seeds, each a thin line" in (
        figure.get_suptitle().replace("\n", " ")
    )
    assert figure.get_suptitle().startswith("Intrinsic dimension (TwoNN) over depth, 2 decoders")


@pytest.mark.slow
def test_means_over_layers_have_a_band_over_seeds(frame):
    figure = means_over_layers(ComparedRuns(frame[frame["run"] != "lab/own"]), ["two_nn"])
    assert lines(figure.axes[0]) == [[1.0] * 4, [2.0] * 4, [6.0] * 4, [3.0] * 4]
    np.testing.assert_allclose(band(figure.axes[0], 0), [3 - HALF, 3 + HALF])
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [0, 1000, 8000, 64000])
    assert "\nband: 95 % interval over seeds, each a thin line" in figure.get_suptitle()


@pytest.mark.slow
def test_seeds_can_be_drawn_as_single_runs(frame):
    figure = profiles(ComparedRuns(frame, seeds=()), "two_nn")
    assert legend(figure) == ["decoders", "own", "m-seed1", "m-seed2", "m-seed6"]
    assert legend(profiles(ComparedRuns(frame, seeds=["*-seed[12]"]), "two_nn"))[1:] == [
        "own",
        "*-seed[12] (2 seeds)",
        "m-seed6",
    ]


@pytest.mark.slow
def test_families_draw_seeds_too(frame):
    renamed = frame.assign(metric=frame["metric"].replace("two_nn", "participation_ratio"))
    figure = compare_family(ComparedRuns(renamed), "spectrum")
    assert lines(figure.axes[0])[-1] == [3.0] * 3
    assert len(lines(figure.axes[0])) == 5


def test_seeds_that_differ_are_refused(frame):
    frame.loc[frame["run"] == "lab/m-seed2", "model"] = "Other"
    with pytest.raises(ValueError, match="as seeds of lab/m, got different model classes"):
        comparison_figures(frame)
