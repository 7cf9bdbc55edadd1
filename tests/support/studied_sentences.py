"""Sentences in groups, for the study of sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from repdyn.activations import LoadedModel, load_models
from repdyn.data.tokens import byte_tokenizer


def names(*models, **loading) -> list[str]:
    return [subject.name for subject in load_models([*map(str, models)], **loading)]


def grouped(n_groups=8, n_each=4, dim=20, spread=1.0, seed=0) -> tuple[np.ndarray, list[int]]:
    """Sentences around the middle of their group."""
    random = np.random.default_rng(seed)
    middles = random.normal(size=(n_groups, dim))
    vectors = np.repeat(middles, n_each, axis=0) + spread * random.normal(
        size=(n_groups * n_each, dim)
    )
    return vectors, np.repeat(range(n_groups), n_each).tolist()


def split(vectors: np.ndarray, groups: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Cosines within and between, one pair after the other."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    values = {True: [], False: []}
    for a in range(len(unit)):
        for b in range(a):
            is_within = groups[a] == groups[b]
            values[is_within].append(unit[a] @ unit[b])
    return np.array(values[True]), np.array(values[False])


GROUPS = {
    "cats": ["a cat", "one cat sat", "cats"],
    "dogs": ["a dog", "the dog"],
    "rain": ["it rains", "wet", "rain"],
}


CHANGED = {
    "more": [["a cat", "cats"], ["a dog", "dogs"]],
    "not": [["he runs", "he runs not"], ["i eat", "i eat not"]],
}


@pytest.fixture
def files(tmp_path) -> list[str | Path]:
    """Options for small inputs."""
    groups, changes, text = (
        tmp_path / name for name in ("groups.json", "changes.json", "text.txt")
    )
    groups.write_text(json.dumps(GROUPS))
    changes.write_text(json.dumps(CHANGED))
    text.write_text("\n\n".join(f"paragraph {n} of {n * n}" for n in range(20)))
    return [
        "--groups",
        groups,
        "--changes",
        changes,
        "--text",
        text,
        "--texts",
        "8",
        "--other",
        "builtin",
    ]


@pytest.fixture
def subject(save_model):
    folder = save_model("bert")
    return LoadedModel("bert", AutoModel.from_pretrained(folder).eval(), byte_tokenizer())
