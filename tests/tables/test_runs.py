import doctest
import re

import pytest
from synthetic_runs import DENSE, NO_DESIGN, make_row

from repdyn.tables import designs, frames, runs, style
from repdyn.tables import lines as accounts
from repdyn.tables.runs import differences, measured_runs, never_measured, short_names
from repdyn.utils import attempts


@pytest.mark.parametrize(
    "module", [accounts, attempts, designs, frames, runs, style], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.slow
def test_order_is_kind_then_size_then_name(published, finished, frame_of):
    frame = frame_of(
        published("lab/z", parameters=7),
        published("lab/b", parameters=7),
        published("lab/a", parameters=70),
        published("lab/unsized", parameters=None),
        published("lab/unknown", causal=None, parameters=1),
        finished("lab/encoder", parameters=2),
    )
    assert [run.label for run in measured_runs(frame)] == ["b", "z", "a", "unsized", "encoder", "unknown"]


def test_what_a_run_knows_of_itself(published, finished, failures, frame_of):
    frame = frame_of(published(steps=(0, 8)), finished(), failures(16), failures(32))
    model, bert = measured_runs(frame)
    assert (model.name, model.causal, model.parameters, model.steps) == ("lab/model-70m", True, 1_234_567, [0, 8])
    assert (model.n_failed, bert.n_failed) == (2, 0)
    assert (model.finished, bert.finished) == (False, True)
    assert model.tokens.to_dict() == {0: 0, 8: 8000}
    assert bert.tokens.empty


def test_at_end_is_the_last_step_of_each_metric(published, frame_of):
    frame = frame_of(published(steps=(0, 8)))
    (run,) = measured_runs(frame[(frame["metric"] != "two_nn") | (frame["step"] == 0)])
    assert run.at_end().groupby("metric")["step"].unique().map(list).to_dict() == {"anisotropy": [8], "two_nn": [0]}


def test_runs_that_only_failed_are_left_out(published, failures, frame_of):
    frame = frame_of(published("lab/a"), failures(0, run="lab/gone"))
    assert [run.name for run in measured_runs(frame)] == ["lab/a"]
    assert never_measured(frame) == ["lab/gone"]


def test_nothing_measured_is_an_error(failures, frame_of):
    with pytest.raises(ValueError, match="^expected runs with measurements, got none; measure at least one checkpoint"):
        measured_runs(frame_of(failures(0)))


NAMES = {
    "one owner": (["E/pythia-70m", "E/pythia-160m"], [], ["pythia-70m", "pythia-160m"]),
    "published": (["E/pythia-70m", "google/bert"], ["E/pythia-70m", "google/bert"], ["pythia-70m", "bert"]),
    "parts": (["E/a/stage1", "E/a/stage2", "F/b"], ["E/a/stage1", "E/a/stage2", "F/b"], ["a/stage1", "a/stage2", "b"]),
    "live runs": (["decoder/12-00", "encoder/12-00"], [], ["decoder/12-00", "encoder/12-00"]),
    "one live run of several": (["quick/12-00", "quick/13-00"], [], ["12-00", "13-00"]),
    "no owner": (["gpt2", "E/b"], ["gpt2", "E/b"], ["gpt2", "b"]),
    "a namesake": (["E/b", "b"], ["E/b"], ["E/b", "b"]),
    "part of a name": (["E/b", "E/b/c"], [], ["b", "b/c"]),
    "alone": (["quick/12-00"], [], ["quick/12-00"]),
}


@pytest.mark.parametrize(("names", "published", "expected"), NAMES.values(), ids=NAMES)
def test_short_names(names, published, expected):
    assert short_names(names, published) == dict(zip(names, expected, strict=True))


def test_only_a_published_model_goes_without_its_owner(published, run, frame_of):
    rows = [
        published("lab/a"),
        published("mine/b", checkpoint="/home/me@work/mine/b"),
        published("its/c", checkpoint=None),
    ]
    assert {run.name: run.label for run in measured_runs(frame_of(*rows))} == {
        "lab/a": "a",
        "mine/b": "mine/b",
        "its/c": "its/c",
    }


@pytest.mark.slow
def test_differences(published, frame_of):
    frame = frame_of(published("lab/a"), published("lab/b"), published("lab/c"))
    assert differences(measured_runs(frame)) is None
    frame.loc[(frame["run"] == "lab/c") & frame["layer"].notna(), "n_vectors"] = 512
    expected = "batches of different numbers of vectors: 4,096 (a, b), 512 (c)"
    assert differences(measured_runs(frame)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (DENSE, "different sampling designs: independent (a), dense (b)"),
        (NO_DESIGN, "different sampling designs: independent (a), not recorded (b)"),
        ({"own_window_excluded": False}, "own window's neighbours: left out (a), counted (b)"),
    ],
    ids=["another design", "one from before designs had names", "one of the same name"],
)
def test_runs_of_different_designs_differ(published, frame_of, given, expected):
    assert differences(measured_runs(frame_of(published("lab/a"), published("lab/b", **given)))) == expected


def test_differences_of_one_metric_name_it(published, frame_of):
    frame = frame_of(published("lab/a"), published("lab/b"))
    frame.loc[(frame["run"] == "lab/b") & (frame["subset"] == "no_sink"), "n_vectors"] = 512
    expected = "batches of different numbers of vectors for anisotropy (no_sink): 4,096 (a), 512 (b)"
    assert differences(measured_runs(frame)) == expected


def test_a_metric_that_takes_fewer_vectors_is_no_difference(published, frame_of):
    more = [make_row(metric="token_rank", n_vectors=1024, run="lab/b", probe="b")]
    frame = frame_of(published("lab/a"), published("lab/b", probe="b"), more)
    assert differences(measured_runs(frame)) is None


@pytest.mark.parametrize(("metric", "differs"), [("alignment", False), ("two_nn", True), ("my_metric", True)])
def test_classes_of_tokens_may_differ_in_size_for_means_but_not_for_estimates(frame_of, metric, differs):
    rows = [make_row(run=run, metric=metric, subset="rare", n_vectors=n) for run, n in (("a", 900), ("b", 870))]
    assert bool(differences(measured_runs(frame_of(rows)))) == differs


def test_a_metric_with_other_settings_differs(published, frame_of):
    frame = frame_of(published("lab/a"), published("lab/b"))
    frame.loc[(frame["run"] == "lab/b") & (frame["metric"] == "two_nn"), "settings"] = '{"discard": 0.8}'
    found = differences(measured_runs(frame))
    assert re.fullmatch(r'different settings of two_nn: \{"discard": 0.1\} \(a\), \{"discard": 0.8\} \(b\)', str(found))


def test_stacks_stand_there_like_models_of_their_own(two_stacks, published, finished, failures, frame_of):
    frame = frame_of(
        two_stacks("lab/t5", parameters=60),
        published("lab/gpt", parameters=100),
        finished("lab/bert", parameters=50),
        failures(1024, run="lab/t5"),
    )
    runs = measured_runs(frame)
    assert [run.label for run in runs] == ["t5 (decoder)", "gpt", "bert", "t5 (encoder)"]
    assert [run.key for run in runs] == [
        ("lab/t5", "decoder"),
        ("lab/gpt", None),
        ("lab/bert", None),
        ("lab/t5", "encoder"),
    ]
    assert [run.causal for run in runs] == [True, True, False, False]
    assert [len(run.rows["layer"].unique()) for run in runs] == [7, 7, 7, 5]
    assert [run.n_failed for run in runs] == [1, 0, 0, 1]


def test_differences_between_stacks(two_stacks, frame_of):
    frame = frame_of(two_stacks("lab/t5"))
    assert differences(measured_runs(frame)) is None
    frame.loc[frame["stack"] == "decoder", "n_vectors"] = 512
    expected = "batches of different numbers of vectors: 512 (lab/t5 (decoder)), 4,096 (lab/t5 (encoder))"
    assert differences(measured_runs(frame)) == expected
