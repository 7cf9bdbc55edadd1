"""Files of suites: all keys, ranges and placeholders, and the errors of invalid ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repdyn.checkpoints.revisions import parse_revision
from repdyn.checkpoints.suites import KnownFault, PublishedCheckpoint, PublishedModel, find_models, read_suite


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a suite of one model with these lines, and gives its path."""

    def write(*lines: str, head: str = "title: mine\ncard: here\nmodels:\n") -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(head + "".join(f"{'  - ' if i == 0 else '    '}{line}\n" for i, line in enumerate(lines)))
        return path

    return write


def test_find_models_reads_a_file(write):
    path = write("name: mine", "repository: me/model", "revisions: 'step(?P<step>\\d+)'")
    assert find_models([str(path)]) == [
        PublishedModel(name="mine", suite="mine", run="me/model", repository="me/model", revisions=r"step(?P<step>\d+)")
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
        "    subfolder: at-{k}k",
        "    step: '{k}k'",
        "  - {repository: me/final, step: 0, tokens: 0, stage: start}",
        "tokens_per_step: 2k",
        "tokenizer: me/{size}-tokens",
    )
    suite = read_suite(path)
    assert (suite.name, suite.title, suite.card) == ("mine", "mine", "here")
    assert [model.name for model in suite.models] == ["1.4b-1", "1.4b-3", "small-1", "small-3"]
    model = suite.models[1]
    assert (model.run, model.tokenizer, model.tokens_per_step) == ("runs/1.4b/3", "me/1.4b-tokens", 2000)
    assert (model.repository, model.revisions, model.subfolders, model.expected) == (None, None, None, ())
    assert model.checkpoints == (
        PublishedCheckpoint("me/final", "main", "", 0, 0, "start"),
        PublishedCheckpoint("me/1.4b", "seed3", "at-5k", 5000, 10**7, None),
        PublishedCheckpoint("me/1.4b", "seed3", "at-10k", 10000, 2 * 10**7, None),
        PublishedCheckpoint("me/1.4b", "seed3", "at-20k", 20000, 4 * 10**7, None),
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
    assert (model.commits, model.branch, model.revisions) == (r"Save (?P<step>\d+)", "m-tiny-1", None)
    assert (model.checked_against, model.unverified) == ("https://example.org/m-tiny", "the titles")


def test_placeholders_in_a_pattern_are_escaped(write):
    path = write("name: m", "for: {size: [1.4b]}", "repository: me/m", "subfolders: '{size}/step(?P<step>\\d{1,6})'")
    (model,) = read_suite(path).models
    assert parse_revision("1.4b/step10", model.subfolders)
    assert parse_revision("1x4b/step10", model.subfolders) is None


PATTERN = "revisions: 'step(?P<step>\\d+)'"
ITEM = "  - {repository: me/m, step: 0}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["name: m", "repository: me/m", "revision: x"],
            "expected keys among name, for, repository, revisions, subfolders, commits, checkpoints, branch, "
            "tokens_per_step, expected, tokenizer, run, checked_against, unverified in FILE, model 1, got 'revision'; "
            "did you mean 'revisions'?",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m, steps: 0}"],
            "expected keys among for, repository, revision, subfolder, step, tokens, stage in FILE, model 1, "
            "checkpoint 1, got 'steps'; did you mean 'step'?",
        ),
        (["name: m", "checkpoints:", "  - me/m"], "expected a mapping with keys among for, repository,"),
        (
            ["name: m", "repository: me/m"],
            "expected one of revisions, subfolders, commits, checkpoints in FILE, model 1, got",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "subfolders: 'step(?P<step>\\d+)'"],
            "got 'revisions, subfolders'; keep one",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "branch: other"],
            "expected the key branch only next to commits in FILE, model 1, got 'other'; remove it",
        ),
        (
            ["name: m", "repository: me/m", "commits: 'Save (?P<number>\\d+)'"],
            "got number; write the step as (?P<step>\\d+) (commits in FILE, model 1)",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "checked_against: the card"],
            "expected an address under checked_against in FILE, model 1, got 'the card'; begin it with https://",
        ),
        (["repository: me/m", PATTERN], "expected the key name in FILE, model 1, got None; add it"),
        (["name: m", PATTERN], "expected the key repository in FILE, model 1, got None; add it"),
        (
            ["name: a/b", "repository: me/m", PATTERN],
            "expected a name of letters, digits and . _ + - in FILE, model 1,",
        ),
        (
            ["name: m", "repository: me/m", "revisions: step(?P<stp>.*)"],
            "got stp; write the step as (?P<step>\\d+) (revisions in FILE, model 1)",
        ),
        (
            ["name: m", "repository: me/m", "checkpoints:", ITEM],
            "expected neither repository nor expected next to checkpoints in FILE, model 1, got ['repository']; move it "
            "to the items",
        ),
        (["name: m", "checkpoints: []"], "expected a list under checkpoints in FILE, model 1, got []; begin each item"),
        (
            ["name: m", "checkpoints:", ITEM, "  - {repository: me/n, step: 0}", "run: m"],
            "expected one checkpoint for each step in FILE, model 1, got 'me/m@main and me/n@main for 0'; describe two",
        ),
        (
            ["name: m", "checkpoints:", ITEM, "  - {repository: me/n, step: 1}"],
            "expected the key run for checkpoints of several repositories in FILE, model 1, got 'none'; name the run",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m}"],
            "expected the key step in FILE, model 1, checkpoint 1,",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m, step: 0, tokens: many}"],
            "expected a whole number such as 1000, 240k, 1.5T as tokens in FILE, model 1, checkpoint 1, got 'many'",
        ),
        (
            ["name: 'm-{siez}'", "for: {size: [1]}", "repository: me/m", PATTERN],
            "expected placeholders in name that are listed under for in FILE, model 1, got 'siez'; did you mean 'size'?",
        ),
        (
            ["name: 'm-{size}'", "repository: me/m", PATTERN],
            "in name that are listed under for in FILE, model 1, got 'size'; known: none",
        ),
        (
            ["name: m", "for: 1", "repository: me/m", PATTERN],
            "expected a mapping of names to lists under for in FILE,",
        ),
        (
            ["name: m", "for: [1]", "repository: me/m", PATTERN],
            "expected mappings of names to values in the list under for in FILE, model 1, got 1; write",
        ),
        (
            ["name: m", "for: []", "repository: me/m", PATTERN],
            "expected a list under for in FILE, model 1, got []",
        ),
        (
            ["name: m", "for: {size: 7}", "repository: me/m", PATTERN],
            "expected a list under size in FILE, model 1, for,",
        ),
        (
            ["name: 'm-{size}'", "for: {size: [1.4]}", "repository: me/m", PATTERN],
            "expected a string or an integer under size in FILE, model 1, for, got 1.4; put it in quotes",
        ),
        (
            ["name: m", "repository: yes", PATTERN],
            "expected a string or an integer under repository in FILE, model 1, got",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "expected: ['0..10:3']"],
            "expected a range first..last:step that reaches its last value in FILE, model 1, got '0..10:3'; check its",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "expected: [one]"],
            "expected a whole number such as 1000, 240k, 1.5T as step in FILE, model 1, got 'one'",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "tokens_per_step: 0"],
            "expected tokens_per_step of at least 1 in FILE, model 1, got 0; omit it if it is unknown",
        ),
        (
            ["name: m", "for: {size: [1, 2]}", "repository: 'me/{size}'", PATTERN],
            "expected a different name for each model in FILE, got 'm' twice; set the key name",
        ),
        (
            ["name: 'm{size}'", "for: {size: [1, 2]}", "repository: me/m", PATTERN],
            "expected a different run for each model in FILE, got 'me/m' twice; set the key run",
        ),
    ],
    ids=lambda value: None if isinstance(value, list) else value[-40:],
)
def test_errors_name_file_and_entry(write, lines, message):
    path = write(*lines)
    with pytest.raises(ValueError, match=re.escape(message.replace("FILE", str(path)))):
        read_suite(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "expected a mapping with keys among title, card, models, known_faults in FILE, got None; see docs/suites.md",
        ),
        (
            "titel: x",
            "expected keys among title, card, models, known_faults in FILE, got 'titel'; did you mean 'title'?",
        ),
        ("title: x\ncard: y", "expected a list under models in FILE, got None; begin each item with a dash"),
        ("card: y\nmodels: [{name: m, repository: a/b, revisions: '(?P<step>.*)'}]", "expected the key title in FILE,"),
        ("title: [", "expected YAML in FILE, got something that does not parse: while parsing"),
        ("title: !!python/name:os.system", "expected YAML in FILE, got something that does not parse: could not"),
    ],
)
def test_invalid_files(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message.replace("FILE", str(path)))):
        read_suite(path)


FAULTY = """title: mine
card: here
models:
  - {name: 'm-{size}', for: {size: [a, b]}, repository: 'me/{size}', revisions: 'step(?P<step>.*)', expected: ['0..9:1']}
known_faults:
"""


def test_known_faults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"{FAULTY}  - {{models: ['m-*'], steps: [1, 0], kind: copies, what: the same weights, report: https://a}}\n"
        "  - {models: [m-b], steps: ['2..4:2', 7], kind: missing, what: missing weights, report: https://b}\n"
    )
    first, second = read_suite(path).models
    everywhere = KnownFault((0, 1), "copies", "the same weights", "https://a")
    assert first.known_faults == (everywhere,)
    assert second.known_faults == (everywhere, KnownFault((2, 4, 7), "missing", "missing weights", "https://b"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "models: [m-c], steps: [1], kind: mixed, what: x, report: https://a",
            "expected models of this suite, or patterns of their",
        ),
        (
            "models: [m-a], steps: [10], kind: mixed, what: x, report: https://a",
            "expected steps of m-a in FILE, known fault 1, got",
        ),
        (
            "models: [m-a], kind: mixed, what: x, report: https://a",
            "expected the key steps in FILE, known fault 1, got 'none'",
        ),
        (
            "models: [m-a], steps: [1], kind: mixed, report: https://a",
            "expected the key what in FILE, known fault 1, got None",
        ),
        (
            "models: [m-a], steps: [1], kind: mixed, what: x, report: a",
            "expected the address of a report in FILE, known fault 1",
        ),
        ("models: [m-a], steps: [1], what: x, report: https://a", "expected the key kind in FILE, known fault 1, got"),
        (
            "models: [m-a], steps: [1], kind: mix, what: x, report: https://a",
            "expected a kind of copies, mixed, missing, order in FILE, known fault 1, got 'mix'; choose one",
        ),
        (
            "steps: [1], kind: mixed, what: x, report: https://a",
            "expected models of this suite, or patterns of their names",
        ),
        ("models: [m-a], step: [1]", "expected keys among models, steps, kind, what, report in FILE, known fault 1"),
    ],
)
def test_invalid_known_faults(tmp_path, fault, message):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{FAULTY}  - {{{fault}}}\n")
    with pytest.raises(ValueError, match=re.escape(message.replace("FILE", str(path)))):
        read_suite(path)
