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

# What a part may import of the others; a part not named here may import everything.
ALLOWED = {
    "kernels": set(),
    "arguments": set(),
    "files": set(),
    "schedule": set(),
    "ranks": set(),
    "redaction": set(),
    "records": {"redaction"},
    "probe_content": set(),
    "design": set(),
    "sampling": {"design", "probe_content"},
    "probe_file": {"design"},
    "function_words": set(),
    "words": {"function_words"},
    "text_windows": {"design", "words"},
    "probe": {"data", "design", "probe_content", "probe_file", "sampling", "text_windows", "words"},
    "sentences": {"design", "probe", "text_windows"},
    "layers": {"kernels", "probe", "ranks"},
    "earlier": {"files", "kernels", "store"},
    "metrics": {"earlier", "kernels", "layers", "probe", "probe_content"},
    "layer_rows": {"kernels", "metrics", "probe_content", "records"},
    "measurement": {
        *("earlier", "kernels", "layer_rows", "layers", "metrics", "probe", "probe_content", "ranks", "records"),
    },
    "store": {"files", "probe", "records"},
    "models": set(),
    "data": {"design", "files", "probe", "redaction", "words"},
    "alignment_profile": set(),
    "plain_yaml": set(),
    "alerts": {"files", "metrics", "plain_yaml", "records"},
    "views": {
        *(
            "alerts",
            "alignment_profile",
            "files",
            "kernels",
            "metrics",
            "probe_content",
            "records",
            "redaction",
            "store",
        ),
    },
    "report": {"alerts", "arguments", "files", "metrics", "records", "store", "views"},
    "explorer": {
        *("arguments", "kernels", "layers", "probe", "studies", "sweep", "redaction", "views"),
    },
    "tracking": {
        *("alerts", "earlier", "layers", "measurement", "metrics", "probe", "ranks", "records", "redaction", "report"),
        *("schedule", "store", "views"),
    },
    "sweep": {
        *(
            "arguments",
            "data",
            "design",
            "earlier",
            "layers",
            "measurement",
            "metrics",
            "models",
            "plain_yaml",
            "probe",
        ),
        *("quiet", "records", "redaction", "report", "store", "views", "words"),
    },
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "repdyn":
            names = [f"repdyn.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("repdyn.")}
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_dependencies_point_one_way(part):
    files = [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").exists() else sorted((SOURCE / part).glob("*.py"))
    assert files
    for file in files:
        beyond = imports(file) - ALLOWED[part] - {part}
        assert not beyond, f"{file.name} imports {beyond}"


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
    assert settings["package-data"] == {"repdyn.report": ["*.css", "*.html", "*.js"], "repdyn.suites": ["*.yaml"]}


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


def test_callbacks_under_another_name_say_how_to_import_them():
    code = "import callbacks"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 1
    assert "ImportError: these callbacks were imported as 'callbacks'" in result.stderr
    assert "from repdyn.callbacks import RepresentationDynamics" in result.stderr


def test_public_names():
    import repdyn

    assert set(repdyn.__all__) == {
        *("Design", "Probe", "Profile", "Ranks", "Schedule", "Store", "Tracker", "kernels", "measure", "open_store")
    }
    assert importlib.import_module("repdyn.callbacks").__all__ == [
        *("SavePretrainedCheckpoint", "HuggingFaceTracker", "RepresentationDynamics")
    ]


def test_no_file_is_too_long_to_read_in_one_sitting():
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in (SOURCE, ROOT / "callbacks")
        for path in folder.rglob("*.py")
        if (lines := path.read_text().count("\n")) > 300
    }
    assert not long
