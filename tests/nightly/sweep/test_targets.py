"""Which checkpoints a published history has, where each lies, and what is not as its description says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from repdyn import open_store
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel
from repdyn.checkpoints.targets import Selection, Target, select_targets

STEP = r"step(?P<step>\d+)"


@pytest.fixture
def publish(hub, tmp_path) -> Callable[..., str]:
    """Publishes files, by path, at a revision; their content does not matter here."""

    def publish(
        repository: str, revision: str, files: Mapping[str, str] = {"config.json": "{}"}, *, tag: bool = False
    ) -> str:
        folder = tmp_path / "published" / str(len(hub.requests)) / repository / revision
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        return hub.publish(repository, revision, folder, tag=tag)

    return publish


@pytest.fixture
def pythia(publish) -> dict[str, str]:
    """Steps 0, 1, 512, 1000 and 2000, and a main branch: the commit of each."""
    return {name: publish("lab/pythia", name, {"config.json": name}) for name in ("main", *STEPS)}


STEPS = ("step0", "step1", "step512", "step1000", "step2000")


def model(**fields) -> PublishedModel:
    described: dict[str, Any] = {"name": "pythia", "suite": "", "run": "lab/pythia", "repository": "lab/pythia"}
    return PublishedModel(**described | fields)


def listed(*checkpoints: PublishedCheckpoint, **fields) -> PublishedModel:
    return model(**{"repository": None, "checkpoints": checkpoints, "run": "lab/one-by-one"} | fields)


def at(repository: str, step: int, revision: str = "main", subfolder: str = "") -> PublishedCheckpoint:
    return PublishedCheckpoint(repository, revision, subfolder, step, None, None)


def names(selection: Selection) -> list[str]:
    return [target.revision for target in selection.targets]


def test_one_branch_for_each_step(pythia):
    found = select_targets(model(revisions=STEP, tokens_per_step=2_097_152), Hub())
    assert found.run == "lab/pythia"
    assert [(target.revision, target.step, target.tokens_seen) for target in found.targets] == [
        ("step0", 0, 0),
        ("step1", 1, 2_097_152),
        ("step512", 512, 1_073_741_824),
        ("step1000", 1000, 2_097_152_000),
        ("step2000", 2000, 4_194_304_000),
    ]
    assert [target.commit for target in found.targets] == [pythia[name] for name in STEPS]
    assert [target.origin for target in found.targets] == [f"lab/pythia@{pythia[name]}" for name in STEPS]
    assert {(target.subfolder, target.path, target.missing_reason, target.stage) for target in found.targets} == {
        ("", None, None, None)
    }


def test_tags_and_branches(publish):
    branch = publish("lab/pythia", "step1", {"config.json": "branch"})
    publish("lab/pythia", "step1", {"config.json": "tag"}, tag=True)
    tag = publish("lab/pythia", "step2", {"config.json": "tag"}, tag=True)
    found = select_targets(model(revisions=STEP), Hub())
    assert [(target.step, target.commit) for target in found.targets] == [(1, branch), (2, tag)]


def test_revisions_with_stage_and_tokens(publish):
    for name in ("stage1-step1000-tokens5B", "stage2-ingredient1-step1000-tokens9B", "main"):
        publish("lab/olmo", name)
    pattern = r"(?P<stage>stage1)-step(?P<step>\d+)-tokens(?P<tokens>\d+B)"
    (found,) = select_targets(model(repository="lab/olmo", revisions=pattern), Hub()).targets
    assert (found.step, found.tokens_seen, found.stage) == (1000, 5_000_000_000, "stage1")


def test_a_revision_with_a_slash_in_its_name(publish):
    commit = publish("lab/pythia", "runs/a/step7")
    (found,) = select_targets(model(revisions=rf".*/{STEP}"), Hub()).targets
    assert (found.revision, found.commit) == ("runs/a/step7", commit)
    (found,) = select_targets(listed(at("lab/pythia", 7, "runs/a/step7")), Hub()).targets
    assert (found.revision, found.commit, found.missing_reason) == ("runs/a/step7", commit, None)


def test_unmatched_revisions_and_missing_steps(pythia, publish):
    publish("lab/pythia", "v1.0", tag=True)
    expected = (0, 1, 2, 4, 512, 1000, 2000, 3000)
    found = select_targets(model(revisions=STEP, expected=expected), Hub(), "step0")
    assert sorted(found.unmatched) == ["main", "v1.0"]
    assert found.missing_steps == (2, 4, 3000)
    assert names(found) == ["step0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("revisions", "chosen"),
    [
        ("all", ["step0", "step1", "step512", "step1000", "step2000"]),
        ("log", ["step0", "step1", "step512", "step1000", "step2000"]),
        ("every:3", ["step0", "step1000", "step2000"]),
        ("step0,step1000", ["step0", "step1000"]),
        ("512, 0", ["step0", "step512"]),
        ("step1,1", ["step1"]),
    ],
)
def test_some_of_the_revisions(pythia, revisions, chosen):
    assert names(select_targets(model(revisions=STEP), Hub(), revisions)) == chosen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("revisions", "message"),
    [
        ("step0,step511", "got names or steps that do not exist: 'step511' \\(closest: 'step512'\\)"),
        ("main", "got names or steps that do not exist: 'main'"),
        ("every:0", 'expected "all", "log", "every:10", or names or steps .* got \'every:0\''),
        ("", "got ''"),
        ("step0,", "got 'step0,'"),
        ("All", "do not exist: 'All'"),
    ],
)
def test_mistyped_revisions(pythia, revisions, message):
    with pytest.raises(ValueError, match=message):
        select_targets(model(revisions=STEP), Hub(), revisions)


def test_two_revisions_of_one_step(pythia, publish):
    publish("lab/pythia", "step512-fixed")
    with pytest.raises(
        ValueError,
        match="expected one checkpoint for each step, got 'step512' and 'step512-fixed' for step 512; name one stage",
    ):
        select_targets(model(), Hub())
    assert names(select_targets(model(revisions=STEP), Hub())) == list(STEPS)


def test_nothing_matches(pythia):
    with pytest.raises(
        ValueError,
        match=r"expected revisions of lab/pythia that match 'global_step.*', got main, step0, step1, .*; check the pattern",
    ):
        select_targets(model(revisions=r"global_step(?P<step>\d+)"), Hub())


def test_one_repository_for_each_checkpoint_one_of_them_missing(publish):
    commits = [publish(f"lab/seed0-{k}k", "main") for k in (0, 20)]
    found = select_targets(
        listed(at("lab/seed0-0k", 0), at("lab/seed0-20k", 20_000), at("lab/seed0-40k", 40_000)), Hub()
    )
    assert names(found) == ["seed0-0k", "seed0-20k", "seed0-40k"]
    assert [target.commit for target in found.targets] == [*commits, ""]
    assert [target.missing_reason is None for target in found.targets] == [True, True, False]
    assert "the hub knows no repository lab/seed0-40k@main (404)" in str(found.targets[2].missing_reason)
    assert found.targets[2].origin == "lab/seed0-40k"
    assert names(select_targets(listed(*(at(f"lab/seed0-{k}k", k) for k in (0, 20))), Hub(), "seed0-20k")) == [
        "seed0-20k"
    ]


def test_a_listed_revision_that_is_missing(publish):
    publish("lab/three", "main")
    found = select_targets(listed(at("lab/three", 0), at("lab/three", 5, "at-5k")), Hub())
    assert names(found) == ["main", "at-5k"]
    assert found.targets[1].missing_reason == "the hub has no such revision of lab/three@at-5k (404)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ([at("lab/x", 0)], ["main"]),
        ([at("lab/x", 0), at("lab/x", 1, "later"), at("lab/x", 2, "later", "sub")], ["main", "later", "later/sub"]),
        ([at("lab/x", 0), at("lab/y", 1, "main", "sub"), at("lab/y", 2, "main2")], ["x", "y/sub", "y/main2"]),
        ([at("one/x", 0), at("two/x", 1)], ["one/x", "two/x"]),
        ([at("gpt2", 0), at("lab/gpt2", 1)], ["gpt2", "lab/gpt2"]),
    ],
    ids=["one", "one repository", "several", "of several owners", "of no owner"],
)
def test_listed_checkpoints_have_distinct_names(hub, checkpoints, expected):
    assert names(select_targets(listed(*checkpoints), Hub())) == expected


def test_folders_of_the_main_branch(publish):
    files = {f"{folder}/config.json": "{}" for folder in ("checkpoint-20", "checkpoint-5", "runs/checkpoint-9")}
    commit = publish("lab/uploaded", "main", files | {"config.json": "{}", "checkpoint-7/notes.txt": ""})
    found = select_targets(model(repository="lab/uploaded", subfolders=r"checkpoint-(?P<step>\d+)"), Hub())
    assert [(target.step, target.subfolder, target.revision) for target in found.targets] == [
        (5, "checkpoint-5", "checkpoint-5"),
        (20, "checkpoint-20", "checkpoint-20"),
    ]
    assert found.targets[0].origin == f"lab/uploaded@{commit}/checkpoint-5"
    assert found.unmatched == ("runs/checkpoint-9",)


def test_a_missing_repository(hub):
    with pytest.raises(CheckpointError, match="the hub knows no repository lab/pythia \\(404\\); if it is private"):
        select_targets(model(revisions=STEP), Hub())
    with pytest.raises(ValueError, match="expected a repository or a list of checkpoints for pythia, got neither"):
        select_targets(model(repository=None), Hub())


def test_without_a_connection_nothing_is_missing(hub):
    hub.__exit__()
    huggingface_hub.close_session()
    for described in (model(revisions=STEP), listed(at("lab/x", 0))):
        with pytest.raises(SweepStoppedError, match="no connection to http://127.0.0.1"):
            select_targets(described, Hub())


def test_the_checkpoint_of_rows():
    target = Target("run", 8, "step8", 80, "stage1", repository="lab/m", commit="c" * 40, subfolder="a/b")
    row = target.checkpoint
    assert (row.run, row.step, row.tokens_seen, row.stage, row.revision) == ("run", 8, 80, "stage1", "step8")
    assert row.checkpoint == f"lab/m@{'c' * 40}/a/b"
    assert Target("run", 8, "step8", path=Path("/x/step8")).checkpoint.checkpoint == "/x/step8"


def test_another_commit_is_another_checkpoint():
    one, other = (Target("run", 8, "step8", repository="lab/m", commit=digit * 40) for digit in "ab")
    assert one.key("p", "m") != other.key("p", "m")
    assert one.key("p", "m").filename != other.key("p", "m").filename


@pytest.mark.slow
@pytest.mark.parametrize("run", ["../../x", "..", "/etc/x", "a/../../x", ".hidden", "~", "a\\..\\x", "lab/model"])
@pytest.mark.parametrize("revision", ["../../../step8", "refs/heads/step8", "/step8"])
def test_names_stay_inside_the_store(run, revision, tmp_path):
    store = open_store(tmp_path / "store")
    target = Target(run, 8, revision, repository="lab/m", commit="a" * 40)
    file = (store.path / target.key("p", "m").filename).resolve()
    assert file.parent.parent == store.path.resolve()
