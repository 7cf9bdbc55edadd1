"""Commands that only read a store start without the libraries of models and trainings."""

import subprocess
import sys

import pytest
from synthetic_runs import fill, make_rows

READERS = {
    "insights": ["--json"],
    "alerts": ["--json"],
    "report": ["-o", "{folder}/report.html"],
    "figures": ["-o", "{folder}/figures"],
}
# one process for all, since most of the time goes into imports; each reports what is imported after it
PROGRAM = """
import sys
from repdyn.cli.main import main
for line in sys.argv[1:]:
    try:
        main(line.split("\\n"))
    except SystemExit as exit:
        assert not exit.code, exit.code
    heavy = {"transformers", "lightning", "datasets", "wandb"} & set(sys.modules)
    print("imported by", line.split("\\n")[0], sorted(heavy))
"""


@pytest.mark.slow
@pytest.mark.process
def test_reading_a_store_imports_neither_models_nor_trainers(tmp_path):
    store = fill(tmp_path / "store", make_rows(steps=(0, 8), n_blocks=2))
    lines = [
        "\n".join([command, str(store.path), *(option.format(folder=tmp_path) for option in options)])
        for command, options in READERS.items()
    ]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *lines], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("imported by ")]
    assert found == [f"imported by {command} []" for command in READERS]


HEAVY = ("torch", "transformers", "lightning", "datasets", "plotly", "matplotlib", "pandas", "scipy")
LIGHT = [
    "audit",
    "demo",
    "explore",
    "export",
    "figures",
    "insights",
    "metrics",
    "query",
    "report",
    "study",
    "watch",
]
# in this order in one process, so that each may import what those before it did
STARTS = {
    "import repdyn": [],
    "repdyn --help": [],
    **{f"repdyn {command} --help": [] for command in LIGHT},
    "repdyn sweep --help": [],
    "repdyn sweep --list-suites": [],
    "repdyn reproduce --help": [],
    "repdyn metrics": [],
    "repdyn.Tracker": ["torch"],
    "repdyn.measure": ["torch"],
}
START = """
import sys
from contextlib import redirect_stdout
from io import StringIO
import repdyn
for line in sys.argv[2:]:
    with redirect_stdout(StringIO()):
        if line.startswith("repdyn "):
            from repdyn.cli.main import main
            try:
                main(line.split()[1:])
            except SystemExit as exit:
                assert not exit.code, exit.code
        else:
            exec(line)
    print(line, [name for name in sys.argv[1].split() if name in sys.modules], sep=": ")
"""


@pytest.mark.extended
@pytest.mark.process
def test_what_imports_and_help_wait_for():
    given = [sys.executable, "-c", START, " ".join(HEAVY), *STARTS]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{line}: {heavy}" for line, heavy in STARTS.items()]


@pytest.mark.process
def test_a_dry_run_waits_for_neither_torch_nor_pandas(hub, family, monkeypatch, tmp_path):
    hub.publish("lab/tiny", "step0", family[0])
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    line = f"repdyn sweep lab/tiny --dry-run --metrics all --store {tmp_path / 'sweeps'}"
    given = [sys.executable, "-c", START, " ".join(HEAVY), line]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{line}: []"]
