"""The options of ``repdyn report``, and what it says."""

from __future__ import annotations

import re
import subprocess
import sys
import webbrowser

import pytest
from report.pages import read_page
from synthetic_runs import fill, make_rows

from repdyn.cli.report import main


def asked(*arguments: str) -> None:
    main([str(argument) for argument in arguments])


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", *(make_rows(run=name, steps=(0, 8)) for name in ("a", "b")))


@pytest.mark.slow
def test_the_page_is_made_inside_the_first_store_and_named_with_its_size(store, capsys):
    asked(store.path)
    path = store.path / "report.html"
    assert re.fullmatch(rf"{re.escape(str(path))}: \d\.\d MB in \d+\.\d s\n", capsys.readouterr().out)
    assert len(read_page(path).tree["runs"]) == 2
    assert store.runs() == ["a", "b"]


@pytest.mark.slow
def test_runs_place_and_title_can_be_chosen(store, tmp_path):
    asked(store.path, "-o", tmp_path / "new" / "page.html", "--run", "b", "--title", "Two & two")
    page = read_page(tmp_path / "new" / "page.html")
    assert [run["label"] for run in page.tree["runs"]] == ["b"]
    assert "<h1>Two &amp; two</h1>" in page.text


@pytest.mark.slow
def test_several_stores_make_one_page(store, tmp_path):
    other = fill(tmp_path / "other", make_rows(run="c", steps=(0, 8)))
    asked(store.path, other.path, "-o", tmp_path / "page.html")
    assert [run["label"] for run in read_page(tmp_path / "page.html").tree["runs"]] == ["a", "b", "c"]


@pytest.mark.slow
def test_the_page_is_opened_only_when_asked(store, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    asked(store.path)
    assert not opened
    asked(store.path, "--open")
    assert opened == [(store.path / "report.html").resolve().as_uri()]


def test_a_probe_that_is_not_there_is_refused(store):
    with pytest.raises(ValueError, match="^expected the beginning of one probe's hash, got 'ffff'; there are 3f2ab1c0"):
        asked(store.path, "--probe", "ffff")


@pytest.mark.process
def test_help_does_not_wait_for_torch():
    code = "import sys; from repdyn.cli.main import main; main(['report', '--help'])"
    told = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("usage: repdyn report [-h] [--run NAME")
    assert not re.search(r"\| +(torch|pandas|plotly)$", told.stderr, re.MULTILINE)
