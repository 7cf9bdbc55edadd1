"""Checkpoints that are commits of one branch, found by the titles of the commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweeping import main as sweep

from repdyn import open_store
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.targets import Selection

BRANCH = "tiny-1"
SAVED = "Saving HF Model -- Step {}"
PATTERN = r"Saving HF Model -- Step (?P<step>\d+)"


@pytest.fixture
def commits(hub, family, tmp_path) -> dict[int, str]:
    """Publish the family as commits of one branch, with commits between them that are no
    checkpoints.
    """
    published = {}
    for step, folder in family.items():
        published[step] = hub.publish("lab/tiny", BRANCH, folder, title=SAVED.format(step))
        (folder / "gradients.json").write_text(str(step))
        hub.publish(
            "lab/tiny", BRANCH, folder, title=f"Saving Learning Dynamics Data -- Step {step}"
        )
    hub.publish("lab/tiny", "main", family[16], title="Create README.md")
    return published


def model(**fields) -> PublishedModel:
    described: dict[str, Any] = {
        "name": "tiny",
        "suite": "",
        "run": "lab/tiny",
        "repository": "lab/tiny",
    }
    return PublishedModel(**{**described, "commits": PATTERN, "branch": BRANCH, **fields})


def steps(selection: Selection) -> list[tuple[int, str, str]]:
    return [(target.step, target.revision, target.commit) for target in selection.targets]


@pytest.fixture
def suite(tmp_path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"title: mine\ncard: here\nmodels:\n  - name: tiny\n    repository: lab/tiny\n    "
        f"branch: {BRANCH}\n"
        f"    commits: '{PATTERN}'\n    expected: [0, 8, 16, 24]\n    unverified: the titles\n"
    )
    return path


def test_each_step_is_the_commit_with_its_title(commits):
    selection = select_targets(model(tokens_per_step=100), Hub())
    assert steps(selection) == [(step, f"step{step}", commit) for step, commit in commits.items()]
    assert [target.tokens_seen for target in selection.targets] == [0, 800, 1600]
    assert [target.origin for target in selection.targets] == [
        f"lab/tiny@{commit}" for commit in commits.values()
    ]
    assert selection.unmatched == tuple(
        f"Saving Learning Dynamics Data -- Step {step}" for step in (16, 8, 0)
    )
    assert selection.last == selection.targets[-1]
    assert selection.main is None


def test_all_pages_are_read(hub, commits):
    hub.commits_per_page = 2
    assert steps(select_targets(model(), Hub())) == [
        (step, f"step{step}", name) for step, name in commits.items()
    ]
    assert len([path for _, path in hub.requests if "/commits/" in path]) == 3


def test_of_two_commits_of_a_step_the_newest_counts(hub, family, commits):
    newest = hub.publish("lab/tiny", BRANCH, family[0], title=SAVED.format(8))
    found = select_targets(model(), Hub())
    assert [commit for *_, commit in steps(found)] == [commits[0], newest, commits[16]]


def test_a_sweep_measures_each_commit_once(commits, suite, tmp_path, capsys):
    arguments = [
        "--suite",
        str(suite),
        "--text",
        "builtin",
        "--max-vectors",
        "64",
        "--store",
        str(tmp_path / "store"),
    ]
    with pytest.raises(SystemExit) as ended:
        sweep([*arguments, "--dry-run", "--json"])
    printed = capsys.readouterr()
    (plan,) = json.loads(printed.out)
    assert ended.value.code == 0
    assert plan["waiting"] == ["step0", "step8", "step16"]
    notes = " ".join(printed.err.split())
    assert "lab/tiny: not verified, since no page of the publisher states it: the titles" in notes
    assert "lab/tiny: described, but not on the hub: 24" in notes
    with pytest.raises(SystemExit) as ended:
        sweep([*arguments, "--revisions", "0,8"])
    assert ended.value.code == 0
    store = open_store(tmp_path / "store")
    assert store.steps("lab/tiny") == [0, 8]
    with pytest.raises(SystemExit) as ended:
        sweep(arguments)
    assert ended.value.code == 0
    assert "2 of 3 checkpoints are in" in " ".join(capsys.readouterr().err.split())
    rows = store.to_pandas()
    assert dict(zip(rows["revision"], rows["checkpoint"], strict=True)) == {
        f"step{step}": f"lab/tiny@{commit}" for step, commit in commits.items()
    }
