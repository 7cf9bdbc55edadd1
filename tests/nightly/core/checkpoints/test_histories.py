"""Audits of histories on a hub on this machine, which repeats each fault that users reported of the
real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from repdyn.checkpoints.audit import Finding, audit, foreign_targets, models_to_audit
from repdyn.checkpoints.histories import list_histories
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedModel

PYTHIA = PublishedModel(
    name="model",
    suite="",
    run="lab/model",
    repository="lab/model",
    revisions=r"step(?P<step>\d+)",
    expected=(0, 143000),
)
Publish = Callable[..., str]


@pytest.fixture
def publish(hub, tmp_path) -> Publish:
    """Return a function that publishes weights, a text or files by name, at a branch."""

    def publish(revision: str, weights: str | Mapping[str, str]) -> str:
        files = {"model.safetensors": weights} if isinstance(weights, str) else weights
        folder = tmp_path / f"published-{revision}"
        for name, content in {"config.json": "{}", "README.md": revision, **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content.ljust(64))  # files of one size
        return hub.publish("lab/model", revision, folder)

    return publish


def findings(model: PublishedModel = PYTHIA, revisions: str = "all", **more) -> list[Finding]:
    (history,) = list_histories([select_targets(model, Hub(), revisions)], Hub(), **more)
    return audit(history)


def described(found: list[Finding]) -> list[tuple[str, tuple[str, ...], str | None]]:
    return [(finding.kind, finding.revisions, finding.same_as) for finding in found]


def test_most_branches_serve_the_main_branch(hub, publish):
    for revision in ("step0", "step1", "step2", "main"):
        publish(revision, "final weights")
    publish("step1000", "own")
    publish("step54000", "second")
    publish("step143000", "second")
    assert described(findings()) == [
        ("final weights", ("step0", "step1", "step2"), "main"),
        ("final weights", ("step54000",), "step143000"),
    ]
    assert described(findings(revisions="step54000,1000")) == [
        ("final weights", ("step54000",), "step143000")
    ]
    assert not any("/resolve/" in path for _, path in hub.requests), "a file was downloaded"


def test_which_checkpoints_are_mixtures(publish):
    """Those with files of the end that a later one lacks; a file that all have from some step on is
    not trained.
    """
    publish(
        "step0",
        {"model-00001-of-00002.safetensors": "a0", "model-00002-of-00002.safetensors": "b0"},
    )
    publish(
        "step1",
        {"model-00001-of-00002.safetensors": "a2", "model-00002-of-00002.safetensors": "b1"},
    )
    publish(
        "step2",
        {"model-00001-of-00002.safetensors": "a1", "model-00002-of-00002.safetensors": "b2"},
    )
    publish(
        "step4",
        {"model-00001-of-00002.safetensors": "a2", "model-00002-of-00002.safetensors": "b3"},
    )
    publish(
        "step143000",
        {"model-00001-of-00002.safetensors": "a2", "model-00002-of-00002.safetensors": "b4"},
    )
    (history,) = list_histories([select_targets(PYTHIA, Hub(), "all")], Hub())
    found = foreign_targets(history, audit(history))
    assert {target.revision: marks for target, marks in found.items()} == {
        "step1": {"mixed_with": "step143000"}
    }


def test_names_of_models(tmp_path):
    endpoint = "https://hub.example"
    assert [model.name for model in models_to_audit("pythia-70m-d*", endpoint)] == [
        "pythia-70m-deduped"
    ]
    assert [model.name for model in models_to_audit("EleutherAI/pythia-70m", endpoint)] == [
        "pythia-70m"
    ]
    assert len(models_to_audit("allenai/OLMo-2-0425-1B", endpoint)) == 4
    address = f"{endpoint}/lab/model/tree/step0?x=y"
    assert [model.repository for model in models_to_audit(address, endpoint)] == ["lab/model"]
    for wrong in ("https://elsewhere/lab/model", "/lab/model", str(tmp_path)):
        with pytest.raises(ValueError, match="hub repository"):
            models_to_audit(wrong, endpoint)
    address = "https://huggingface.co/lab/model/tree/main"  # of which the endpoint may be a mirror
    assert [model.repository for model in models_to_audit(address, endpoint)] == ["lab/model"]
    with pytest.raises(ValueError, match="did you mean"):
        models_to_audit("pythia-70n", endpoint)
