"""A metric of another package, as docs/own_metric.md writes it: measured, swept, drawn, listed and
reported.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import HandWritten, random_tokens

from repdyn import Probe, Tracker, open_store
from repdyn.metrics import METRICS, metric_info
from repdyn.views.tables.style import has_own_figures, metric_title, metric_unit

PAGE = (Path(__file__).parents[4] / "docs" / "own_metric.md").read_text()
NAMES = ["anisotropy", "longest_share", "longest_share[power=2]"]


def install(folder: Path, name: str, code: str, entry_points: str) -> None:
    """Make a package as pip leaves it: a module and its metadata."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[repdyn.metrics]\n{entry_points}\n")


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block
    install(folder, "longest", block[1], "longest = longest:METRIC")
    return folder


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", autouse=True)
def _fresh_registry(packages, monkeypatch_module):
    monkeypatch_module.syspath_prepend(packages)
    monkeypatch_module.setattr(METRICS, "_metrics", dict(METRICS))
    monkeypatch_module.delitem(vars(METRICS), "_loaded")


@pytest.fixture(scope="module")
def live(tmp_path_factory, quick_images):
    folder = tmp_path_factory.mktemp("live")
    torch.manual_seed(0)
    model = HandWritten()
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    with Tracker(
        model, probe, metrics=NAMES, schedule=1, store=folder / "mine", on_error="raise"
    ) as tracker:
        tracker.step(loss=1.0)
    return open_store(folder / "mine")


def test_it_is_measured_live_with_settings(live):
    frame = live.to_pandas()
    values = frame.loc[frame["layer"].notna()].pivot_table("value", ["step", "layer"], "metric")
    assert list(values) == NAMES
    assert (values["longest_share"] < values["longest_share[power=2]"]).all()


@pytest.mark.process
def test_commands_list_it_and_warn_of_broken_packages(packages, tmp_path):
    install(tmp_path, "broken", "raise RuntimeError('no kernel today')", "one = broken:METRIC")
    greedy = [
        "from repdyn.metrics import METRICS",
        "MINE = METRICS['two_nn'].__class__('two_nn', print)",
    ]
    install(tmp_path, "greedy", "\n".join(greedy), "two = greedy:MINE")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (packages, tmp_path)))}
    command = [sys.executable, "-m", "repdyn", "metrics"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert re.search(r"longest_share +share", result.stdout)
    assert (
        "the metrics of broken are not available: its entry point one = broken:METRIC raised "
        "RuntimeError: no kernel"
    ) in (result.stderr)
    assert "the metrics of greedy are not available" in result.stderr
    assert "expected a new name, got 'two_nn'" in result.stderr


def test_a_stored_metric_of_a_package_that_is_not_installed_goes_by_its_name():
    assert metric_title("theirs[k=3]") == "theirs, k 3"
    assert metric_unit("theirs") == "theirs"
    assert has_own_figures("theirs")
    with pytest.raises(RuntimeError, match="install its package"):
        metric_info("theirs").function()
