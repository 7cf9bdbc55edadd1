import pandas as pd
import pytest
from synthetic_runs import DENSE, NO_DESIGN, make_row, to_frame

from repdyn.tables.designs import design_names, intervals, own_window_warning, sampling, sampling_of_runs
from repdyn.tables.frames import measurements


def test_sampling_names_the_design_and_the_windows(run):
    assert sampling(measurements(run())) == (
        "independent design: 8 batches of 4,096 vectors, 8 of each of 512 windows of 64 tokens, own window's neighbours "
        "left out"
    )


def test_uneven_shares_are_said_to_be_uneven_and_own_windows_counted(run):
    rows = measurements(run(**DENSE, n_batches=4).assign(own_window_excluded=False))
    assert sampling(rows) == (
        "dense design: 4 batches of 4,096 vectors, up to 76 of each of 80 windows of 256 tokens, own window's neighbours "
        "counted"
    )


def test_a_metric_without_neighbours_says_nothing_of_them(run):
    rows = measurements(run())
    of_anisotropy = rows.loc[rows["metric"] == "anisotropy"]
    assert sampling(of_anisotropy).endswith("8 of each of 512 windows of 64 tokens")


def test_sampling_of_rows_from_before_designs_had_names(run):
    rows = measurements(run(**NO_DESIGN, own_window_excluded=None, n_batches=4))
    assert sampling(rows) == "4 batches of 4,096 vectors, sampling design not recorded"
    assert design_names(rows) == ["not recorded"]


def test_sampling_of_different_numbers_shows_their_span(run):
    rows = measurements(run())
    odd = rows.assign(n_vectors=[4000] + [4096] * (len(rows) - 1), n_batches=1)
    assert "1 batch of 4,000-4,096 vectors" in sampling(odd)


def test_a_resumed_run_has_one_design(run):
    resumed = measurements(pd.concat([run(steps=(0,), **NO_DESIGN), run(steps=(8,), **DENSE)]))
    assert design_names(resumed) == ["dense"]
    assert sampling(resumed).startswith("dense design: 8 batches")


def test_sampling_of_runs_that_agree_is_said_once_and_otherwise_by_run(run):
    one, other = measurements(run()), measurements(run(n_windows=100, vectors_per_window=41))
    assert sampling_of_runs({"a": one, "b": one, "c": one.iloc[:0]}) == sampling(one)
    assert sampling_of_runs({"a": one, "b": other}) == f"a: {sampling(one)}\nb: {sampling(other)}"
    many = {str(n): measurements(run(n_windows=n, steps=(0,))) for n in range(510, 514)}
    assert "8 of each of 510-513 windows" in sampling_of_runs(many)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "band: 95 % interval over probes"),
        (DENSE, "no interval: batches share windows"),
        (NO_DESIGN, "no interval: batches share windows"),
        ({"n_batches": 1}, "no interval: a single batch"),
    ],
    ids=["disjoint", "pooled", "old", "single"],
)
def test_what_a_band_means(run, given, expected):
    assert intervals(measurements(run(**given))) == expected


def test_without_a_value_there_is_no_band_to_explain(run):
    assert intervals(measurements(run().assign(value=float("nan")))) == ""


def test_a_mixture_of_rows_with_and_without_interval_says_so(run):
    rows = measurements(run())
    mixed = rows.assign(margin=rows["margin"].where(rows["metric"] == "two_nn"))
    expected = "bars: 95 % interval over probes; elsewhere no interval: batches share windows"
    assert intervals(mixed, "bars") == expected


def neighbours(share, excluded, **given):
    return make_row(metric="two_nn", same_window_share=share, own_window_excluded=excluded, **given)


def test_own_windows_that_count_are_warned_of():
    rows = [neighbours(0.2, False, **DENSE), neighbours(0.83, False, layer=3, **DENSE), make_row()]
    told = own_window_warning(rows)
    assert told.startswith("the nearest neighbour of 83% of the vectors of layer 3 lies in their own window of text")
    assert "'dense' lets count" in told
    assert 'design="independent"' in told


@pytest.mark.parametrize(
    "rows",
    [[], [make_row()], [neighbours(0.9, True)], [neighbours(0.05, False, **DENSE)]],
    ids=["none", "no neighbours", "left out", "few"],
)
def test_own_windows_that_do_not_count_or_are_few_are_not(rows):
    assert own_window_warning(rows) is None


def test_sampling_reads_nullable_columns():
    frame = to_frame([make_row()]).convert_dtypes()
    assert sampling(measurements(frame)).startswith("independent design: 8 batches of 4,096 vectors")
