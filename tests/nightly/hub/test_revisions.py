"""Names of checkpoints: read, matched, and chosen from."""

from __future__ import annotations

import doctest
import re

import pytest

from repdyn.checkpoints import revisions
from repdyn.checkpoints.revisions import (
    Revision,
    compile_pattern,
    match_revisions,
    parse_revision,
    select_revisions,
    whole_number,
)

PYTHIA = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 143001, 1000)]


def named(steps):
    return [Revision(f"step{step}", step) for step in steps]


def whole(message):
    return f"^{re.escape(message)}$"


def steps(found):
    return [place.step for place in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("000", 0),
        ("143000", 143000),
        ("240k", 240_000),
        ("50K", 50_000),
        ("51B", 51_000_000_000),
        ("105b", 105_000_000_000),
        ("1.5T", 1_500_000_000_000),
        ("2.9999999999M", None),
        ("1.1M", 1_100_000),  # 1.1 * 10 ** 6 in floating point is 1100000.0000000002
        ("0.0k", 0),
        ("0.5", None),
        ("-3", None),
        ("1e3", None),
        ("1_000", None),
        ("٣", None),
        ("", None),
    ],
)
def test_numbers_with_units_are_exact(text, value):
    if value is None:
        with pytest.raises(ValueError, match="expected a whole number such as 1000, 240k, 1.5T as step, got "):
            whole_number(text, "step")
    else:
        assert whole_number(text, "step") == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step", "tokens", "stage"),
    [
        ("step0", 0, None, None),
        ("step512", 512, None, None),
        ("checkpoint-512", 512, None, None),
        ("checkpoint-512-hf", 512, None, None),
        ("global_step1000", 1000, None, None),
        ("ckpt_007", 7, None, None),
        ("128000", 128000, None, None),
        ("ckpt-20k", 20000, None, None),
        ("epoch=3-step=1000", 1000, None, None),
        ("step10-final2", 10, None, None),
        ("step-001000-2BT", 1000, None, None),
        ("stage1-step1000-tokens5B", 1000, 5 * 10**9, "stage1"),
        ("stage2-ingredient3-step23852-tokens51B", 23852, 51 * 10**9, "stage2-ingredient3"),
        ("stage1-step-40000", 40000, None, "stage1"),
        ("TinyLlama-1.1B-intermediate-step-240k-503b", 240000, None, None),
        ("TinyLlama-1.1B-intermediate-step-1195k-token-2.5T", 1195000, 25 * 10**11, None),
        ("multiberts-seed_3-step_1200k", 1200000, None, None),
    ],
)
def test_without_a_pattern_the_step_is_the_number_that_is_called_so(name, step, tokens, stage):
    assert parse_revision(name) == Revision(name, step, tokens, stage)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "main",
        "step",
        "v1.0",
        "opt-125m",
        "pythia-1.4b",
        "step512abc",
        "convert-to-safetensors",
        "gpt2",
        "Llama-2-7b-hf",
        "stories260K-hf",
        "2024-05-01",
        "seed-3",
    ],
)
def test_names_without_a_step_are_none(name):
    assert parse_revision(name) is None


def test_a_pattern_matches_the_whole_name():
    pattern = r"step(?P<step>\d+)"
    assert parse_revision("step8", pattern) == Revision("step8", 8)
    assert parse_revision("step8-old", pattern) is None
    assert parse_revision("my-step8", pattern) is None
    assert parse_revision("final", r"(?:step(?P<step>\d+)|final)") is None


def test_tokens_come_from_the_name_or_else_from_the_batch():
    assert parse_revision("step8", r"step(?P<step>\d+)", 2**21) == Revision("step8", 8, 2**24)
    assert parse_revision("step8-5B", r"step(?P<step>\d+)(?:-(?P<tokens>\w+))?", 2**21) == Revision(
        "step8-5B", 8, 5 * 10**9
    )
    assert parse_revision("step8", r"step(?P<step>\d+)(?:-(?P<tokens>\w+))?", 2**21) == Revision("step8", 8, 2**24)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("step(", "expected a regular expression, got 'step(': missing ), unterminated subpattern at position 4"),
        (
            r"step\d+",
            "expected the named group step, and no others than tokens and stage, in 'step\\\\d+', got none; "
            "write the step as (?P<step>\\d+)",
        ),
        (
            r"(?P<step>\d+)-(?P<token>\d+)",
            "expected the named group step, and no others than tokens and stage, in "
            "'(?P<step>\\\\d+)-(?P<token>\\\\d+)', got step, token; write the step as (?P<step>\\d+)",
        ),
    ],
    ids=["syntax", "no step", "unknown group"],
)
def test_patterns_that_cannot_work_are_refused(pattern, message):
    for use in (lambda: compile_pattern(pattern), lambda: parse_revision("step1", pattern)):
        with pytest.raises(ValueError, match=whole(message)):
            use()


def test_a_number_that_is_not_whole_names_the_revision():
    message = r"expected a whole number such as 1000, 240k, 1.5T as step of 'step1.5', got '1.5'"
    with pytest.raises(ValueError, match=message):
        parse_revision("step1.5", r"step(?P<step>.+)")
    with pytest.raises(ValueError, match=r"as tokens of 'step1-many', got 'many'"):
        parse_revision("step1-many", r"step(?P<step>\d+)-(?P<tokens>.+)")


def test_match_sorts_and_keeps_what_does_not_match():
    found, others = match_revisions(["main", "step16", "step0", "step8", "refs-old", "step8"], r"step(?P<step>\d+)", 10)
    assert found == [Revision("step0", 0, 0), Revision("step8", 8, 80), Revision("step16", 16, 160)]
    assert others == ["main", "refs-old"]
    assert match_revisions([]) == ([], [])


def test_match_refuses_two_names_of_one_step():
    names = ["stage1-step1000", "stage1-step2000", "stage2-step1000"]
    message = (
        "expected one checkpoint for each step, got 'stage1-step1000' and 'stage2-step1000' for step 1000; "
        r"name one stage with a narrower pattern, such as 'stage1-step(?P<step>\d+).*'"
    )
    with pytest.raises(ValueError, match=whole(message)):
        match_revisions(names)
    narrower = match_revisions(names, r"stage1-step(?P<step>\d+).*")
    assert (steps(narrower[0]), narrower[1]) == ([1000, 2000], ["stage2-step1000"])


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("all", PYTHIA),
        (
            "log",
            [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 16000, 33000, 66000, 131000, 143000],
        ),
        ("every:10", [*PYTHIA[::10], 143000]),
        ("every:1", PYTHIA),
        ("every:1000", [0, 143000]),
        ("step143000, 0,step1000", [0, 1000, 143000]),
        ("512", [512]),
    ],
)
def test_select_on_the_steps_of_pythia(spec, chosen):
    assert len(PYTHIA) == 154
    assert steps(select_revisions(named(PYTHIA), spec)) == chosen


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([], []),
        ([0], [0]),
        ([7], [7]),
        ([3], [3]),  # 2 and 4 are both within the square root of 2
        ([40, 60, 100], [40, 60, 100]),  # 32 and 40, 64 and 60; 100 is the last
        ([0, 1000, 5000, 100000], [0, 1000, 5000, 100000]),
        ([10, 20, 30, 40, 50], [10, 20, 30, 50]),  # 8, 16, 32
        ([0, 5, 6, 7, 100], [0, 5, 7, 100]),  # 4 and 5, 8 and 7
    ],
)
def test_log_takes_what_is_near_a_power_of_two(given, chosen):
    assert steps(select_revisions(named(given), "log")) == chosen


def test_select_sorts_and_takes_names_before_steps():
    places = [Revision("0", 900), Revision("step100", 100), Revision("step0", 0)]
    assert steps(select_revisions(places, "all")) == [0, 100, 900]
    assert steps(select_revisions(places, "0")) == [900]
    assert steps(select_revisions(places, "step0,100")) == [0, 100]


FORMS = 'expected "all", "log", "every:10", or names or steps separated by commas such as "step0,step1000,143000"'


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", f"{FORMS}, got ''"),
        ("step0,,step1", f"{FORMS}, got 'step0,,step1'"),
        ("every:0", f"{FORMS}, got 'every:0'"),
        ("every:ten", f"{FORMS}, got 'every:ten'"),
        ("log:2", f"{FORMS}, got 'log:2'"),
        ("stpe512", f"{FORMS}; got names or steps that do not exist: 'stpe512' (closest: 'step512')"),
        ("step0,zzz,500", f"{FORMS}; got names or steps that do not exist: 'zzz', '500' (closest: '5000')"),
    ],
)
def test_select_refuses(spec, message):
    with pytest.raises(ValueError, match=whole(message)):
        select_revisions(named(PYTHIA), spec)


def test_examples_in_docstrings_hold():
    results = doctest.testmod(revisions)
    assert results.attempted >= 6
    assert results.failed == 0
