from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = ("data.byte_tokenizer", "text.clean", "text.source", "text.corpus", "text.vocabulary")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str):
    results = doctest.testmod(import_module(f"repdyn.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
