"""Commands that the pages print run, and the options of train.py are accepted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pages_of_docs import COMMANDS, FENCE, python_blocks, shell_words

ROOT = Path(__file__).parents[3]


def test_train_options_are_accepted(capsys, monkeypatch, tmp_path):
    from repdyn.cli.train import TrainCLI

    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "configuration.md").read_text()
    (complete,) = [code for language, code in FENCE.findall(page) if language == "yaml"]
    (tmp_path / "complete.yaml").write_text(complete)
    printed = {
        tuple(shell_words(line)[2:])
        for _, line in COMMANDS
        if line.startswith("python train.py fit --config")
    }
    for words in [("fit", "--config", str(tmp_path / "complete.yaml")), *sorted(printed)]:
        monkeypatch.setattr("sys.argv", ["train.py", *words, "--print_config"])
        with pytest.raises(SystemExit) as stopped:
            TrainCLI()
        assert stopped.value.code in {0, None}, words
        assert "seed_everything" in capsys.readouterr().out


SHORT = ["--version", "metrics", "insights --print-rules", "sweep --list-suites", "study --help"]
# those of committed stores; the others need the network, a model, a run of one's own or rows that
# somebody hands in
COMMITTED = {
    line
    for _, line in COMMANDS
    if line.startswith("repdyn ") and " docs/" in line.split(" -o docs")[0]
}
COMMITTED = {line for line in COMMITTED if "public_models/rows" not in line}


@pytest.mark.parametrize(
    "line", [*SHORT, *sorted(shlex.join(shell_words(line)[1:]) for line in COMMITTED)]
)
def test_quick_commands_run(line, tmp_path, monkeypatch, capsys, quick_images):
    from repdyn.cli.main import main

    monkeypatch.chdir(ROOT)
    words = [word for word in shlex.split(line.replace("OUT", str(tmp_path))) if word != "--open"]
    if words[0] in {"figures", "report"} and "-o" not in words:
        words += ["-o", str(tmp_path / ("report.html" if words[0] == "report" else "figures"))]
    status = 0
    try:
        main(words)
    except SystemExit as stopped:
        status = stopped.code or 0
    assert status == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "code", [code for _, code in python_blocks() if "docs/" in code or "import kernels" in code]
)
def test_snippets_on_committed_stores_run(code, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(code, "snippet", "exec"), {})
    assert bool(capsys.readouterr().out) == ("print(" in code)
