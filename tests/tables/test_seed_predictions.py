"""A run of one's own against where one more seed would lie."""

from __future__ import annotations

import doctest
import importlib
import math

import numpy as np
import pytest
from scipy.stats import t as student_t
from synthetic_runs import make_published, to_frame

from repdyn.tables.runs import measured_runs
from repdyn.tables.seed_predictions import prediction_margin, prediction_table, predictions
from repdyn.tables.seeds import seed_groups

STEPS = (0, 1, 8, 64)


def run(name, factor, **given):
    """A run whose dimension is a multiple of the layer's number plus one, the same at every step unless it is told."""
    level = factor if callable(factor) else lambda step: factor
    fields = {"steps": STEPS, "n_blocks": 2, "probe": "0123456789abcdef"} | given
    return make_published(name, dimension=lambda step, depth: level(step) * (2 * depth + 1.0), **fields)


def found(*runs):
    measured = measured_runs(to_frame([row for of_one in runs for row in of_one]))
    every = predictions(seed_groups(measured), measured)
    return {each.run.name: each for each in every if each.metric == "two_nn"}


SEEDS = [run(f"lab/m-seed{number}", factor) for number, factor in enumerate((1.0, 1.1, 0.9, 1.05, 0.95), start=1)]


def test_inside_and_outside():
    means = np.array([1.0, 1.1, 0.9, 1.05, 0.95]) * 2  # of 1, 2 and 3
    half = student_t.ppf(0.975, 4) * means.std(ddof=1) * math.sqrt(1 + 1 / 5)
    just = half / 2
    predicted = found(
        *SEEDS, run("inside", 1 + 0.99 * just), run("outside", 1 + 1.01 * just), run("low", 1 - 1.01 * just)
    )
    assert {name: each.outside for name, each in predicted.items()} == {"inside": (), "outside": STEPS, "low": STEPS}
    assert predicted["inside"].low == pytest.approx([2 - half] * 4)
    assert predicted["inside"].high == pytest.approx([2 + half] * 4)


def test_the_steps_that_both_have():
    own = run("own", lambda step: 5.0 if step == 8 else 1.0, steps=(0, 4, 8, 128))
    (each,) = found(*SEEDS, own).values()
    assert (each.steps, each.outside) == ((0, 8), (8,))
    assert each.text.endswith("prediction interval of m (5 seeds) at 1 of 2 steps: 8")
    table = prediction_table([each])
    assert table["outside"].tolist() == [False, True]
    assert table["value"].tolist() == pytest.approx([2.0, 10.0])


@pytest.mark.parametrize("other", [{"parameters": 5}, {"causal": False}, {"n_blocks": 3}, {"steps": (2, 3)}])
def test_other_models_are_not_compared(other):
    assert found(*SEEDS, run("own", 1.0, **other)) == {}


@pytest.mark.parametrize("n_seeds", [2, 3, 9])
def test_of_normal_seeds_19_in_20_are_covered(n_seeds):
    values = np.random.default_rng(0).normal(size=(n_seeds + 1, 40_000))
    margin = prediction_margin(values[:-1])
    covered = np.abs(values[-1] - values[:-1].mean(axis=0)) <= margin
    assert covered.mean() == pytest.approx(0.95, abs=0.006)


def test_examples_in_docstrings():
    results = doctest.testmod(importlib.import_module("repdyn.tables.seed_predictions"))
    assert results.attempted > 0
    assert results.failed == 0
