"""Small saved models, loaded for the explorer."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from studies.conftest import save_model
from transformers import AutoTokenizer

from repdyn.explorer.session import Session
from repdyn.studies.models import LoadedModel, load_models

__all__ = ["save_model"]

MARKUP = ("<script>alert(1)</script>", "${alert(2)}", "{{value}}")
"""Each one token of the models here, and nothing but text."""


@pytest.fixture
def load(save_model) -> Callable[..., LoadedModel]:
    """A model of its own folder, whose tokenizer knows :data:`MARKUP` as well."""

    def loaded(name: str, family: str, **settings: int) -> LoadedModel:
        return load_folders(save_with_markup(save_model, name, family, **settings))[0]

    return loaded


@pytest.fixture
def session(load) -> Session:
    """An encoder and a decoder side by side."""
    return Session([load("an encoder", "bert"), load("a decoder", "gpt_neox")], nearest=3, max_tokens=40)


def save_with_markup(save_model: Callable[..., Path], name: str, family: str, **settings: int) -> Path:
    folder = save_model(name, family, **{"vocab_size": 264, **settings})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(MARKUP))
    tokenizer.save_pretrained(folder)
    return folder


def load_folders(*folders: Path | str, **changes: object) -> list[LoadedModel]:
    defaults = {"revisions": (), "tokenizer": None, "device": "cpu", "dtype": "float32", "trust_remote_code": False}
    defaults["timeout"] = 60
    options = argparse.Namespace(models=list(map(str, folders)), **{**defaults, **changes})
    return list(load_models(options, release=False, with_heads=True))
