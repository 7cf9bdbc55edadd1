"""What is said of the loss on the probe."""

import numpy as np
import pytest
from synthetic_runs import make_rows, make_scalar, to_frame

from repdyn.diagnosis import describe_run
from repdyn.store.scalars import PROBE_LOSS

STEPS = (0, *(2**exponent for exponent in range(14)))
LOSSES = dict(zip(STEPS, np.linspace(10.0, 3.0, len(STEPS)).tolist(), strict=True))


def described(values: dict[int, float], loss: bool = False, **given):
    rows = [make_scalar(step, value, PROBE_LOSS, **given) for step, value in values.items()]
    return describe_run(to_frame([*make_rows(n_blocks=2, steps=STEPS, loss=loss), *rows]), [])


def of_kind(found, kind: str):
    return [each for each in found.statements if each.kind == kind]


def test_a_sweep_says_how_far_the_loss_on_the_probe_fell():
    (statement,) = of_kind(described(LOSSES), "loss")
    assert statement.sentence == "The loss on the probe fell from 10 at step 0 to 3 at step 8,192."
    assert (statement.severity, dict(statement.evidence)) == ("note", {"first": 10.0, "last": 3.0})


def test_a_training_says_what_became_of_its_training_loss():
    (statement,) = of_kind(described(LOSSES, loss=True), "loss")
    assert statement.sentence.startswith("The training loss fell")


def test_a_loss_on_the_probe_that_did_not_fall_is_not_said_to_fall():
    assert not of_kind(described({step: 13.0 - loss for step, loss in LOSSES.items()}), "loss")
    assert not of_kind(described(dict(list(LOSSES.items())[:5])), "loss")


@pytest.mark.parametrize("loss", [False, True])
def test_a_step_with_the_final_weights(loss):
    found = described({**LOSSES, 64: 3.0}, loss)
    (statement,) = of_kind(found, "loss out of line")
    assert statement.sentence == (
        "The loss on the probe is 3 at step 64, out of line with 7 at step 32 and 6 at step 128: the weights of another "
        "step (3 at step 8,192)."
    )
    assert (statement.severity, statement.steps) == ("watch", (64,))
    assert statement.evidence["jump"] == pytest.approx(3.0)
    assert found.status == "healthy"  # a fault of the published checkpoints, not of the training


def test_steps_above_the_others_may_be_spikes():
    (statement,) = of_kind(described({**LOSSES, 64: 12.0, 4: 0.5}), "loss out of line")
    assert statement.steps == (4, 64)
    assert statement.sentence == (
        "The loss on the probe is 0.5 at step 4, out of line with 9 at step 2 and 8 at step 8: the weights of another step "
        "(3 at step 8,192). So are those of step 64."
    )
    (spike,) = of_kind(described({**LOSSES, 64: 12.0}), "loss out of line")
    assert "a spike of the training, or the weights of another step." in spike.sentence


def test_a_wrong_end_beside_a_step_that_jumps():
    (statement,) = of_kind(described({**LOSSES, 0: 3.0}), "loss out of line")
    assert statement.steps == (0,)
    assert statement.sentence == (
        "The loss on the probe is 3 at step 0, out of line with 9.5 at step 1 and 9 at step 2: the weights of another step "
        "(3 at step 8,192)."
    )


def test_too_many_steps_out_of_line():
    (statement,) = of_kind(described({**LOSSES, 4: 3.0, 8: 3.0, 16: 3.0}), "loss out of line")
    assert (statement.severity, statement.steps) == ("note", ())
    assert statement.sentence == (
        "The loss on the probe would be out of line at more than a sixth of the steps: not judged, since nothing tells "
        "which steps are wrong."
    )


def test_a_loss_within_its_standard_error_is_in_line():
    assert of_kind(described({**LOSSES, 64: 5.0}, std_error=0.1), "loss out of line")
    assert not of_kind(described({**LOSSES, 64: 5.0}, std_error=0.3), "loss out of line")


def test_a_finished_model_has_no_course():
    rows = make_rows(n_blocks=2, steps=(0,), loss=False, stage="finished")
    found = describe_run(to_frame([*rows, make_scalar(0, 3.0, PROBE_LOSS, stage="finished")]), [])
    assert not [each for each in found.statements if "loss" in each.kind]
