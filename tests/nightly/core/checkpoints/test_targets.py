"""Which checkpoints a published history has, where each lies, and what is not as its description
says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel
from repdyn.checkpoints.targets import Selection

STEP = r"step(?P<step>\d+)"


@pytest.fixture
def publish(hub, tmp_path) -> Callable[..., str]:
    """Publishes files, by path, at a revision; their content does not matter here."""

    def publish(
        repository: str,
        revision: str,
        files: Mapping[str, str] = {"config.json": "{}"},
        *,
        tag: bool = False,
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
    described: dict[str, Any] = {
        "name": "pythia",
        "suite": "",
        "run": "lab/pythia",
        "repository": "lab/pythia",
    }
    return PublishedModel(**described | fields)


def listed(*checkpoints: PublishedCheckpoint, **fields) -> PublishedModel:
    return model(
        **{"repository": None, "checkpoints": checkpoints, "run": "lab/one-by-one"} | fields
    )


def at(repository: str, step: int, revision: str = "main") -> PublishedCheckpoint:
    return PublishedCheckpoint(repository, step, revision)


def names(selection: Selection) -> list[str]:
    return [target.revision for target in selection.targets]


def test_one_branch_for_each_step(pythia):
    selection = select_targets(model(revisions=STEP, tokens_per_step=2_097_152), Hub())
    assert selection.run == "lab/pythia"
    assert [(target.revision, target.step, target.tokens_seen) for target in selection.targets] == [
        ("step0", 0, 0),
        ("step1", 1, 2_097_152),
        ("step512", 512, 1_073_741_824),
        ("step1000", 1000, 2_097_152_000),
        ("step2000", 2000, 4_194_304_000),
    ]
    assert [target.commit for target in selection.targets] == [pythia[name] for name in STEPS]
    assert [target.origin for target in selection.targets] == [
        f"lab/pythia@{pythia[name]}" for name in STEPS
    ]
    assert {(target.path, target.missing_reason, target.stage) for target in selection.targets} == {
        (None, None, None)
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
    (selection,) = select_targets(model(repository="lab/olmo", revisions=pattern), Hub()).targets
    assert selection.step == 1000
    assert selection.tokens_seen == 5_000_000_000
    assert selection.stage == "stage1"


def test_unmatched_revisions_and_missing_steps(pythia, publish):
    publish("lab/pythia", "v1.0", tag=True)
    expected = (0, 1, 2, 4, 512, 1000, 2000, 3000)
    selection = select_targets(model(revisions=STEP, expected=expected), Hub(), "step0")
    assert sorted(selection.unmatched) == ["main", "v1.0"]
    assert selection.missing_steps == (2, 4, 3000)
    assert names(selection) == ["step0"]


def test_one_repository_for_each_checkpoint_one_of_them_missing(publish):
    commits = [publish(f"lab/seed0-{k}k", "main") for k in (0, 20)]
    selection = select_targets(
        listed(at("lab/seed0-0k", 0), at("lab/seed0-20k", 20_000), at("lab/seed0-40k", 40_000)),
        Hub(),
    )
    assert names(selection) == ["lab/seed0-0k", "lab/seed0-20k", "lab/seed0-40k"]
    assert [target.commit for target in selection.targets] == [*commits, ""]
    assert [target.missing_reason is None for target in selection.targets] == [True, True, False]
    assert "the hub knows no repository lab/seed0-40k@main (404)" in str(
        selection.targets[2].missing_reason
    )
    assert selection.targets[2].origin == "lab/seed0-40k"
    few = listed(*(at(f"lab/seed0-{k}k", k) for k in (0, 20)))
    assert names(select_targets(few, Hub(), "lab/seed0-20k")) == ["lab/seed0-20k"]


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ([at("lab/x", 0)], ["main"]),
        ([at("lab/x", 0), at("lab/x", 1, "later")], ["main", "later"]),
        ([at("lab/x", 0), at("lab/y", 2, "main2")], ["lab/x", "lab/y/main2"]),
    ],
    ids=["one", "one repository", "several"],
)
def test_listed_checkpoints_have_distinct_names(hub, checkpoints, expected):
    assert names(select_targets(listed(*checkpoints), Hub())) == expected
