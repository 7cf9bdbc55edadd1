"""The options of ``repdyn report``, and what it says."""

from __future__ import annotations

import webbrowser

import pytest
from pages import read_page
from synthetic_runs import fill, make_rows

from repdyn.cli.report import main


def asked(*arguments: str) -> None:
    main([str(argument) for argument in arguments])


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", *(make_rows(run=name, steps=(0, 8)) for name in ("a", "b")))


def test_several_stores_make_one_page(store, tmp_path):
    other = fill(tmp_path / "other", make_rows(run="c", steps=(0, 8)))
    asked(store.path, other.path, "-o", tmp_path / "page.html")
    assert [run["label"] for run in read_page(tmp_path / "page.html").tree["runs"]] == ["a", "b", "c"]


def test_the_page_is_opened_only_when_asked(store, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    asked(store.path)
    assert not opened
    asked(store.path, "--open")
    assert opened == [(store.path / "report.html").resolve().as_uri()]
