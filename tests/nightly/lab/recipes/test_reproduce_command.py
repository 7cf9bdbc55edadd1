"""The whole command against a hub on this machine: it measures, judges, and writes table, figure
and page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hub_fixtures import save_again

from repdyn import open_store

RECIPE = """
title: A paper on small models
paper: '2311.05928'
address: https://arxiv.org/abs/2311.05928
stated: 2026-11-23
models: [lab/model]
cloud: {design: independent, text: builtin, max_vectors: 8192, sequence_length: 12}
metrics: [anisotropy, effective_rank_of_variance, effective_rank_of_variance@last_token.normed]
differs: [everything is small]
published:
  - claim: The rank hardly changes
    source: figure 1
    metric: effective_rank_of_variance@last_token.normed
    criterion: {kind: between, bounds: [2, 16], layers: last}
    points: [[0, 12], [8, 13]]
  - claim: The rank grows to six times its size, and falls again
    source: figure 2
    metric: effective_rank_of_variance
    criterion: {kind: phases, phases: [rise, fall], more: [5, 5]}
  - claim: Half of everything is <known>
    source: table 1
    not_run: there are no labels
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def published(hub, family) -> dict[int, str]:
    return {
        step: hub.publish("lab/model", f"step{step}", folder) for step, folder in family.items()
    }


def test_a_recipe_from_end_to_end(hub, published, recipe, command, tmp_path):
    arguments = (recipe, "--downloads", tmp_path / "downloads", "--device", "cpu")
    status, out, err = command(*arguments, "--dry-run", "--json")
    assert status == 0
    assert err == ""
    assert json.loads(out)[0]["waiting"] == ["step0", "step8", "step16"]
    assert not (tmp_path / "reproductions").exists()

    status, out, err = command(*arguments)
    assert status == 1
    assert re.search(
        r"^1\. The rank hardly changes \(figure 1\)\n  lab/model +reproduced +[0-9.]+ ",
        out,
        re.MULTILINE,
    )
    assert re.search(r"^2\. .*\n  lab/model +not reproduced +.*step 8", out, re.MULTILINE)
    assert re.search(r"^3\. .*\n  not run +there are no labels", out, re.MULTILINE)
    assert "1 reproduced, 1 not reproduced, 1 not run" in out
    folder = tmp_path / "reproductions" / "small"
    assert out.endswith("page: reproductions/small/small.html\n")
    assert open_store(folder).steps("lab/model") == [0, 8, 16]
    assert (folder / "small.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "small.svg").read_text()
    page = (folder / "small.html").read_text()
    for text in (
        "Half of everything is &lt;known&gt;",
        "there are no labels",
        "everything is small",
        "2026-11-23",
    ):
        assert text in page
    assert "data:image/png;base64," in page
    assert "in doubt" not in page
    assert not re.search(r"(src|href)=\"(?!data:|https://arxiv\.org/abs/2311\.05928)", page)

    # nothing is asked of the hub a second time
    n_requests = len(hub.requests)
    status, again, _ = command(recipe, "--evaluate-only", "--json", "-o", tmp_path / "elsewhere")
    assert status == 1
    assert len(hub.requests) == n_requests
    outcomes = json.loads(again)
    assert [outcome["verdict"] for outcome in outcomes] == [
        "reproduced",
        "not reproduced",
        "not run",
    ]
    assert outcomes[0]["run"] == "lab/model"
    assert outcomes[2]["ours"] == "there are no labels"
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {
        "small.html",
        "small.png",
        "small.svg",
    }


def test_checkpoints_in_doubt(hub, family, recipe, command, tmp_path):
    hub.publish("lab/model", "step0", family[0])
    hub.publish("lab/model", "step8", family[8])
    hub.publish("lab/model", "step16", save_again(family[8], tmp_path / "again"))
    _, out, err = command(recipe, "--downloads", tmp_path / "downloads", "--device", "cpu")
    doubt = "lab/model: Steps 8 and 16 have the same values to the last bit: "
    assert doubt in err
    assert doubt not in out
    page = (tmp_path / "reproductions" / "small" / "small.html").read_text()
    assert "Checkpoints in doubt" in page
    assert doubt in page
