"""Plans of small experiments."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from experiments.materials import Materials
from experiments.plan import Plan

PROBE = {"max_vectors": 256, "batch_vectors": 128}

PLAN_OF_EXPERIMENT_RUN = {
    "name": "tiny",
    "text": {"sha256": None},
    "vocab_size": 512,
    "training": {"max_steps": 40, "precision": "32-true", "gradient_clip_val": 1.0},
    "model": {
        "hidden_size": 16,
        "n_layers": 5,
        "n_heads": 2,
        "global_attention": True,
        "warmup_steps": 8,
    },
    "data": {
        "sequence_length": 32,
        "batch_size": 4,
        "bos": True,
        "mask_probability": 0.3,
        "max_bytes": 200_000,
    },
    "schedule": {"every": 8},
    "probes": {
        "a": {"split": "validation", "design": "independent", **PROBE},
        "b": {"split": "test", "design": "independent", **PROBE},
    },
    "arms": {
        "causal": {"seeds": [1], "model": {"family": "modernbert-decoder"}},
        "masked": {"seeds": [1], "weights_seed": 1000, "model": {"family": "modernbert"}},
    },
}


def write(path: Path, **changes) -> Path:
    path.write_text(yaml.safe_dump({**PLAN_OF_EXPERIMENT_RUN, **changes}))
    return path


@pytest.fixture(scope="module")
def materials(plan_file, tmp_path_factory) -> Materials:
    materials = Materials(Plan.read(plan_file), "builtin", tmp_path_factory.mktemp("materials"))
    materials.prepare()
    return materials


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("plan") / "plan.yaml")
