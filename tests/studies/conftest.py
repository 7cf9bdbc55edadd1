"""Small saved models for the studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.models import build_model

SIZES = {"vocab_size": 260, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 64}


@pytest.fixture(autouse=True)
def _quick_images(quick_images: None) -> None:
    """Every study ends in figures; how figures are written is tested with those of runs."""


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[..., Path]:
    """Saves an untrained model, and with it a tokenizer of bytes, in a folder of its own."""

    def save(name: str = "model", family: str = "bert", *, seed: int = 0, tokenizer: bool = True, **sizes: int) -> Path:
        folder = tmp_path / name
        torch.manual_seed(seed)
        build_model(family, **{**SIZES, **sizes}).save_pretrained(folder)
        if tokenizer:
            byte_tokenizer().save_pretrained(folder)
        return folder

    return save
