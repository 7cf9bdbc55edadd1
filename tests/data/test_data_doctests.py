from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = ("byte_tokenizer", "clean", "source", "text", "vocabulary")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str):
    results = doctest.testmod(import_module(f"repdyn.data.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
