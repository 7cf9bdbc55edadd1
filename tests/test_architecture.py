"""The shape of the house: what may import what, and what the package contains."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "repdyn"

# The rooms of the package from the ground up, and what each may import of the others.
ALLOWED = {
    "utils": set(),
    "kernels": set(),
    "models": {"utils"},
    "text": {"utils"},
    "probe": {"text", "utils"},
    "data": {"probe", "text", "utils"},
    "capture": {"kernels", "probe", "utils"},
    "store": {"kernels", "probe", "utils"},
    "metrics": {"capture", "kernels", "probe", "store", "utils"},
    "measurement": {"capture", "kernels", "metrics", "probe", "store", "utils"},
    "alerts": {"metrics", "utils"},
    "tables": {"alerts", "kernels", "metrics", "probe", "store", "utils"},
    "diagnosis": {"alerts", "metrics", "store", "tables", "utils"},
    "figures": {"alerts", "metrics", "store", "tables", "utils"},
    "terminal": {"alerts", "diagnosis", "metrics", "store", "tables", "utils"},
    "report": {"alerts", "diagnosis", "figures", "metrics", "store", "tables", "terminal", "utils"},
    "plots": {"alerts", "diagnosis", "figures", "report", "store", "tables", "utils"},
    "publish": {*("alerts", "diagnosis", "figures", "metrics", "report", "store", "tables", "terminal", "utils")},
    "tracking": {
        *("alerts", "capture", "measurement", "metrics", "probe", "publish", "report", "store", "tables", "utils")
    },
    "checkpoints": {*("capture", "measurement", "metrics", "models", "probe", "store", "tables", "text", "utils")},
    "recipes": {"figures", "metrics", "probe", "report", "store", "checkpoints", "tables", "text", "utils"},
    "studies": {"capture", "figures", "checkpoints", "kernels", "probe", "store", "tables", "text", "utils"},
    "explorer": {"capture", "checkpoints", "kernels", "studies", "tables", "utils"},
    "watch": {"alerts", "diagnosis", "report", "store", "tables", "utils"},
}
PUBLIC_FACE = {"__init__", "__main__"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "repdyn":
            names = [f"repdyn.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("repdyn.")}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", ALLOWED)
def test_dependencies_point_one_way(part):
    files = sorted((SOURCE / part).rglob("*.py"))
    assert files
    for file in files:
        beyond = imports(file) - ALLOWED[part] - {part}
        assert not beyond, f"{file.name} imports {beyond}"


def test_every_module_lies_in_a_room():
    assert {path.stem for path in SOURCE.glob("*.py")} == PUBLIC_FACE
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms == {*ALLOWED, "callbacks", "cli"}


def test_every_package_is_listed_for_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(SOURCE.parent) for path in SOURCE.rglob("__init__.py")}
    outside = {"repdyn.callbacks", "repdyn.suites"}
    assert set(settings["packages"]) == {".".join(folder.parts) for folder in folders} | outside
    # in the checkout a link stands where the wheel has the folder
    for name in outside:
        link = SOURCE / name.split(".")[1]
        assert link.is_symlink()
        assert link.resolve() == ROOT / settings["package-dir"][name]
    assert settings["package-data"] == {
        "repdyn": ["py.typed"],
        "repdyn.cli": ["*.gz", "*.txt"],
        "repdyn.recipes": ["*.yaml"],
        "repdyn.report": ["page/*"],
        "repdyn.suites": ["*.yaml"],
        "repdyn.watch": ["page/*"],
    }


def test_constraints_pin_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    names = {r.split(";")[0].split(">")[0].split("<")[0].split("[")[0].strip().lower() for r in wanted} - {"repdyn"}
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert names <= pinned, names - pinned
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)


@pytest.mark.process
def test_callbacks_under_another_name_say_how_to_import_them():
    code = "import callbacks"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 1
    assert "ImportError: these callbacks were imported as 'callbacks'" in result.stderr
    assert "from repdyn.callbacks import RepresentationDynamics" in result.stderr


def test_public_names():
    import repdyn

    assert set(repdyn.__all__) == {
        *("Design", "Metric", "Probe", "Profile", "Ranks", "Schedule", "Store", "Sweep", "Tracker"),
        *("insights", "kernels", "measure", "open_store", "register_metric", "sweep"),
    }
    assert importlib.import_module("repdyn.callbacks").__all__ == [
        *("HuggingFaceTracker", "RepresentationDynamics", "SavePretrainedCheckpoint")
    ]


def test_files_of_tests_have_names_of_their_own():
    names = [path.name for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    assert sorted(set(names)) == sorted(names)  # pytest imports them as modules of these names


def test_the_mutations_apply():
    """A mutation of a line that has gone would be noticed by no test, and never tried."""
    from benchmarks.mutations import MUTATIONS, tests_of

    for mutation in MUTATIONS:
        compile(mutation.applied((ROOT / mutation.path).read_text()), mutation.file, "exec")
        assert mutation.new != mutation.old
        assert tests_of(ROOT, mutation)
    assert len({(mutation.file, mutation.old) for mutation in MUTATIONS}) == len(MUTATIONS)
