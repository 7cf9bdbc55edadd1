"""Statements on input embeddings and geometry out of line, on the cosines that users reported for Pythia-12b."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import make_row, make_scalar, to_frame

from repdyn.diagnosis import describe_run
from repdyn.store.scalars import EMBEDDING_COSINE, EMBEDDING_NORM

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


def norms(steps, changed):
    return [make_scalar(step, changed.get(step, 1 + step / 1e6), EMBEDDING_NORM) for step in steps]


def test_the_norm_where_there_is_no_cosine():
    """As in a sweep on Ray without a first checkpoint."""
    rows = [make_row(step=step, layer=1, value=0.5 + step / 1e6) for step in STEPS]
    described = describe_run(to_frame([*rows, *norms(STEPS, {50_000: 1.4})]), [])
    (statement,) = [each for each in described.statements if each.kind == "embeddings out of line"]
    assert statement.sentence == (
        "The input embeddings of step 50,000 have a median norm of 1.4, out of line with 1.05 at step 49,000 and 1.05 "
        "at step 51,000: the weights of another step."
    )
    both = [
        replace(make_scalar(step, cosine(step) - 0.1 * (step == 50_000), EMBEDDING_COSINE), compared_to=0)
        for step in STEPS
    ]
    described = describe_run(to_frame([*rows, *both, *norms(STEPS, {50_000: 1.4})]), [])
    (statement,) = [each for each in described.statements if each.kind == "embeddings out of line"]
    assert "cosine" in statement.sentence  # one statement of a step


def swept(changed, noise=0.002, **given):
    """Two layers whose anisotropy rises slowly, with other values at some steps."""
    value = {step: 0.3 + step / 1e6 for step in STEPS} | changed
    return to_frame(
        [
            make_row(step=step, layer=layer, value=value[step] + 0.01 * layer, std=noise, **given)
            for step in STEPS
            for layer in (0, 1)
        ]
    )


def geometry_statements_of(frame):
    return [each for each in describe_run(frame, []).statements if each.kind == "geometry out of line"]


def test_the_geometry_of_another_step():
    (statement,) = geometry_statements_of(swept({50_000: 0.8, 58_000: 0.7}))
    assert statement.sentence == (
        "Anisotropy, mean over layers, is 0.805 at step 50,000, out of line with 0.354 at step 49,000 and 0.356 at step "
        "51,000: a spike of the training, or the weights of another step. The same holds at step 58,000."
    )
    assert (statement.metric, statement.steps) == ("anisotropy", (50_000, 58_000))


def test_a_geometry_in_line():
    assert geometry_statements_of(swept({})) == []
    assert geometry_statements_of(swept({50_000: 0.8}, noise=0.5)) == []  # within the interval
    live = [make_scalar(step, 2.0, "train/loss") for step in STEPS]
    frame = pd.concat([swept({50_000: 0.8}), to_frame(live)], ignore_index=True)
    assert geometry_statements_of(frame) == []  # a training has alerts for its jumps
