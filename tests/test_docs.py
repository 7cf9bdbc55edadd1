"""Commands, code and names in the documentation are those of the package."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from runpy import run_path
from typing import Any

import pytest
from cyclopts import CycloptsError
from pages_of_docs import COMMANDS, PAGES, ROOT, python_blocks, shell_words

from repdyn.cli.main import command_line
from repdyn.store.schema import COLUMNS

WITH_EXAMPLES = [
    path for path in sorted((ROOT / "src/repdyn").rglob("*.py")) if ">>> " in path.read_text()
]


@pytest.mark.parametrize(
    "path", WITH_EXAMPLES, ids=lambda path: path.relative_to(ROOT / "src/repdyn").as_posix()
)
def test_examples_in_docstrings_hold(path):
    """One showed half of what its function returns."""
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    assert doctest.testmod(importlib.import_module(name.removesuffix(".__init__"))).failed == 0


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = set(PROJECT["entry-points"])


@pytest.fixture(scope="module")
def accepted():
    """Return a function that says whether the command ``repdyn`` accepts some words, without
    running them.
    """
    app = command_line()

    def accepted(words: list[str]) -> bool:
        try:
            app.parse_args(words, exit_on_error=False, print_error=False)
        except CycloptsError:
            return False
        return True

    return accepted


@pytest.mark.parametrize(("page", "line"), [c for c in COMMANDS if c[1].startswith("repdyn ")])
def test_repdyn_commands_are_accepted(accepted, page, line):
    words = shell_words(line)[1:]
    if words[:2] == ["attach", "-m"]:
        # what follows goes to the script: main hands it on before anything is parsed
        assert re.fullmatch(r"[\w.]+", words[2])
        return
    only_named = all(word.isalpha() for word in words)
    assert accepted([*words, "--help"] if only_named else words)


@pytest.mark.parametrize(("page", "line"), [c for c in COMMANDS if c[1].startswith("python ")])
# a branch for each kind of script
def test_python_commands_name_what_exists(accepted, page, line):
    script, *words = shell_words(line)[1:]
    if script == "-m":
        assert find_spec(words[0])
        for path, _, name in (word.partition("::") for word in words if word.startswith("tests/")):
            assert (ROOT / path).exists(), path
            assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
    elif script == "analyze_checkpoints.py":
        assert accepted(["sweep", *(words or ["--help"])])
    elif script == "train.py":
        configs = [word for before, word in pairwise(words) if before == "--config"]
        assert all((ROOT / config).exists() for config in configs)
        assert not words or words[0] == "fit"
    elif script.startswith(("benchmarks/", "docs/", "examples/", "tests/")):
        source = (ROOT / script).read_text()
        for option in (word.split("=")[0] for word in words if word.startswith("--")):
            # options of one kind may be made of a list of their names
            assert f'"{option}"' in source or f'"{option[2:]}": ' in source, option
    else:
        assert script in "\n".join(
            path.read_text() for path in PAGES if "<!-- example: " in path.read_text()
        )


def test_python_blocks_import_what_exists():
    n_imports = 0
    for page, code in python_blocks():
        if "..." in code.split("\n")[0]:
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "repdyn":
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), (
                        f"{page}: from {node.module} import {alias.name}"
                    )
                    n_imports += 1
    assert n_imports > 20


def exists(name: str) -> bool:
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            target: Any = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[n:]:
            if not hasattr(target, attribute) and attribute not in getattr(
                target, "__annotations__", {}
            ):
                return False
            target = getattr(target, attribute, None)
        return True
    return False


def test_dotted_names_exist():
    for page in PAGES:
        text = page.read_text()
        # but for groups of entry points, which are no modules
        names = set(re.findall(r"(?<![\w./\"-])repdyn(?:\.[A-Za-z_]\w*)+", text))
        for name in names - GROUPS:
            assert exists(name), f"{page.relative_to(ROOT)}: {name}"


def test_public_names_are_documented():
    import repdyn

    page = (ROOT / "docs" / "api.md").read_text()
    callbacks = importlib.import_module("repdyn.callbacks").__all__
    for name in [*repdyn.__all__, *(f"callbacks.{name}" for name in callbacks)]:
        title = "## Kernels" if name == "kernels" else f"### `repdyn.{name}`"
        assert f"\n{title}\n" in page, name


GENERATED = run_path(str(ROOT / "docs" / "generate.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_those_of_the_source(name):
    """A docstring, a metric or a column was changed, and its page was not written again."""
    is_current = (ROOT / "docs" / name).read_text(encoding="utf-8") == GENERATED[name]
    assert is_current, "the page is older than the source; run python docs/generate.py"


def test_the_table_of_columns_tells_what_each_means():
    rows = re.findall(
        r"^\| `(\w+)` \| \w+ \| (?:yes)? \| (\S.+) \|$", GENERATED["columns.md"], re.M
    )
    assert [name for name, _ in rows] == list(COLUMNS)
    assert ":::" not in GENERATED["api.md"]


def test_pages_keep_to_the_vocabulary():
    """docs/vocabulary.md has one word for each thing: subset, cloud, design, path. Generated pages
    are as free as the docstrings they are made of.
    """
    inside = [path for room in ("src", "callbacks", "docs") for path in (ROOT / room).rglob("*.*")]
    sources = [path for path in inside if path.suffix in {".py", ".ipynb"}]
    for page in [*PAGES, *sources]:
        retired = r"(?i)token subset|point cloud|\bhistories of"
        if page in PAGES and page.name not in GENERATED:
            retired += "|sampling (?:design|plan)"
        found = re.findall(retired, page.read_text())
        assert not found, f"{page.relative_to(ROOT)}: {found}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert re.search(
            rf"[: ]{re.escape(str(page.relative_to(ROOT / 'docs')))}$", navigation, re.MULTILINE
        ), page
