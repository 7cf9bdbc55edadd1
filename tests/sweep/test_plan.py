"""What --dry-run and --list-suites say, and what they fetch for it: nothing but listings."""

from __future__ import annotations

import io
import json
import re

import huggingface_hub
import pytest
from rich.console import Console

from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.model_config import ModelShape
from repdyn.checkpoints.plan import ModelPlan, gigabytes, plan_fields, print_plan, selection_notes
from repdyn.checkpoints.planned_files import list_files
from repdyn.checkpoints.suite_list import print_suites, suite_fields
from repdyn.checkpoints.suites import PublishedModel, shipped_suites
from repdyn.checkpoints.targets import Selection, Target, select_targets
from repdyn.checkpoints.plan import ForeignWeights
from repdyn.utils.names import shorten_list


def printed(act, *arguments) -> str:
    written = io.StringIO()
    act(*arguments, Console(file=written, width=200))
    return written.getvalue()


@pytest.fixture
def selection(hub, family) -> Selection:
    for step, folder in family.items():
        hub.publish("lab/model", f"step{step}", folder)
    return select_targets(PublishedModel("model", "", "lab/model", "lab/model", r"step(?P<step>\d+)"), Hub())


def numbers(shown: str, run: str) -> list[str]:
    (line,) = [line for line in shown.splitlines() if line.startswith(f"{run} ")]
    return re.split(r" {2,}", line.strip())[1:]


def test_a_line_for_each_model(hub, family, selection):
    weights = (family[0] / "model.safetensors").stat().st_size
    beside = sum((family[0] / name).stat().st_size for name in ("config.json", "generation_config.json"))
    n_requests = len(hub.requests)
    other = Selection("lab/other", selection.targets[:1])
    shown = printed(print_plan, [ModelPlan(selection, selection.targets[1:], 1, 0), ModelPlan(other, [], 0, 1)], Hub())
    size, both = gigabytes(weights + beside), gigabytes(2 * (weights + beside))
    assert numbers(shown, "lab/model") == ["step0, step8, step16", "1", "0", "2", both, size]
    assert numbers(shown, "lab/other") == ["step0", "0", "1", "0", "0 GB", "0 GB"]
    assert f"{both} to download in total" in shown
    asked = hub.requests[n_requests:]
    listings = [path for _, path in asked if path.startswith("/api/models/lab/model/tree/")]
    # and the configuration of the first of them
    assert [path for _, path in asked if path not in listings] == [
        f"/lab/model/resolve/{selection.targets[1].commit}/config.json"
    ]
    assert len(listings) == 2


def test_a_plan_as_fields(hub, family, selection):
    files = ("model.safetensors", "config.json", "generation_config.json")
    size = sum((family[0] / name).stat().st_size for name in files)
    missing = Target("lab/model", 9, "step9", repository="lab/model", missing_reason="the hub has no such revision")
    part = ModelPlan(selection, [*selection.targets[1:], missing], 1, 0, {"step1": ForeignWeights("step0")})
    (fields,) = plan_fields([part], Hub())
    assert fields == {
        **{
            "model": "lab/model",
            "design": None,
            "checkpoints": ["step0", "step8", "step16"],
            "waiting": ["step8", "step16", "step9"],
        },
        **{"done": 1, "failed_before": 0, "download_bytes": 2 * size, "largest_bytes": size},
        **{
            "same_as": {"step1": "step0"},
            "mixed_with": {},
            "would_fail": ["lab/model step9: the hub has no such revision"],
        },
    }


def test_suites_as_fields():
    suites = {suite["name"]: suite for suite in suite_fields()}
    assert list(suites) == [suite.name for suite in shipped_suites().values()]
    assert "pythia-70m" in suites["pythia"]["models"]


def test_expected_failures_are_listed(hub, family, selection):
    (family[8] / "model.safetensors").unlink()
    commit = hub.publish("lab/model", "step8", family[8])
    unreadable = Target("lab/model", 8, "step8", repository="lab/model", commit=commit)
    missing = Target("lab/model", 9, "step9", repository="lab/model", missing_reason="the hub has no such revision")
    part = ModelPlan(selection, [selection.targets[0], unreadable, missing], 0, 0)
    shown = printed(print_plan, [part], Hub()).splitlines()
    assert shown[-2].startswith("would fail: lab/model step8: it has no weights that can be read")
    assert shown[-1] == "would fail: lab/model step9: the hub has no such revision"


def test_models_that_only_another_package_loads(hub, family, selection):
    """As those of DataDecide: what is downloaded for them would be of no use."""
    for step, folder in family.items():
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "hf_olmo"}))
        hub.publish("lab/olmo", f"step{step}", folder)
    olmo = select_targets(PublishedModel("olmo", "", "lab/olmo", "lab/olmo", r"step(?P<step>\d+)"), Hub())
    parts = [ModelPlan(each, each.targets, 0, 0) for each in (selection, olmo)]
    shown = printed(print_plan, parts, Hub())
    assert numbers(shown, "lab/olmo")[-3:] == ["3", "0 GB", "0 GB"]
    (problem,) = [line for line in shown.splitlines() if line.startswith("would fail: ")]
    assert problem.startswith("would fail: lab/olmo: the checkpoint loads only with hf_olmo")
    fields = plan_fields(parts, Hub())
    assert [len(each["would_fail"]) for each in fields] == [0, 1]
    assert fields[1]["download_bytes"] == 0


def test_a_configuration_that_cannot_be_read(hub, selection):
    """The plan is made without it."""
    hub.fault("resolve/.*config.json", "status", code=404, headers={"X-Error-Code": "EntryNotFound"})
    (files,) = list_files([selection.targets], Hub())
    assert files.files.shape is None
    assert len(files.files.checkpoints) == 3
    hub.faults.clear()
    (files,) = list_files([selection.targets], Hub())
    assert files.files.shape == ModelShape(n_layers=2, width=16, vocabulary=260, weight_bytes=4)


def test_cached_files_are_not_downloaded(selection, family):
    huggingface_hub.snapshot_download("lab/model", revision=selection.targets[0].commit)
    local = Selection("here", (Target("here", 0, "step0", path=family[0]),))
    parts = [ModelPlan(selection, selection.targets[:1], 0, 0), ModelPlan(local, local.targets, 0, 0)]
    shown = printed(print_plan, parts, Hub())
    assert numbers(shown, "lab/model")[-3:] == numbers(shown, "here")[-3:] == ["1", "0 GB", "0 GB"]


def test_names_are_not_interpreted_as_markup():
    part = ModelPlan(Selection("[bold]run", (Target("[bold]run", 0, "[red]step0"),)), [], 1, 0)
    assert numbers(printed(print_plan, [part], Hub()), "[bold]run") == ["[red]step0", "1", "0", "0", "0 GB", "0 GB"]


def test_notes():
    nothing = Selection("lab/model", (Target("lab/model", 0, "step0"),))
    assert selection_notes(nothing) == []
    something = Selection("lab/model", nothing.targets, unmatched=("main", "v1"), missing_steps=tuple(range(10)))
    assert selection_notes(something) == [
        "lab/model: described, but not on the hub: 0, 1, 2, 3, 4 .. 9 (10)",
        "lab/model: ignored, because they do not match the pattern or have no step in their names: main, v1",
    ]


def test_words():
    assert shorten_list([str(number) for number in range(6)]) == "0, 1, 2, 3, 4, 5"
    assert shorten_list([str(number) for number in range(7)]) == "0, 1, 2, 3, 4 .. 6 (7)"
    assert [gigabytes(n) for n in (0, 10**7, 999_999, 3.649e12)] == ["0 GB", "0.01 GB", "0.001 GB", "3649 GB"]


@pytest.mark.slow
def test_every_suite_and_model_is_listed():
    shown = " ".join(printed(print_suites).split())
    for suite in shipped_suites().values():
        assert f"{suite.name} {suite.title}" in shown
        assert all(model.name in shown for model in suite.models)
