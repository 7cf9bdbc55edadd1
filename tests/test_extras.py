"""The base install tracks a loop, and everything else names the extra that it needs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic_runs import fill, make_rows

from repdyn.utils import extras
from repdyn.utils.extras import _EXTRAS, MissingPackageError, install_line, require, with_extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
# imported as it is called here, unlike its name in the index
IMPORTED_AS = {"pyyaml": "yaml", "scikit-learn": "sklearn"}


def packages(requirements: list[str]) -> set[str]:
    """Return the names of packages by which they are imported, without those of other extras."""
    names = {re.split(r"[\[<>=;]", each)[0] for each in requirements} - {"repdyn"}
    return {IMPORTED_AS.get(name, name) for name in names}


BASE = packages(PROJECT["dependencies"])
OF_DEVELOPERS = {"benchmark", "dev", "docs", "stacks", "test"}
OF_USERS = {
    extra: each
    for extra, each in PROJECT["optional-dependencies"].items()
    if extra not in OF_DEVELOPERS
}
# torch looks for scikit-learn, and takes an error of the blocker for one of its own
# pytorch_lightning is the other name of lightning
OF_EXTRAS = set().union(*map(packages, OF_USERS.values())) | {"pytorch_lightning"}
BLOCKED = frozenset(OF_EXTRAS - BASE - {"sklearn"})
OF_VIEWS = frozenset(packages(OF_USERS["views"]))

# run where neither some packages nor their versions are found, as after "pip install repdyn"
BLOCKER = """
import importlib.util
import sys
from importlib.metadata import Distribution, PackageNotFoundError

blocked = set(sys.argv[1].split(","))
distribution_of = Distribution.from_name
spec_of = importlib.util.find_spec

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def find_distribution(name):
    if name in blocked:
        raise PackageNotFoundError(name)
    return distribution_of(name)

def find_spec(name, package=None):  # by which transformers asks whether there is a package
    return None if name.partition(".")[0] in blocked else spec_of(name, package)

sys.meta_path.insert(0, Blocker())
Distribution.from_name = find_distribution
importlib.util.find_spec = find_spec
"""
LOOP = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, states):
        return states + self.linear(states).tanh()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, ids):
        states = self.embed(ids)
        for block in self.blocks:
            states = block(states)
        return self.head(states)

from repdyn import Probe, Tracker, open_store
tokens = torch.randint(0, 50, (64, 16))
probe = Probe.from_tokens(tokens, max_vectors=256, batch_vectors=128)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Tracker(model, probe, schedule=2, store=sys.argv[2]) as tracker:
    for batch in tokens.split(16):
        predicted = model(batch)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(predicted, batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        tracker.step(loss=loss)

def steps_with_values(store):
    rows = store.to_arrow(columns=["step", "layer", "metric", "value"]).to_pylist()
    of_blocks = [row for row in rows if row["layer"] and row["metric"] == "anisotropy"]
    return sorted({row["step"] for row in of_blocks if row["value"] == row["value"]})

store = open_store(sys.argv[2])
print(steps_with_values(store))
try:
    store.to_pandas()
except ModuleNotFoundError as error:
    print(error)
"""
SWEEP = """
from repdyn import sweep
loads = [(step, lambda: model) for step in (0, 8)]
swept = sweep(loads, name="swept", probe=probe, store=sys.argv[2] + "-swept")
print(steps_with_values(swept.store))
"""
LOADED = """
print(sorted(set(sys.argv[1].split(",")) & set(sys.modules)))
"""
COMMAND = """
from repdyn.__main__ import main
main(sys.argv[2:])
"""


def run_without(
    blocked: frozenset[str], program: str, *arguments: str, first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program without some packages, and one before it with them."""
    whole = first + BLOCKER + program
    given = [sys.executable, "-c", whole, ",".join(sorted(blocked)), *arguments]
    return subprocess.run(given, capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize(
    ("blocked", "further", "swept"),
    [(BLOCKED, "", []), (OF_VIEWS, SWEEP, ["[0, 8]"])],
    ids=["base", "without views"],
)
def test_what_measures_needs_no_package_that_shows(tmp_path, blocked, further, swept):
    """A package of views that measuring loads would end the job of whoever has not installed it."""
    # torch._dynamo asks for pandas in a way that a finder cannot answer
    first = "import torch._dynamo\n"
    program = LOOP + further + LOADED
    done = run_without(blocked, program, str(tmp_path / "store"), first=first)
    assert done.returncode == 0, done.stderr
    of_loop, no_frame, *printed, loaded = done.stdout.splitlines()[-3 - len(swept) :]
    assert of_loop == "[0, 2, 4]"
    assert printed == swept
    assert loaded == "[]"
    assert "'pandas', which a data frame needs" in no_frame
    assert no_frame.endswith(install_line("views"))
    assert "drawing at step 0 is left out" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "extra"), [("RepresentationDynamics", "lightning"), ("HuggingFaceTracker", "hf")]
)
def test_a_callback_names_the_extra_that_it_needs(name, extra):
    done = run_without(BLOCKED, f"from repdyn.callbacks import {name}")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert f"which repdyn.callbacks.{name} needs, found none; {install_line(extra)}" in last


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("watch {store}", "uvicorn", "watch"),
        ("explore gpt2", "gradio", "lab"),
        ("sweep gpt2 --dry-run", "httpx2", "sweep"),
        ("export {store} --to csv", "lightning", "lightning"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(tmp_path, command, package, extra):
    store = fill(tmp_path / "store", make_rows(steps=(0, 8), n_blocks=2))
    done = run_without(BLOCKED - OF_VIEWS, COMMAND, *command.format(store=store.path).split())
    assert done.returncode == 2, done.stderr
    assert f"expected the package {package!r}" in done.stderr
    assert install_line(extra) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_the_command_line_names_the_extra_that_it_needs():
    done = run_without(BLOCKED, COMMAND, "metrics")
    said = "error: expected the package 'cyclopts', which the command repdyn needs, found none; "
    assert done.returncode == 2
    assert done.stderr == f"{said}{install_line('views')}\n"


@pytest.mark.process
@pytest.mark.parametrize("command", ["metrics", "insights {store}", "figures {store}"])
def test_a_command_of_the_extra_of_views(tmp_path, command):
    store = fill(tmp_path / "store", make_rows(steps=(0, 8), n_blocks=2))
    done = run_without(BLOCKED - OF_VIEWS, COMMAND, *command.format(store=store.path).split())
    assert done.returncode == 0
    assert done.stderr == ""


def test_the_extras_that_messages_name_have_the_package():
    assert {
        extra
        for extra, names in _EXTRAS.items()
        if set(names) - packages(PROJECT["optional-dependencies"][extra])
    } == set()


def packages_of(extra: str) -> set[str]:
    """Return the packages that an extra installs, with those of the extras that it asks for."""
    requirements = PROJECT["optional-dependencies"][extra]
    asked_for = [requirement for requirement in requirements if requirement.startswith("repdyn[")]
    names = packages(requirements)
    for requirement in asked_for:
        for other in requirement.removeprefix("repdyn[").removesuffix("]").split(","):
            names |= packages_of(other)
    return names


@pytest.mark.parametrize(
    ("extra", "needed"),
    [
        # transformers' Trainer does not start without it
        ("hf", {"accelerate", "matplotlib", "pandas"}),
        ("lightning", {"matplotlib", "pandas"}),
        # the commands that the pages show to whoever has installed it
        ("train", {"accelerate", "duckdb", "gradio", "matplotlib", "starlette", "uvicorn"}),
    ],
)
def test_an_extra_brings_what_its_users_call(extra, needed):
    """One without a package of a command that its page shows ends in an error at that command."""
    assert needed - packages_of(extra) == set()


def test_a_package_of_no_extra_keeps_its_error():
    assert (
        with_extra(ModuleNotFoundError("No module named 'other'", name="other"), "repdyn report")
        is None
    )
    with pytest.raises(
        MissingPackageError,
        match=r"'no_such_package', which a test needs, found none; pip install .*\[x\]",
    ):
        require("x", "a test", "json", "no_such_package")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, "pip install 'repdyn[x]'"),
        ({"url": "file:///no/such.whl", "archive_info": {}}, "pip install 'repdyn[x]'"),
        ({"url": "file:///"}, "pip install 'repdyn[x] @ file:///'"),
        (
            {"url": "https://host/repdyn", "vcs_info": {"vcs": "git", "commit_id": "0f"}},
            "pip install 'repdyn[x] @ git+https://host/repdyn@0f'",
        ),
    ],
    ids=["index", "file that is gone", "folder", "repository"],
)
def test_an_extra_is_installed_from_where_the_package_is(record, expected, monkeypatch, tmp_path):
    """Messages said to install from an index on which the package is not."""
    assert install_line("x").startswith("pip install -e ")  # of a checkout
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages/repdyn/utils/extras.py"))
    text = json.dumps(record) if record else None
    installed = SimpleNamespace(read_text=lambda name: text)
    monkeypatch.setattr(extras, "distribution", lambda name: installed)
    assert install_line("x") == expected
