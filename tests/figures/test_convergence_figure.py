import math

import numpy as np
import pytest
from matplotlib.patches import StepPatch
from synthetic_families import make_everything

from repdyn.figures.convergence import convergence
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope

BOTH = ("alignment", "alignment_gradient")


@pytest.fixture
def rows(frame_of):
    return lambda **given: frame_of(make_everything(**({"n_blocks": 4, "steps": (0, 64), "metrics": BOTH} | given)))


def with_gradient(frame, values):
    for layer, value in enumerate(values):
        chosen = (frame["metric"] == "alignment_gradient") & (frame["layer"] == layer) & (frame["step"] == 64)
        frame.loc[chosen, "value"] = value
    return frame


def test_the_fit_is_no_bound_but_the_envelope_is():
    gradient = np.array([0.2576, 0.05, 0.06, 0.04, 0.0998])
    fit, bound = isotonic_fit(gradient), lower_envelope(gradient)
    np.testing.assert_allclose(fit, [*[(0.2576 + 0.05 + 0.06 + 0.04) / 4] * 4, 0.1019 - 0.0021], atol=2.2e-3)
    assert fit.sum() == pytest.approx(gradient.sum())
    np.testing.assert_array_equal(bound, [0.04, 0.04, 0.04, 0.04, 0.0998])
    for monotone in (fit, bound):
        assert (np.diff(monotone) >= 0).all()
    assert (bound <= gradient).all()
    assert (fit > gradient).any()


def test_published_average_of_a_constant_fit():
    # DistilBERT: A_0 = 0.0717 and a gradient that falls, whose fit is the constant (1 - A_0) / 6 = 0.1547
    gradient = np.array([0.4143, 0.2, 0.12, 0.08, 0.06, 0.054])
    np.testing.assert_allclose(isotonic_fit(gradient), 0.1547, atol=1e-4)


def test_alignment_and_gradient_at_the_last_step(rows):
    frame = with_gradient(rows(), [0.3, 0.1, 0.2, 0.4])
    alignment, gradient = convergence(frame).axes
    at_last = frame.query("metric == 'alignment' and step == 64 and subset == 'all'")["value"]
    np.testing.assert_array_equal(alignment.lines[0].get_ydata(), at_last)
    rate = (at_last.iloc[-1] - at_last.iloc[0]) / 4
    assert alignment.get_title(loc="left").endswith(f"average rate {rate:.3g} per layer")
    np.testing.assert_allclose([bar.get_height() for bar in gradient.containers[0]], [0.3, 0.1, 0.2, 0.4])
    np.testing.assert_allclose(
        [bar.get_x() + bar.get_width() / 2 for bar in gradient.containers[0]], [0.5, 1.5, 2.5, 3.5]
    )
    fit, bound = (patch.get_data() for patch in gradient.patches if isinstance(patch, StepPatch))
    np.testing.assert_allclose(fit.values, [0.2, 0.2, 0.2, 0.4])
    np.testing.assert_allclose(bound.values, [0.1, 0.1, 0.2, 0.4])
    np.testing.assert_array_equal(fit.edges, [0, 1, 2, 3, 4])
    assert gradient.get_title(loc="left").endswith("fit 0.2 to 0.4; envelope 0.1 to 0.4")
    assert alignment.get_xlim() == gradient.get_xlim()


def test_a_missing_layer_breaks_the_steps(rows):
    frame = with_gradient(rows(), [0.3, math.nan, 0.2, 0.4])
    _, gradient = convergence(frame).axes
    pieces = [patch.get_data().edges.tolist() for patch in gradient.patches if isinstance(patch, StepPatch)]
    assert pieces == [[0, 1], [2, 3, 4]] * 2


def test_all_tokens_and_those_without_sinks_have_a_row_each(rows):
    frame = rows(classes=("no_sink", "rare"))
    assert [axes.get_title(loc="left").split("\n")[0] for axes in convergence(frame).axes] == [
        "Alignment with the last layer, all tokens",
        "Gradient of the alignment, all tokens",
        "Alignment with the last layer, without first positions and special tokens",
        "Gradient of the alignment, without first positions and special tokens",
    ]


def test_without_the_alignment_the_gradient_is_drawn(rows):
    alignment, gradient = convergence(rows(metrics=("alignment_gradient",))).axes
    assert alignment.get_title(loc="left").endswith("not measured")
    assert len(gradient.containers[0]) == 4


def test_a_finished_model(rows):
    figure = convergence(rows(steps=(0,), stage="finished"))
    assert figure.get_suptitle().startswith("Convergence to the last layer, finished")


def test_no_gradient_is_an_error(rows):
    expected = "^expected values of alignment_gradient, got none; measure it on a model with two layers or more$"
    with pytest.raises(ValueError, match=expected):
        convergence(rows(metrics=("alignment",)))
    with pytest.raises(ValueError, match=expected):
        convergence(rows().assign(value=math.nan))
