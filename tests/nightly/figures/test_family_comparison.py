"""x"""

import pytest
from synthetic_families import make_everything

from repdyn.figures.comparison import ComparedRuns, compare_family, comparison_figures


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
