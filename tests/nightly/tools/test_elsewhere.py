"""What macOS and Windows lack, taken away on Linux: a job, a sweep and the commands run without it.

``nox -s elsewhere`` runs default tests so too. Not tried: drives and backslashes, consoles, wheels
of other systems.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repdyn.store.files import own_folder

HERE = Path(__file__).parent
RUNS = ("A", "a", "CON", "lab/x: y?.", "größer \N{SNOWMAN}")
REFUSED = re.compile(
    r'[<>:"/\\|?*\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE
)

TRAINING = f"""
from jobs import Job, batches, trainer
from repdyn import Probe
from repdyn.callbacks import RepresentationDynamics
from small import random_tokens
from torch.utils.data import DataLoader
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import build_model

if __name__ == "__main__":
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    for run in {RUNS!r}:
        settings = {{"schedule": 2, "on_error": "raise", "states_bytes": 0, "report": run == "A"}}
        tracker = RepresentationDynamics(probe, run=run, store="store", **settings)
        data = DataLoader(batches(n=8).dataset, batch_size=4, num_workers=1)
        trainer(".", tracker, max_steps=2).fit(Job(), data)
    sizes = {{"hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 64}}
    model = build_model("gpt_neox", vocab_size=260, **sizes)
    for step in (0, 8):
        model.save_pretrained(f"checkpoints/step{{step}}")
        byte_tokenizer().save_pretrained(f"checkpoints/step{{step}}")
"""
COMMANDS = (
    (
        "sweep checkpoints --store store --name aux --text {text} --sequence-length 16 "
        "--max-vectors 128"
    ),
    (
        "sweep checkpoints --store store --name aux --text {text} --sequence-length 16 "
        "--max-vectors 128"
    ),
    "figures store",
    "figures store --run A",
    "insights store",
    "report store",
    "watch . --once",
    "export store --to csv",
    "metrics",
    "demo --no-browser -o page",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where a job and the commands have run."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "job.py").write_text(TRAINING, encoding="utf-8")
    (folder / "text.txt").write_text(
        "All happy families are alike; größer \N{SNOWMAN}. " * 200, encoding="utf-8"
    )
    run(folder, "job.py")
    for command in COMMANDS:
        done = run(folder, "-m", "repdyn", *command.format(text="text.txt").split())
        (folder / f"said by {command.split()[0]}.txt").write_text(done, encoding="utf-8")
    return folder


def run(folder: Path, *command: str) -> str:
    """Return what a program printed, in cp1252."""
    paths = [HERE / "elsewhere", HERE.parents[2] / "src", HERE.parents[1] / "support"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONIOENCODING": "cp1252",
    }
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", *command],
        capture_output=True, timeout=580, check=False, cwd=folder, env=environment,
    )  # fmt: skip
    text = done.stdout.decode("cp1252")
    assert done.returncode == 0, f"{command}: {(text + done.stderr.decode('cp1252'))[-3000:]}"
    assert b"Traceback" not in done.stderr, done.stderr.decode("cp1252")[-3000:]
    return text


@pytest.mark.timeout(900)
def test_every_name_is_one_that_windows_takes_and_no_other_has(folder: Path) -> None:
    paths = [path.relative_to(folder) for path in folder.rglob("*")]
    assert len(list((folder / "store").glob("*/step*.parquet"))) == 2 * len(RUNS) + 2
    assert [str(path) for path in paths if REFUSED.search(path.name)] == []
    # an export counts up versions in whatever folder it finds
    folded = [str(path).casefold() for path in paths if "exports" not in path.parts]
    assert sorted({name for name in folded if folded.count(name) > 1}) == []


@pytest.mark.timeout(900)
def test_other_letters_of_a_name_end_no_command(folder: Path) -> None:
    said = (folder / "said by export.txt").read_text(encoding="utf-8")
    assert r"größer \u2603: 2 checkpoints in" in said


def test_a_run_whose_folder_another_one_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where upper and lower case are one, a sweep of "a" would take the rows of "A" for its own."""
    monkeypatch.setattr(
        Path,
        "exists",
        lambda path: path.name.casefold() in map(str.casefold, os.listdir(path.parent)),
    )
    own_folder(tmp_path / "A").mkdir()
    own_folder(tmp_path / "A")
    with pytest.raises(
        ValueError, match="got 'a', and 'A' is there, which this file system does not tell apart"
    ):
        own_folder(tmp_path / "a")
