"""A package that views need and that is broken costs the views, never the job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
LOOP = """
import torch
from small import HandWritten, random_tokens
from repdyn import Probe, Tracker, open_store

probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
model = HandWritten()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Tracker(model, probe, schedule=1, store="store") as tracker:
    for _ in range(2):
        loss = model(random_tokens(4, 12)).square().mean()
        loss.backward()
        optimizer.step()
        tracker.step(loss=loss)
        if {interrupted}:
            raise SystemExit("of the user's own")
print("trained, measured at", open_store("store").steps("store"))
"""


def with_broken(package: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program where a package raises when it is imported, as one does whose libraries do not
    fit.
    """
    broken = folder / "broken" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(
        f"raise ImportError('{package} is broken: undefined symbol')\n"
    )
    paths = [str(broken.parent), str(ROOT / "src"), str(ROOT / "tests" / "support")]
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "package", ["matplotlib", "scipy", "rich", "plotly", "lightning", "transformers"]
)
def test_a_broken_package_ends_no_training(package: str, tmp_path: Path) -> None:
    done = with_broken(package, LOOP.format(interrupted=False), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    if package == "scipy":  # which measuring needs too: every value has an interval
        assert "trained, measured at []" in done.stdout
        assert "repdyn: 0 of 3 steps measured; step 0: ImportError: scipy is broken" in done.stderr
        return
    assert "trained, measured at [0, 1, 2]" in done.stdout
    assert "tracking at" not in done.stderr
    failed = f"failed, training goes on: ImportError: {package} is broken: undefined symbol"
    assert (failed in done.stderr) == (package in {"plotly", "matplotlib", "rich"}), done.stderr


@pytest.mark.process
def test_without_what_draws_the_commands_are_named_after_an_error(tmp_path: Path) -> None:
    done = with_broken("matplotlib", LOOP.format(interrupted=True), tmp_path)
    assert "of the user's own" in done.stderr
    assert "make figures and report with: repdyn figures" in done.stderr


@pytest.mark.process
def test_the_trainer_of_transformers_needs_no_lightning(tmp_path: Path) -> None:
    code = "from repdyn.callbacks import HuggingFaceTracker; print(HuggingFaceTracker.__name__)"
    done = with_broken("lightning", code, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "HuggingFaceTracker\n", done.stderr[-2000:]
