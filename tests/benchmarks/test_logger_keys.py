"""The number of names that a logger gets, as the documentation states it."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.extended
@pytest.mark.slow
def test_the_documentation_has_the_table_of_the_script(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr("sys.argv", ["logger_keys.py"])
    importlib.import_module("logger_keys").main()
    assert capsys.readouterr().out in (ROOT / "docs" / "wandb.md").read_text()
