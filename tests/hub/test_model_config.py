"""What a configuration says of a model, and that one from anywhere is read without harm."""

from __future__ import annotations

import json

import pytest

from repdyn.checkpoints.model_config import ModelShape, parse_config, reason_not_loadable, shape_of

PYTHIA = {"hidden_size": 512, "num_hidden_layers": 6, "vocab_size": 50304, "torch_dtype": "float16"}


def test_names_of_several_architectures():
    assert shape_of(PYTHIA) == ModelShape(6, 512, 50304, 2)
    assert shape_of({"n_embd": 768, "n_layer": 12, "vocab_size": 50257}) == ModelShape(12, 768, 50257, 4)
    assert shape_of({"d_model": 8, "num_layers": 2, "vocab_size": 9, "dtype": "bfloat16"}) == ModelShape(2, 8, 9, 2)
    assert shape_of({"model_type": "both", "text_config": PYTHIA}) == shape_of(PYTHIA)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"\xff{",
        b"[" * 100_000,
        *(json.dumps(PYTHIA | {"hidden_size": value}).encode() for value in (None, 0, -1, "512", True, 1e3, 10**9)),
        json.dumps({"text_config": 3, "hidden_size": [512]}).encode(),
    ],
)
def test_content_without_a_shape(content):
    config = parse_config(content)
    assert shape_of(config) is None
    assert reason_not_loadable(config) is None


def test_a_precision_that_is_none():
    assert shape_of(PYTHIA | {"torch_dtype": ["float16"]}) == ModelShape(6, 512, 50304, 4)


def test_models_of_another_package():
    reason = reason_not_loadable({"model_type": "hf_olmo"})
    assert reason is not None
    assert "loads only with hf_olmo" in reason
    assert reason_not_loadable({"model_type": "olmo"}) is None
