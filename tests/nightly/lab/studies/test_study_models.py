"""From what the command line names to loaded models: folders, repositories, revisions, and what
goes wrong.
"""

from __future__ import annotations

import json
import time

import pytest
from studied_sentences import names
from text_fixtures import cache as cache  # of every test its own

from repdyn.activations import load_models
from repdyn.checkpoints.errors import CheckpointError


def test_a_repository_at_revisions(save_model, hub):
    for step in (1, 2):
        hub.publish("lab/small", f"step{step}", save_model(f"s{step}", seed=step))
    hub.publish("lab/small", "main", save_model("end", seed=3))
    seen = {
        subject.name: next(subject.model.parameters()).sum().item()
        for subject in load_models(["lab/small@step1", "lab/small"], revisions=("step2",))
    }
    assert list(seen) == ["lab/small@step1", "lab/small@step2"]
    assert len(set(seen.values())) == 2
    assert names("lab/small") == ["lab/small"]


@pytest.mark.parametrize("what", ["/api/", "safetensors"])
def test_a_hub_that_drips_ends_with_the_timeout(save_model, hub, what):
    hub.publish("lab/small", "main", save_model())
    hub.fault(what, "slow", bytes_per_second=20)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="longer than the limit of time"):
        names("lab/small", timeout=1)
    assert time.monotonic() - started < 10


def test_code_is_neither_fetched_nor_run(save_model, hub, tmp_path):
    folder = save_model()
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "auto_map": {"AutoModel": "own.Own", "AutoConfig": "own.OwnConfig"},
        "model_type": "own",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    hub.publish("lab/own", "main", folder)
    with pytest.raises(CheckpointError, match="allow it with trust_remote_code=True"):
        names("lab/own")
    assert not any(path.endswith("own.py") for _, path in hub.requests)
    assert not (tmp_path / "ran").exists()
