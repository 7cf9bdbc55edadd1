"""Files of suites: all keys, ranges and placeholders, and the errors of invalid ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repdyn.checkpoints.revisions import parse_revision
from repdyn.checkpoints.suites import (
    KnownFault,
    PublishedCheckpoint,
    PublishedModel,
    find_models,
    read_suite,
)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a suite of one model with these lines, and gives its path."""

    def write(*lines: str, head: str = "title: mine\ncard: here\nmodels:\n") -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(
            head
            + "".join(f"{'  - ' if i == 0 else '    '}{line}\n" for i, line in enumerate(lines))
        )
        return path

    return write


def test_find_models_reads_a_file(write):
    path = write("name: mine", "repository: me/model", "revisions: 'step(?P<step>\\d+)'")
    assert find_models([str(path)]) == [
        PublishedModel(
            name="mine",
            suite="mine",
            run="me/model",
            repository="me/model",
            revisions=r"step(?P<step>\d+)",
        )
    ]
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        find_models(["none.yaml"])


def test_all_keys_of_a_model(write):
    path = write(
        "name: '{size}-{seed}'",
        "for: {size: [1.4b, small], seed: ['1..3:2']}",
        "run: runs/{size}/{seed}",
        "checkpoints:",
        "  - for: {k: [5, '10..20:10']}",
        "    repository: me/{size}",
        "    revision: seed{seed}",
        "    step: '{k}k'",
        "  - {repository: me/final, step: 0, tokens: 0, stage: start}",
        "tokens_per_step: 2k",
        "tokenizer: me/{size}-tokens",
    )
    suite = read_suite(path)
    assert suite.name == "mine"
    assert suite.title == "mine"
    assert suite.card == "here"
    assert [model.name for model in suite.models] == ["1.4b-1", "1.4b-3", "small-1", "small-3"]
    model = suite.models[1]
    assert model.run == "runs/1.4b/3"
    assert model.tokenizer == "me/1.4b-tokens"
    assert model.tokens_per_step == 2000
    assert model.repository is None
    assert model.revisions is None
    assert model.expected == ()
    assert model.checkpoints == (
        PublishedCheckpoint("me/final", 0, tokens=0, stage="start"),
        PublishedCheckpoint("me/1.4b", 5000, "seed3", tokens=10**7),
        PublishedCheckpoint("me/1.4b", 10000, "seed3", tokens=2 * 10**7),
        PublishedCheckpoint("me/1.4b", 20000, "seed3", tokens=4 * 10**7),
    )


def test_listed_combinations(write):
    path = write(
        "name: '{name}-x{seed}'",
        "for: [{name: alias, seed: 21}, {name: caprica, seed: 81}]",
        "run: me/m-seed{seed}",
        "repository: me/{name}",
        "revisions: 'step(?P<step>\\d+)'",
    )
    models = read_suite(path).models
    assert [(model.name, model.run, model.repository) for model in models] == [
        ("alias-x21", "me/m-seed21", "me/alias"),
        ("caprica-x81", "me/m-seed81", "me/caprica"),
    ]


def test_commits_of_a_branch_and_what_is_not_verified(write):
    path = write(
        "name: 'm-{size}'",
        "for: {size: [tiny]}",
        "repository: me/m-{size}",
        "branch: m-{size}-1",
        "commits: 'Save (?P<step>\\d+)'",
        "checked_against: https://example.org/m-{size}",
        "unverified: the titles",
    )
    (model,) = read_suite(path).models
    assert model.commits == r"Save (?P<step>\d+)"
    assert model.branch == "m-tiny-1"
    assert model.revisions is None
    assert model.checked_against == "https://example.org/m-tiny"
    assert model.unverified == "the titles"


def test_placeholders_in_a_pattern_are_escaped(write):
    path = write(
        "name: m",
        "for: {size: [1.4b]}",
        "repository: me/m",
        "revisions: '{size}/step(?P<step>\\d{1,6})'",
    )
    (model,) = read_suite(path).models
    assert parse_revision("1.4b/step10", model.revisions)
    assert parse_revision("1x4b/step10", model.revisions) is None


PATTERN = "revisions: 'step(?P<step>\\d+)'"
ITEM = "  - {repository: me/m, step: 0}"


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["name: m", "repository: me/m", "revision: x"], "did you mean 'revisions'"),
        (["name: m", "checkpoints:", "  - {repository: me/m, steps: 0}"], "checkpoints.0.step"),
        (["name: m", "checkpoints:", "  - me/m"], "dictionary"),
        (["name: m", "repository: me/m"], "expected one of revisions"),
        (["name: m", "repository: me/m", PATTERN, "commits: 'step(?P<step>\\d+)'"], "keep one"),
        (["name: m", "repository: me/m", "revisions: step(?P<stp>.*)"], "got stp"),
        (["repository: me/m", PATTERN], "a valid name"),
        (["name: a/b", "repository: me/m", PATTERN], "a valid name"),
        (
            ["name: m", "checkpoints:", ITEM, "  - {repository: me/n, step: 0}", "run: m"],
            "one checkpoint for each step",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m, step: 0, tokens: many}"],
            "got 'many'",
        ),
        (
            ["name: 'm-{siez}'", "for: {size: [1]}", "repository: me/m", PATTERN],
            "did you mean 'size'",
        ),
        (["name: 'm-{size}'", "for: {size: [1.4]}", "repository: me/m", PATTERN], "1.4"),
        (
            ["name: m", "repository: me/m", PATTERN, "expected: ['0..10:3']"],
            "reaches its last value",
        ),
        (["name: m", "repository: me/m", PATTERN, "tokens_per_step: 0"], "tokens_per_step"),
        (
            ["name: m", "for: {size: [1, 2]}", "repository: 'me/{size}'", PATTERN],
            "a different name for each model",
        ),
        (
            ["name: 'm{size}'", "for: {size: [1, 2]}", "repository: me/m", PATTERN],
            "a different run for each model",
        ),
    ],
)
def test_errors_name_file_and_entry(write, lines, word):
    path = write(*lines)
    with pytest.raises(ValueError, match=re.escape(word)) as error:
        read_suite(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "titel: x", "title: x\ncard: y", "title: [", "title: !!python/name:os.system"]
)
def test_invalid_files(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"in {path}, got")):
        read_suite(path)


FAULTY = """title: mine
card: here
models:
  - {name: 'm-{size}', for: {size: [a, b]}, repository: 'me/{size}',
     revisions: 'step(?P<step>.*)', expected: ['0..9:1']}
known_faults:
"""


def test_known_faults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        FAULTY + "  - {models: ['m-*'], steps: [1, 0], what: the same weights, report: https://a}\n"
        "  - {models: [m-b], steps: ['2..4:2', 7], what: missing weights, report: https://b}\n"
    )
    first, second = read_suite(path).models
    everywhere = KnownFault((0, 1), "the same weights", "https://a")
    assert first.known_faults == (everywhere,)
    assert second.known_faults == (
        everywhere,
        KnownFault((2, 4, 7), "missing weights", "https://b"),
    )


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("models: [m-c], steps: [1], what: x, report: https://a", "models of this suite"),
        ("models: [m-a], steps: [10], what: x, report: https://a", "steps of m-a"),
        ("models: [m-a], what: x, report: https://a", "a valid steps"),
        ("models: [m-a], steps: [1], what: x, report: a", "a valid report"),
        ("models: [m-a], step: [1]", "a valid step"),
    ],
)
def test_invalid_known_faults(tmp_path, fault, word):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{FAULTY}  - {{{fault}}}\n")
    with pytest.raises(ValueError, match=word):
        read_suite(path)
