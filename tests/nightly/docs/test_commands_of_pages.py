"""Commands that the pages print run, and the options of train.py are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import COMMANDS, FENCE, shell_words

ROOT = Path(__file__).parents[3]


def train_commands() -> list[str]:
    found = {
        tuple(shell_words(line)[2:]): line for _, line in COMMANDS if line.startswith("python train.py fit --config")
    }
    return sorted(found.values())


def train_words(line: str) -> list[str]:
    return shell_words(line)[2:]


def test_train_options_are_accepted(capsys, monkeypatch, tmp_path):
    from repdyn.cli.train import TrainCLI

    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "configuration.md").read_text()
    (complete,) = [code for language, code in FENCE.findall(page) if language == "yaml"]
    (tmp_path / "complete.yaml").write_text(complete)
    for words in [["fit", "--config", str(tmp_path / "complete.yaml")], *map(train_words, train_commands())]:
        monkeypatch.setattr("sys.argv", ["train.py", *words, "--print_config"])
        with pytest.raises(SystemExit) as stopped:
            TrainCLI()
        assert stopped.value.code in {0, None}, words
        assert "seed_everything" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "repdyn --version",
        "repdyn metrics",
        "repdyn insights --print-rules",
        "repdyn insights --alerts docs/runs/decoder",
        "repdyn sweep --list-suites",
        "repdyn study --help",
        "repdyn figures docs/runs/finished -o OUT",
        "repdyn report docs/runs/finished -o OUT/report.html",
    ],
)
def test_quick_commands_run(line, tmp_path, monkeypatch, capsys, quick_images):
    from repdyn.cli.main import main

    monkeypatch.chdir(ROOT)
    status = 0
    try:
        main(line.replace("OUT", str(tmp_path)).split()[1:])
    except SystemExit as stopped:
        status = stopped.code or 0
    assert status == 0
    assert capsys.readouterr().out
