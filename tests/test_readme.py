"""What the README prints is what works."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repdyn import open_store
from repdyn.metrics import METRICS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```\n<!-- /{name} -->", README, re.DOTALL)
    assert found, name
    return found[1]


def test_readme_is_short():
    assert README.count("\n") <= 120


def test_example_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
    }
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=100, **sizes))
    given = {
        "held_out_tokens": torch.randint(100, (256, 32)),
        "model": model,
        "batches": range(10),
        "train_step": lambda model, batch: torch.tensor(1.0 / (1 + batch)),
    }
    exec(compile(block("example"), "README.md", "exec"), given)
    assert open_store("runs/mine").steps("mine") == [0, 10]
    assert "mine  GPTNeoXForCausalLM (decoder)" in capsys.readouterr().out
    assert Path("runs/mine/report.html").exists()
    index = (ROOT / "docs" / "index.md").read_text()
    assert block("example") in index


def test_links_and_figures_exist():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_each_of_the_two_commands_is_one_line():
    for name in ("run", "tests"):
        command = block(name)
        assert command.count("\n") == 1
        assert "-c constraints.txt" in command


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="the script is bash")
def test_ci_calls_the_command_as_printed():
    script = (ROOT / ".ci" / "run").read_text()
    extract = next(line for line in script.splitlines() if line.startswith("command="))
    printed = subprocess.run(
        ["bash", "-c", f'{extract}; printf "%s\\n" "$command"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == block("tests")


def test_findings_page_states_the_criteria_of_the_code():
    from repdyn.tables import findings

    page = " ".join((ROOT / "docs" / "findings.md").read_text().replace("*", "").split())
    stated = (findings.BELL, findings.UNIFORM, findings.GROWTH, findings.DIMENSION)
    for meaning, criterion in zip(findings.MEANINGS.values(), stated, strict=True):
        title, _, kind = meaning.removesuffix(")").partition(" (")
        start = page.lower().index(f"{title} (published for {kind}")
        assert start < page.index(criterion) < start + 100
    assert f"Version {findings.VERSION}: committed before" in page
    assert f"more than {findings.FAILED:.0%} above the lowest" in page


def test_the_number_of_metrics_is_that_of_the_table():
    assert f"{len(METRICS)} in all" in README
