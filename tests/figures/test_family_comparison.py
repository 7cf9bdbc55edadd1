import math

import numpy as np
import pytest
from synthetic_families import make_everything
from synthetic_runs import SAMPLED

from repdyn.figures.comparison import ComparedRuns, compare_family, comparison_figures, means_over_layers
from repdyn.figures.files import save


@pytest.fixture
def several(frame_of):
    """A decoder of 4 blocks and an encoder of 8, with geometry and some of the families."""

    def make(*metrics, **given):
        kinds = {"lab/small": (4, True), "lab/large": (8, False)}
        return frame_of(
            *(
                make_everything(
                    **{"steps": (0, 8), "metrics": metrics, "n_blocks": n_blocks, "causal": causal, "run": run, **given}
                )
                for run, (n_blocks, causal) in kinds.items()
            )
        )

    return make


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_runs_over_relative_depth_at_their_ends(several):
    frame = several("effective_rank", "alpha_req")
    figure = compare_family(ComparedRuns(frame), "spectrum")
    assert legend(figure) == ["decoder", "small", "encoder", "large"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Effective rank",
        "Decay of the spectrum (alpha-ReQ)",
    ]
    small, large = figure.axes[0].lines
    np.testing.assert_array_equal(small.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    expected = frame.query("run == 'lab/large' and metric == 'effective_rank' and step == 8")["value"]
    np.testing.assert_array_equal(large.get_ydata(), expected)
    assert figure.get_suptitle().replace("\n", " ") == (
        "Spectrum over depth, 1 decoder, 1 encoder at step 8; relative depth 0 is the embedding output; all tokens; "
        f"band: 95 % interval over probes {SAMPLED}"
    )


def test_what_lies_between_two_layers_is_drawn_between_them(several):
    small, large = compare_family(ComparedRuns(several("step_cosine")), "evolution").axes[0].lines
    np.testing.assert_allclose(np.asarray(small.get_xdata(), float), [0.125, 0.375, 0.625, 0.875])
    assert np.asarray(large.get_xdata())[0] == pytest.approx(1 / 16)


def test_of_two_classes_the_second_is_dashed(several):
    figure = compare_family(ComparedRuns(several("token_top1_match", classes=("frequent", "rare"))), "tokens")
    _, pair = figure.axes
    assert [line.get_linestyle() for line in pair.lines] == ["-", "-", "--", "--"]
    assert "dashed: the second of two classes of tokens" in figure.get_suptitle().replace("\n", " ")


def test_runs_without_the_family_are_not_in_its_legend(several):
    frame = several("two_nn", "norm")
    frame = frame.loc[(frame["run"] == "lab/large") | (frame["metric"] != "norm")]
    assert legend(compare_family(ComparedRuns(frame), "evolution")) == ["encoder", "large"]


@pytest.mark.slow
def test_which_checkpoint_the_ends_are_compared_with(several, frame_of):
    frame = several("cka_previous")
    assert (
        compare_family(ComparedRuns(frame), "change")
        .get_suptitle()
        .replace("\n", " ")
        .find("; compared with step 0; band: ")
        > 0
    )
    frame.loc[frame["run"] == "lab/large", "compared_to"] = 4
    caption = compare_family(ComparedRuns(frame), "change").get_suptitle().replace("\n", " ")
    assert "each compared with the checkpoint before; band: " in caption


@pytest.mark.slow
def test_every_family_has_one_comparison_and_geometry_its_own(several):
    frame = several("anisotropy", "two_nn", "gride_2", "gride_4", "norm", "token_rank")
    figures = comparison_figures(frame)
    assert list(figures) == [
        "profiles_anisotropy",
        "profiles_two_nn",
        "means_over_layers",
        "compare_dimension",
        "compare_evolution",
        "compare_tokens",
    ]
    assert [axes.get_title(loc="left").split(",")[0] for axes in figures["means_over_layers"].axes] == [
        "Intrinsic dimension (TwoNN)",
        "Anisotropy",
        "Anisotropy",
    ]
    looks = {
        (line.get_color(), line.get_marker())
        for figure in figures.values()
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() not in {"None", ""}
    }
    assert len(looks) == 2, "a run looks the same in every picture"


@pytest.mark.slow
def test_a_run_that_lacks_geometry_keeps_its_place_among_the_colours(several):
    frame = several("two_nn", "norm")
    frame = frame.loc[(frame["run"] == "lab/small") | (frame["metric"] != "two_nn")]
    figures = comparison_figures(frame.assign(causal=True))
    (small,) = figures["means_over_layers"].axes[0].lines
    large, as_before = figures["compare_evolution"].axes[0].lines[:2]
    assert small.get_color() == as_before.get_color() != large.get_color()


def test_a_family_without_a_value_is_left_out(several):
    frame = several("two_nn", "norm")
    frame.loc[frame["metric"] == "norm", "value"] = math.nan
    assert "compare_evolution" not in comparison_figures(frame)


def test_without_geometry_there_are_families_alone(several):
    assert list(comparison_figures(several("norm"))) == ["compare_evolution"]


def test_means_of_any_metric_can_be_asked_for(several):
    frame = several("two_nn", "norm")
    assert [
        axes.get_title(loc="left").split(",")[0] for axes in means_over_layers(ComparedRuns(frame), ["norm"]).axes
    ] == ["Norm"] * 2
    with pytest.raises(ValueError, match="^expected other metrics, got rows of two_nn, norm; name some of these$"):
        means_over_layers(ComparedRuns(frame), ["isoscore"])


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes(several, tmp_path):
    frame = several("norm", "step_length")
    files = save(comparison_figures(frame), tmp_path / "a")
    again = save(comparison_figures(frame.sample(frac=1, random_state=0)), tmp_path / "b")
    assert [path.name for path in files] == ["compare_evolution.png", "compare_evolution.svg"]
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]
