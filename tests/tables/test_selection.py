import re

import pytest

from repdyn.store import open_store
from repdyn.tables.selection import is_measured, select


@pytest.fixture
def store(published, failures, filled, tmp_path):
    return filled(
        tmp_path / "sweeps",
        published("lab/pythia-70m", steps=(0, 8), probe="aaa1"),
        published("lab/pythia-70m", steps=(8,), probe="aab2"),
        published("lab/other", steps=(0,), probe="aaa1"),
        failures(0, run="lab/gone", probe="ccc3"),
    )


def test_everything(store):
    found = select(store)
    assert list(found) == [
        ("lab/gone", "ccc3"),
        ("lab/other", "aaa1"),
        ("lab/pythia-70m", "aaa1"),
        ("lab/pythia-70m", "aab2"),
    ]
    assert [is_measured(frame) for frame in found.values()] == [False, True, True, True]
    frame = found["lab/pythia-70m", "aab2"]
    assert (set(frame["step"]), set(frame["probe"]), set(frame["run"])) == ({8}, {"aab2"}, {"lab/pythia-70m"})
    assert "seconds/load" in set(frame["metric"])


def test_some_runs_in_the_order_given(store):
    assert [run for run, _ in select(store, ["lab/other", "lab/gone", "lab/other"])] == ["lab/other", "lab/gone"]


@pytest.mark.parametrize("given", ["aaa1", "aaa"])
def test_one_probe_by_its_beginning(store, given):
    assert list(select(store, probe=given)) == [("lab/other", "aaa1"), ("lab/pythia-70m", "aaa1")]


@pytest.mark.parametrize("given", ["aa", "x"], ids=["several", "none"])
def test_a_probe_that_is_not_one_is_an_error(store, given):
    message = f"expected the beginning of one probe's hash, got '{given}'; there are aaa1, aab2, ccc3"
    with pytest.raises(ValueError, match=f"^{message}$"):
        select(store, probe=given)


def test_a_named_run_that_was_not_measured_on_the_probe_is_an_error(store):
    message = "^expected runs measured on the probe aab2, got lab/other, which were not$"
    with pytest.raises(ValueError, match=message):
        select(store, ["lab/other", "lab/pythia-70m"], "aab2")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("lab/pythia-7Om", "did you mean 'lab/pythia-70m'?"),
        ("pythia-70m", "did you mean 'lab/pythia-70m'?"),
        ("Lab/Other", "did you mean 'lab/other'?"),
        ("zzz", "it has lab/gone, lab/other, lab/pythia-70m"),
    ],
)
def test_a_mistyped_run_says_what_it_resembles(store, typed, hint):
    with pytest.raises(ValueError, match=re.escape(f"expected a run of {store.path}, got {typed!r}; {hint}")):
        select(store, [typed])


def test_an_empty_store_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"expected a store with measurements, found none in {tmp_path}")):
        select(open_store(tmp_path))


def test_the_folder_around_or_inside_a_store_names_it(store, tmp_path):
    for wrong in (tmp_path, store.folder_of("lab/other")):
        message = f"expected a store with measurements, found none in {wrong}; did you mean {store.path}?"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            select(open_store(wrong))
