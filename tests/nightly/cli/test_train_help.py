"""The help of train.py."""

import sys

import pytest

from repdyn.cli import train_help
from repdyn.cli.train import TrainCLI


@pytest.fixture
def shown(monkeypatch, capsys):
    def shown(*arguments, status=0):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        with pytest.raises(SystemExit, match=f"^{status}$"):
            TrainCLI()
        return "".join(capsys.readouterr())

    return shown


@pytest.mark.process
def test_the_options_that_most_runs_need_fit_a_page(shown):
    lines = shown("fit", "--help").splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80
    options = {line.split()[0] for line in lines if line.startswith("  --")}
    chosen = {f"--{group}.{name}".replace("--.", "--") for group, names in train_help._CHOSEN.items() for name in names}
    assert chosen <= options
    assert {"--data.text", "--data.batch_size", "--model.family", "--model.n_layers", "--run.name"} <= options
    assert "--data.objective" not in options
    described = {f"--{name}" for name in train_help._IN_SHORT}
    assert described <= options
    assert "  --data.sequence_length          tokens in a window [256]" in lines


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"]], ids=" ".join)
def test_the_shipped_pages_are_those_of_the_parser(shown, arguments):
    assert train_help.shipped_help(arguments) == shown(*arguments)
    assert train_help.shipped_help([*arguments[:-1], "-h"]) == train_help.shipped_help(arguments)


@pytest.mark.parametrize("arguments", [[], ["fit"], ["fit", "--help", "all"], ["fit", "--run.name", "a", "--help"]])
def test_other_arguments_go_to_the_parser(arguments):
    assert train_help.shipped_help(arguments) is None
