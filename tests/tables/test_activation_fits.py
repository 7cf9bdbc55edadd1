"""The published formula of the largest activation: courses with known parameters, and courses without it."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit
from scipy.stats import f as f_distribution
from synthetic_runs import fill, make_row, to_frame

from repdyn.publish.results import show_run
from repdyn.report import write_report
from repdyn.tables.activation_fits import MIN_STEPS, activation_fits, fit_activations, fit_layers

STEPS = np.array([0, *(2**k for k in range(10)), *range(1000, 143_001, 1000)], float)
# A, lambda, gamma, t0, K: of the first layer's median activation in Pythia-410m, as published, and of other shapes
KNOWN = {
    "published": (0.1991413262927913, 0.1245164347289605, 0.00011243504071098889, 0.6212193145868949, 0.12193486521),
    "early peak": (300.0, 0.05, 1e-3, 1.0, 2.0),
    "peak in the first steps": (50.0, 0.3, 5e-2, 1.0, 1.0),
    "no peak yet": (100.0, 0.02, 2e-5, 1.0, 5.0),
    "a trough": (-30.0, 0.2, 1e-4, 0.9, 80.0),
    "large": (5e6, 0.5, 1e-4, 0.9, 2e7),
}


def curve(t, amplitude, decay, time_scale, time_offset, baseline):
    x = time_scale * t + time_offset
    return amplitude * np.exp(-decay * x) * np.log(x) + baseline


def noisy(values, share, seed=0):
    return values + share * np.ptp(values) * np.random.default_rng(seed).standard_normal(len(values))


@pytest.mark.parametrize("name", KNOWN)
def test_known_parameters_are_found(name):
    fit = fit_activations(STEPS, curve(STEPS, *KNOWN[name]))
    assert fit[:5] == pytest.approx(KNOWN[name], rel=1e-3)
    assert fit.r_squared == pytest.approx(1, abs=1e-10)
    assert fit.n_steps == len(STEPS)
    assert fit.is_reported
    assert fit.at(STEPS) == pytest.approx(curve(STEPS, *KNOWN[name]), rel=1e-5, abs=1e-5 * abs(KNOWN[name][0]))


@pytest.mark.parametrize("name", ["published", "early peak", "no peak yet", "a trough"])
def test_no_curve_nearby_is_better(name):
    values = noisy(curve(STEPS, *KNOWN[name]), 0.02)
    fit = fit_activations(STEPS, values)
    ours = np.square(fit.at(STEPS) - values).sum()
    total = np.square(values - values.mean()).sum()
    assert fit.r_squared == pytest.approx(1 - ours / total, abs=1e-9)
    ratio = (total - ours) / 4 / (ours / (len(STEPS) - 5))
    assert fit.p_value == pytest.approx(f_distribution.sf(ratio, 4, len(STEPS) - 5), rel=1e-6)
    with np.errstate(over="ignore"):
        theirs = curve_fit(curve, STEPS, values, p0=KNOWN[name], maxfev=20_000)[0]
    assert ours <= np.square(curve(STEPS, *theirs) - values).sum() * (1 + 1e-3)


def test_the_peak_is_the_maximum_of_the_curve():
    for name, known in KNOWN.items():
        fit = fit_activations(STEPS, curve(STEPS, *known))
        if known[0] < 0:
            assert math.isnan(fit.peak_step)
            continue
        places = np.geomspace(1, 3e6, 20_000)
        assert fit.peak_step == pytest.approx(places[fit.at(places).argmax()], rel=1e-2), name
    late = fit_activations(STEPS, curve(STEPS, *KNOWN["no peak yet"]))
    assert late.peak_step > STEPS[-1]


def test_steps_without_a_value_are_left_out():
    values = curve(STEPS, *KNOWN["early peak"])
    values[::3] = np.nan
    fit = fit_activations(STEPS, values)
    assert fit.n_steps == len(STEPS) - len(STEPS[::3])
    assert fit[:5] == pytest.approx(KNOWN["early peak"], rel=1e-3)


def test_the_unit_of_the_states_scales_two_parameters():
    values = noisy(curve(STEPS, *KNOWN["early peak"]), 0.01)
    fit, scaled = fit_activations(STEPS, values), fit_activations(STEPS, 1e-6 * values)
    for name, factor in zip(fit._fields, (1e-6, 1, 1, 1, 1e-6, 1, 1, 1), strict=True):
        assert getattr(scaled, name) == pytest.approx(factor * getattr(fit, name), rel=1e-3, abs=1e-300), name


RANDOM = np.random.default_rng(5)
OTHERS = {
    "noise": RANDOM.standard_normal(len(STEPS)),
    "a wave": np.sin(STEPS / 8e3) + 3,
    "a sudden step": 1.0 * (STEPS > 40_000),
    "the formula in twice its noise": noisy(curve(STEPS, *KNOWN["early peak"]), 0.5),
    "one outlier": 1.0 * (STEPS == 50_000),
    "two peaks": np.exp(-((STEPS / 1e4 - 3) ** 2)) + np.exp(-((STEPS / 1e4 - 11) ** 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_courses_are_not_reported(name):
    fit = fit_activations(STEPS, OTHERS[name])
    assert not fit.is_reported
    assert all(map(math.isfinite, fit))
    assert fit.r_squared == pytest.approx(1 - np.var(fit.at(STEPS) - OTHERS[name]) / np.var(OTHERS[name]), abs=1e-6)


@pytest.mark.parametrize("n_steps", [MIN_STEPS - 1, 3, 1, 0])
def test_too_few_steps_have_no_fit(n_steps):
    assert fit_activations(STEPS[-n_steps:] if n_steps else [], curve(STEPS, *KNOWN["published"])[:n_steps]) is None


def test_a_constant_has_no_fit():
    assert fit_activations(STEPS, np.full(len(STEPS), 7.5)) is None
    assert fit_activations(STEPS, np.full(len(STEPS), np.nan)) is None


def test_few_noisy_steps_are_rarely_reported():
    steps = STEPS[-12:]
    noise = np.random.default_rng(0)
    reported = sum(fit_activations(steps, noise.standard_normal(12)).is_reported for _ in range(60))
    assert reported <= 1


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("steps", "n_walks", "most"), [(STEPS[::14], 200, 0.12), (STEPS, 100, 0.08)])
def test_how_often_a_random_walk_is_reported(steps, n_walks, most):
    random = np.random.default_rng(0)
    walks = [random.standard_normal(len(steps)).cumsum() for _ in range(n_walks)]
    share = np.mean([fit_activations(steps, walk).is_reported for walk in walks])
    print(f"{share:.1%} of {n_walks} random walks of {len(steps)} steps")
    assert share <= most


def test_the_table_of_a_run():
    rows = [
        make_row(step=int(step), layer=layer, metric="largest_activation", value=float(value), std=0.0)
        for layer, name in ((1, "early peak"), (3, "no peak yet"))
        for step, value in zip(STEPS, curve(STEPS, *KNOWN[name]), strict=True)
    ]
    rows += [make_row(step=int(step), layer=2, metric="largest_activation", value=3.0) for step in STEPS]
    rows += [make_row(step=int(step), layer=1, metric="anisotropy", value=step / 2e5) for step in STEPS]
    table = activation_fits(to_frame(rows))
    assert table["layer"].tolist() == [1, 3]
    assert table["amplitude"].to_numpy() == pytest.approx([300, 100], rel=1e-3)
    assert table["peak_step"].to_numpy() == pytest.approx([8070.28, 823_854], rel=1e-3)
    assert table["is_reported"].all()
    assert activation_fits(to_frame(rows[-2:])).empty
    assert list(activation_fits(to_frame(rows[-2:]))) == list(table)


@pytest.mark.extended
def test_the_table_is_in_the_report_and_beside_the_figures(tmp_path, monkeypatch, quick_images):
    rows = [
        make_row(step=int(step), layer=layer, depth=layer / 3, metric="largest_activation", value=float(value), std=0.0)
        for layer, name in ((1, "early peak"), (3, "no peak yet"))
        for step, value in zip(STEPS, curve(STEPS, *KNOWN[name]), strict=True)
    ]
    store = fill(tmp_path / "store", rows)
    page = write_report(store, tmp_path / "page.html").read_text()
    assert "<summary>Largest activation over training</summary>" in page
    assert page.count('<th scope="row">1</th>') + page.count('<th scope="row">3</th>') == 2
    written = show_run(store, store.runs()[0])
    (path,) = [path for path in written if path.suffix == ".csv"]
    assert path.name == "activation_fits.csv"
    table = pd.read_csv(path)
    pd.testing.assert_frame_equal(table, activation_fits(store.to_pandas()), check_dtype=False)

    other = fill(tmp_path / "other", [replace(row, metric="norm") for row in rows])
    assert "Largest activation over training" not in write_report(other, tmp_path / "other.html").read_text()
    assert not [path for path in show_run(other, other.runs()[0]) if path.suffix == ".csv"]


def test_layers_fitted_together_have_the_fits_that_each_has_alone():
    layers = [noisy(curve(STEPS, *KNOWN[name]), 0.02, seed) for seed, name in enumerate(KNOWN)]
    layers[1][3], layers[2][5] = np.nan, np.inf
    layers += [np.ones_like(STEPS), np.full_like(STEPS, np.nan)]
    together = fit_layers(STEPS, np.stack(layers))
    assert together == [fit_activations(STEPS, values) for values in layers]
    assert [fit is None for fit in together] == [False] * len(KNOWN) + [True, True]
