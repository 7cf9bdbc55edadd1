"""The statement on input embeddings that are out of line, on the cosines that users reported for Pythia-12b."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic_runs import make_row, make_scalar, to_frame

from repdyn.diagnosis import describe_run
from repdyn.store.scalars import EMBEDDING_COSINE

STEPS = range(45_000, 66_000, 1000)


def cosine(step):
    return 0.5935 - 0.0036 * (step - 49_000) / 1000 + 1e-4 * np.sin(step)


def found(values, first=0):
    rows = [make_row(step=step, layer=1, value=0.5 + step / 1e6) for step in values]
    scalars = [replace(make_scalar(step, value, EMBEDDING_COSINE), compared_to=first) for step, value in values.items()]
    described = describe_run(to_frame([*rows, *scalars]), [])
    return described, [each for each in described.statements if each.kind == "embeddings out of line"]


def test_the_final_embeddings_at_two_steps():
    values = {step: cosine(step) for step in STEPS} | {50_000: 0.511, 58_000: 0.511}
    described, (statement,) = found(values)
    assert statement.sentence == (
        "The input embeddings of step 50,000 have a cosine of 0.511 to those of step 0, out of line with 0.593 at step "
        "49,000 and 0.586 at step 51,000: the weights of another step. So are those of step 58,000."
    )
    assert statement.steps == (50_000, 58_000)
    assert statement.evidence["cosine"] == 0.511
    assert described.status != "failed"


@pytest.mark.parametrize("n_steps", [3, 21])
def test_a_smooth_course_is_in_line(n_steps):
    assert found({step: cosine(step) for step in STEPS[:n_steps]})[1] == []
    assert found(dict.fromkeys(STEPS, 1.0))[1] == []  # embeddings that are not trained


def test_cosines_to_different_checkpoints_are_not_joined():
    values = {step: cosine(step) for step in STEPS}
    rows = [make_row(step=step, layer=1, value=0.5 + step / 1e6) for step in values]
    rows += [
        replace(
            make_scalar(step, value - 0.3 * (step == 50_000), EMBEDDING_COSINE),
            compared_to=45_000 if step == 50_000 else 0,
        )
        for step, value in values.items()
    ]
    assert "embeddings out of line" not in [each.kind for each in describe_run(to_frame(rows), []).statements]
