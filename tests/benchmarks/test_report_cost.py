"""What a report costs, at sizes that take a moment. What it says of speed is not looked at."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def cost(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("report_cost")


@pytest.mark.extended
@pytest.mark.slow
def test_it_tells_size_seconds_and_their_parts(cost, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cost, "_first_charts", lambda page: f"looked at {page.name}")
    small = ["--checkpoints", "3", "--layers", "4", "--heads", "2", "--runs", "2"]
    metrics = ["--metrics", "anisotropy", "two_nn", "attention_topic_gap"]
    monkeypatch.setattr(sys, "argv", ["report_cost.py", *small, *metrics, "-o", str(tmp_path / "page.html")])
    cost.main()
    _, rows, whole, *parts, looked = capsys.readouterr().out.splitlines()
    # in each checkpoint two subsets of three metrics, of which one has no embedding output but heads, and the loss
    assert rows == f"{2 * 3 * (2 * (4 + 4 + 3) + 2 * 3 + 1)} rows of 2 runs"
    assert re.fullmatch(r"whole \d+\.\d\d s, of which a core worked \d+\.\d\d s; \d\.\d\d MB", whole)
    shares = {name.strip(): int(share.removesuffix("%")) for name, share in (part.split(":") for part in parts)}
    assert list(shares) == list(cost._PARTS)
    assert 50 < sum(shares.values()) <= 102
    assert looked == "looked at page.html"
    assert (tmp_path / "page.html").exists()


def test_steps_are_powers_of_two_and_then_thousands(cost):
    steps = cost._steps(154)
    assert len(steps) == 154
    assert steps[:4] + steps[-1:] == [0, 1, 2, 4, 143000]
    assert cost._steps(5) == [0, 1, 2, 4, 8]


def test_every_part_names_a_function_of_the_package(cost):
    source = BENCHMARKS.parent / "src" / "repdyn"
    for name, function in cost._PARTS.values():
        path = source / name.removeprefix("repdyn/")
        assert path.is_file(), name
        assert function is None or f"def {function}(" in path.read_text(), (name, function)
