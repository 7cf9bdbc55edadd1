"""The report's charts as figures of Plotly: what they show, and where 0 lies."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_families import make_everything
from synthetic_runs import fill, make_rows, make_run

from repdyn.metrics import METRICS
from repdyn.views.plots import heatmap, means, profile
from repdyn.views.tables.frames import grid, measurements
from repdyn.views.tables.series import metric_series

STEPS = (0, 1, 8, 64)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fill(
        tmp_path_factory.mktemp("store"), make_everything(n_blocks=3, steps=STEPS, n_heads=2)
    )


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_every_picture(store, metric):
    for draw in (heatmap, profile, means):
        figure = draw(store, metric, METRICS[metric].subsets[0])
        json.loads(figure.to_json())
        assert "<br>independent design: 8 batches of " in figure.layout.title.text


def test_a_profile_plays_at_most_forty_of_many_steps(tmp_path):
    figure = profile(fill(tmp_path, make_rows(n_blocks=2, steps=range(100))), "two_nn")
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) <= 40
    assert figure.frames[-1].name == "99"
    values = grid(measurements(make_run(n_blocks=2, steps=range(100))), "two_nn", "all")
    np.testing.assert_allclose(figure.frames[0].data[1].y, values[0], rtol=1e-6)
    np.testing.assert_allclose(figure.data[-1].y, values[99], rtol=1e-6)


def test_means_stand_below_the_loss(tmp_path):
    figure = means(fill(tmp_path, make_rows(steps=STEPS)), "two_nn")
    assert [note.text for note in figure.layout.annotations] == [
        "training loss",
        "Intrinsic dimension (TwoNN), all tokens, mean over 6 layers",
    ]
    np.testing.assert_allclose(
        figure.data[-1].y,
        metric_series(measurements(make_run(steps=STEPS)))["two_nn", "all"].layer_mean.mean,
        rtol=1e-6,
    )
