"""What following many runs costs, at sizes that take a moment. What it says of speed is not looked at."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.extended
@pytest.mark.slow
def test_it_tells_what_is_read_and_how_long_it_takes(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cost = importlib.import_module("watch_cost")
    monkeypatch.setattr(cost.runs, "read_table", cost.runs.read_table)  # put back what it counts by
    monkeypatch.setattr(sys, "argv", ["watch_cost.py", "--runs", "3", "--measurements", "12", "--layers", "3"])
    cost.main()
    _, read, *lines = capsys.readouterr().out.splitlines()
    assert read == "36 files of 3 runs read, 0 of them twice"
    expected = [
        r"last step of every run after \d+\.\d s, all files read after \d+\.\d s",
        r"the status of a run \d+ ms",
        r"\d+ MiB",
        r"a look without change \d+\.\d ms",
        r"a search for stores \d+\.\d ms",
        r"a new measurement \d+ ms; 1 file read",
    ]
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, lines, strict=True)), lines
