"""Every whole program in the documentation runs as it is printed."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from repdyn import open_store

PAGES = "\n".join(
    path.read_text() for path in sorted((Path(__file__).parents[3] / "docs").rglob("*.md"))
)
EXAMPLES = dict(
    re.findall(
        r"<!-- example: (\w+\.py) -->\n```python\n(.*?)```\n<!-- /example -->", PAGES, re.DOTALL
    )
)

STORES = {
    "images.py": ("runs/images", "images", [0, 4, 8]),
    "lightning_hugging_face.py": ("runs/lightning/0/repdyn", "lightning/0", [0, 5, 10]),
    "hugging_face_trainer.py": ("runs/trainer/repdyn", "trainer", [0, 5, 10]),
    "lightning_module.py": (
        "lightning_logs/version_0/repdyn",
        "lightning_logs/0",
        [0, 10, 20, 30, 40],
    ),
    "loop.py": ("runs/loop", "loop", [0, 5, 10, 15, 16]),
    "start.py": ("runs/start", "start", [0, 8, 16]),
    "two_ranks.py": ("runs/two_ranks/0/repdyn", "two_ranks/0", [0, 5, 10]),
}


def test_every_example_is_known():
    assert set(EXAMPLES) == {*STORES, "embeddings.py"}


def test_embeddings_are_logged_as_printed(tmp_path, monkeypatch):
    (tmp_path / "embeddings.py").write_text(EXAMPLES["embeddings.py"])
    monkeypatch.chdir(tmp_path)
    logged = runpy.run_path("embeddings.py", run_name="__main__")["trainer"].callback_metrics
    assert 1 < logged["val/rank_me"] <= 16
    assert 1 < logged["val/two_nn"] <= 16


@pytest.mark.process
@pytest.mark.parametrize("name", STORES)
def test_example_runs_as_printed(tmp_path, monkeypatch, request, name):
    if name != "start.py":
        request.getfixturevalue("quick_images")
    (tmp_path / name).write_text(EXAMPLES[name])
    monkeypatch.chdir(tmp_path)
    if name == "two_ranks.py":  # which starts another process as it was started itself
        result = subprocess.run(
            [sys.executable, name], capture_output=True, text=True, check=False, env=os.environ
        )
        assert result.returncode == 0, result.stderr[-3000:]
    else:
        runpy.run_path(name, run_name="__main__")
    path, run, steps = STORES[name]
    store = open_store(tmp_path / path)
    assert store.steps(run) == steps
    frame = store.to_pandas(run)
    # the untrained models of the examples have hundreds of tokens, whose vectors lie in as many
    # tight clusters
    too_few = frame["reason"].fillna("").str.contains("are distinct|nearly the same")
    assert frame.loc[frame["layer"].notna() & ~too_few, "value"].notna().all()
    assert set(frame.loc[too_few, "metric"]) <= {"two_nn"}
    assert (frame["metric"] == "train/loss").any()
    assert (store.path / "figures" / "mean_over_layers.png").exists()
