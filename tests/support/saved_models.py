"""Small saved models for the studies and the explorer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from repdyn.activations import LoadedModel
    from repdyn.lab.explorer.session import Session

SIZES = {"vocab_size": 260, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 64}
MARKUP = ("<script>alert(1)</script>", "${alert(2)}", "{{value}}")
"""Each one token of the explorer's models, and nothing but text."""

# What only these fixtures need is imported in them: this file is loaded for every test.


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[..., Path]:
    """Saves an untrained model, and with it a tokenizer of bytes, in a folder of its own."""
    from repdyn.data.tokens import byte_tokenizer
    from repdyn.models import build_model

    def save(
        name: str = "model",
        family: str = "bert",
        *,
        seed: int = 0,
        tokenizer: bool = True,
        **sizes: int,
    ) -> Path:
        folder = tmp_path / name
        torch.manual_seed(seed)
        build_model(family, **{**SIZES, **sizes}).save_pretrained(folder)
        if tokenizer:
            byte_tokenizer().save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def load(save_model) -> Callable[..., LoadedModel]:
    """A model of its own folder, whose tokenizer knows :data:`MARKUP` as well."""

    def loaded(name: str, family: str, **settings: int) -> LoadedModel:
        return load_folders(save_with_markup(save_model, name, family, **settings))[0]

    return loaded


@pytest.fixture
def session(load) -> Session:
    """An encoder and a decoder side by side."""
    from repdyn.lab.explorer.session import Session

    return Session(
        [load("an encoder", "bert"), load("a decoder", "gpt_neox")], nearest=3, max_tokens=40
    )


def save_with_markup(
    save_model: Callable[..., Path], name: str, family: str, **settings: int
) -> Path:
    from transformers import AutoTokenizer

    folder = save_model(name, family, **{"vocab_size": 264, **settings})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(MARKUP))
    tokenizer.save_pretrained(folder)
    return folder


def load_folders(*folders: Path | str, **changes: object) -> list[LoadedModel]:
    from repdyn.activations import load_models

    settings = {"device": "cpu", "timeout": 60, **changes}
    return list(load_models([*map(str, folders)], release=False, with_heads=True, **settings))
