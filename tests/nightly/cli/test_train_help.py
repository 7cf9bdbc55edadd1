"""The page of train.py's options."""

import re
import sys
from importlib.resources import files

import pytest

from repdyn.cli.train import TrainCLI


@pytest.mark.process
def test_the_page_names_options_and_defaults_that_there_are(monkeypatch, capsys):
    """The page is a file, which a renamed option or another default would leave behind."""
    page = (files("repdyn.cli") / "train_help.txt").read_text()
    lines = page.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80
    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.setattr(sys, "argv", ["train.py", "fit", "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        TrainCLI()
    whole = capsys.readouterr().out
    for option, default in re.findall(r"^  --(\S+) .*?(?: \[(\S+)\])?$", page, re.MULTILINE):
        entry = re.search(rf"^ +--{re.escape(option)} .*(\n {{12,}}.*)*", whole, re.MULTILINE)
        assert entry, option
        assert not default or f"default: {default}".lower() in entry[0].lower(), option
