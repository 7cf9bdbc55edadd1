"""The shape of the house: what may import what, and what the package contains."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "repdyn"

# The three parts of the package. Core measures, and imports neither of the others; views show what
# is stored; the lab is made of both. In each the rooms stand from the ground up, with the rooms
# before them, of this part or of one below, which each may import.
CORE = {
    "utils": "",
    "kernels": "",
    "torchmetrics": "kernels utils",
    "models": "utils",
    "probe": "utils",
    "capture": "kernels probe utils",
    "store": "kernels probe utils",
    "metrics": "capture kernels probe store utils",
    "measurement": "capture kernels metrics probe store utils",
    "tracking": "capture measurement metrics probe store utils",
    "callbacks": "capture measurement metrics probe store tracking utils",
    "data": "models probe utils",
    "checkpoints": "capture measurement metrics models probe store utils",
    "activations": "capture checkpoints probe utils",
}
VIEWS = {
    "views.display": "metrics store",
    "views.grid": "metrics",
    "views.changes": "views.grid metrics store",
    "views.alerts": "views.changes views.display views.grid metrics probe store utils",
    "views.tables": "views.alerts views.display views.grid metrics probe store utils",
    "views.judging": "views.alerts views.display views.tables metrics probe store utils",
    "views.charts": "views.alerts views.display views.tables metrics store utils",
    "views.figures": "views.alerts views.charts views.display views.tables metrics store utils",
    "views.console": "views.alerts views.display views.judging views.tables metrics store utils",
    "views.report": (
        "views.alerts views.charts views.display views.judging views.tables metrics store utils"
    ),
    "views.plots": (
        "views.charts views.display views.figures views.judging views.report views.tables metrics "
        "store utils"
    ),
    "views.watch": "views.alerts views.judging views.report views.tables store utils",
    "views.publish": (
        "views.alerts views.charts views.console views.figures views.judging views.report "
        "views.tables metrics probe store utils"
    ),
    "views.sinks": (
        "views.alerts views.judging views.publish views.report views.tables measurement metrics "
        "store tracking utils"
    ),
}
LAB = {
    "lab.studies": "activations kernels probe store utils views.charts views.tables",
    "lab.recipes": (
        "lab.studies activations checkpoints metrics probe store utils "
        "views.charts views.display views.figures views.judging views.report views.tables"
    ),
    "lab.explorer": "activations kernels utils views.tables lab.studies",
}
ALLOWED = CORE | VIEWS | LAB

PUBLIC_FACE = {"__init__", "__main__"}
"""Files beside the rooms; like the commands in cli/, they may import everything."""
OUTSIDE = {*PUBLIC_FACE, "cli", "lab.commands", "views", "lab"}
"""What stands in no room: commands, and files that say what a part is."""


def found_files() -> dict[str, Path]:
    """Return the files of the package by the names of their modules."""
    inside = [
        path for path in SOURCE.rglob("*.py") if "callbacks" not in path.relative_to(SOURCE).parts
    ]
    files = [(path.relative_to(SOURCE.parent), path) for path in inside]
    files += [
        (Path("repdyn") / path.relative_to(ROOT), path)
        for path in (ROOT / "callbacks").glob("*.py")
    ]
    return {
        ".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in files
    }


FILES = found_files()


def imports(path: Path) -> set[str]:
    """Return the files of the package that a file imports, also inside functions and for types
    alone.
    """
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= names & set(FILES) or {node.module}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules & set(FILES)


def room_of(module: str) -> str:
    """Return the room of a module: of a view, ``views.tables``, and of a study, ``lab.studies``."""
    _, *names = module.split(".")
    if not names:
        return "__init__"
    in_part = names[0] in {"views", "lab"} and len(names) > 1
    return ".".join(names[:2]) if in_part else names[0]


def test_text_files_have_an_encoding():
    """On Windows it would be cp1252."""
    calls = [
        (name, node)
        for name, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    texts = [
        (name, node)
        for name, node in calls
        if isinstance(node, ast.Call) and hasattr(node.func, "attr")
    ]
    of_files = [
        (name, node) for name, node in texts if node.func.attr in {"read_text", "write_text"}
    ]
    assert [
        (name, node.lineno)
        for name, node in of_files
        if "encoding" not in {each.arg for each in node.keywords}
    ] == []


def test_nothing_imports_upwards():
    """Also finds a table that has a room import one above it."""
    rooms = list(ALLOWED)
    for room, below in ALLOWED.items():
        assert set(below.split()) <= set(rooms[: rooms.index(room)]), room
    for module, path in FILES.items():
        if (room := room_of(module)) in OUTSIDE:
            continue
        allowed = {room, *ALLOWED[room].split()}
        if room in LAB:  # made of what every user has
            allowed |= {*PUBLIC_FACE, "lab"}
        imported = {name for name in imports(path) if room_of(name) not in allowed}
        assert not imported, f"{module} imports {imported}"


def test_core_knows_no_command_line():
    """A training would load the framework of the commands; flags have types of their own."""
    framework = {"cyclopts", "repdyn.utils.arguments"}
    for module, path in FILES.items():
        if room_of(module) not in CORE or module == "repdyn.utils.arguments":
            continue
        imported = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            for name in names_imported_by(node)
        }
        assert not imported & framework, module


def names_imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def public_names(module: str) -> set[str]:
    """Return the names that a package's own file imports to hand on."""
    tree = ast.parse(FILES[module].read_text())
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in imported for alias in node.names}


def test_the_lab_uses_public_names():
    """What the lab needs, every user needs: nothing private, and no file of a package that hands
    the name on itself.
    """
    packages = {name for name, path in FILES.items() if path.name == "__init__.py"}
    faces = {name: public_names(name) for name in packages if name.count(".") == 1}
    private: list[tuple[str, str]] = []
    for module, path in FILES.items():
        if not module.startswith("repdyn.lab"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("repdyn"):
                continue
            names = {alias.name for alias in node.names}
            private += [(module, name) for name in names if name.startswith("_")]
            face = ".".join(node.module.split(".")[:2])
            if face not in {node.module, "repdyn.lab"}:
                private += [(module, name) for name in names & faces.get(face, set())]
    assert private == []


def test_no_file_imports_itself_through_others():
    graph = {module: imports(path) - {module, "repdyn"} for module, path in FILES.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_every_module_lies_in_a_room():
    rooms = {room_of(module) for module in FILES}
    assert rooms == {*ALLOWED, *OUTSIDE}


def tree_of(page: str) -> Iterator[str]:
    """Yield the paths of the tree in the architecture page, which is indented by two spaces for
    what is in a folder.
    """
    folder = ""
    for line in page[page.index("## The tree") :].splitlines():
        if entry := re.match(r" {4}(  )?(\S+)(?= |$)", line):
            path = (folder if entry[1] else "") + entry[2]
            folder = folder if entry[1] else path
            yield path


def test_the_page_shows_the_tree_as_it_is():
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = list(tree_of(page))
    named = re.findall(r"`((?:src|configs|callbacks|tests|benchmarks)/[\w./]*)`", page)
    assert not [path for path in [*shown, *named] if not (ROOT / path).exists()]
    rooms = {
        path.removeprefix("src/repdyn/").removesuffix(".py").strip("/").replace("/", ".")
        for path in shown
        if path.startswith("src/repdyn/")
    } - {""}
    assert rooms == {*ALLOWED, "cli", "views", "lab"} - {"callbacks"}
    callbacks = {path.name for path in (ROOT / "callbacks").glob("*.py")} - {"__init__.py"}
    assert {path.removeprefix("callbacks/") for path in shown if path.startswith("callbacks/")} - {
        ""
    } == callbacks


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
        "repdyn.cli": ["demo/*/*.parquet", "*.txt"],
        "repdyn.lab.recipes": ["*.yaml", "published.*"],
        "repdyn.lab.explorer": ["page/*"],
        "repdyn.views.judging": ["usual.csv"],
        "repdyn.views.report": ["page/*"],
        "repdyn.lab.studies": ["*.json"],
        "repdyn.suites": ["*.yaml"],
        "repdyn.views.watch": ["page/*"],
    }


def test_constraints_pin_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    names = {
        r.split(";")[0].split(">")[0].split("<")[0].split("[")[0].strip().lower()
        for r in requirements
    } - {"repdyn"}
    pinned = {
        line.split("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert names <= pinned, names - pinned
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)


@pytest.mark.process
def test_callbacks_under_another_name_say_how_to_import_them():
    code = "import callbacks"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 1
    assert "ImportError: these callbacks were imported as 'callbacks'" in result.stderr
    assert "from repdyn.callbacks import RepresentationDynamics" in result.stderr


def test_public_names():
    import repdyn

    assert set(repdyn.__all__) == {
        *("Design", "Display", "Metric", "Probe", "Profile", "Ranks", "Schedule", "Store", "Sweep"),
        *("Tracker", "insights", "kernels", "measure", "open_store", "query", "register_metric"),
        *("attention_weights", "layer_states", "load_model", "output_head", "sweep"),
    }
    assert importlib.import_module("repdyn.callbacks").__all__ == [
        *("HuggingFaceTracker", "RepresentationDynamics", "SavePretrainedCheckpoint")
    ]


def test_files_of_tests_have_names_of_their_own():
    names = [path.name for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    assert sorted(set(names)) == sorted(names)  # pytest imports them as modules of these names


def test_no_file_of_tests_imports_from_another():
    """What several use is in tests/support: one lane needs no file of the other."""
    for path in (ROOT / "tests").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = [name for node in nodes for name in names_imported_by(node)]
        assert not [name for name in imported if name.startswith("test_")], path


def test_the_mutations_apply():
    """A mutation of a line that has gone would be noticed by no test, and never tried."""
    from benchmarks.mutations import MUTATIONS, tests_of

    for mutation in MUTATIONS:
        compile(mutation.applied((ROOT / mutation.path).read_text()), mutation.file, "exec")
        assert mutation.new != mutation.old
        assert tests_of(ROOT, mutation)
    assert len({(mutation.file, mutation.old) for mutation in MUTATIONS}) == len(MUTATIONS)
