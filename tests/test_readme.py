"""What the README prints is what works."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from repdyn.metrics import METRICS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```\n<!-- /{name} -->", README, re.DOTALL)
    assert found, name
    return found[1]


def test_example_runs_as_printed(tmp_path, monkeypatch, capsys):
    (tmp_path / "example.py").write_text(block("example"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path("example.py", run_name="__main__")
    printed = capsys.readouterr().out
    table = printed[printed.rindex("step ") :]
    assert table.split("\n")[0].split() == ["step", "0", "10", "20", "30", "40"]
    assert len(re.findall(r"^(?:two_nn|anisotropy)? +(?:all|no_sink)? +\d", table, re.MULTILINE)) == 11
    # pandas leaves out the line of the dimension at layer 0, where the tokens have no more than 100 different vectors
    assert "MyTransformer (decoder)" in printed
    assert list(tmp_path.glob("**/figures/**/profile_anisotropy.png"))


def test_tree_names_every_module():
    tree = README[README.index("## The house") :]
    for path in [*ROOT.glob("src/repdyn/*"), *ROOT.glob("callbacks/*.py")]:
        if path.name.startswith(("__", ".")) or path.name == "callbacks":
            continue
        assert path.name in tree, path.name


def test_links_and_figures_exist():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_each_of_the_two_commands_is_one_line():
    for name in ("run", "tests"):
        command = block(name)
        assert command.count("\n") == 1
        assert "-c constraints.txt" in command


@pytest.mark.skipif(os.name != "posix", reason="the script is bash")
def test_ci_calls_the_command_as_printed():
    script = (ROOT / ".ci" / "run").read_text()
    extract = next(line for line in script.splitlines() if line.startswith("command="))
    printed = subprocess.run(
        ["bash", "-c", f'{extract}; printf "%s\\n" "$command"'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout == block("tests")


def test_findings_page_states_the_criteria_of_the_code():
    from repdyn.tables import criteria

    page = " ".join((ROOT / "docs" / "findings.md").read_text().replace("*", "").split())
    stated = (criteria.BELL, criteria.UNIFORM, criteria.GROWTH, criteria.DIMENSION)
    for meaning, criterion in zip(criteria.MEANINGS.values(), stated, strict=True):
        title, _, kind = meaning.removesuffix(")").partition(" (")
        start = page.lower().index(f"{title} (published for {kind}")
        assert start < page.index(criterion) < start + 100
    assert f"Version {criteria.VERSION}: written down" in page
    assert f"is more than {criteria.FAILED:.0%} above the lowest" in page


def test_the_number_of_metrics_is_that_of_the_table():
    assert f"{len(METRICS)} in all" in README
