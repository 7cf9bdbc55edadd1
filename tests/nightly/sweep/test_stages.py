"""Stages of post-training are runs of their own, which a comparison shows in the order of the stages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repdyn import open_store
from repdyn.cli.sweep import main as sweep
from repdyn.tables.runs import measured_runs

SUITE = """title: stages
card: here
models:
  - {name: base, run: lab/m/0-base, checkpoints: [{repository: lab/m, step: 0, stage: finished}], tokenizer: lab/m}
  - {name: sft, run: lab/m/1-sft, checkpoints: [{repository: lab/m-SFT, step: 0, stage: finished}], tokenizer: lab/m}
  - {name: dpo, run: lab/m/2-dpo, checkpoints: [{repository: lab/m-DPO, step: 0, stage: finished}], tokenizer: lab/m}
  - {name: rlvr, run: lab/m/3-rlvr, repository: lab/m-RLVR, revisions: 'step_(?P<step>\\d+)', tokenizer: lab/m}
"""


@pytest.mark.extended
@pytest.mark.slow
def test_stages_are_compared_in_order_and_share_no_curve(hub, family, tmp_path, capsys, quick_images):
    for name, step in (("lab/m", 0), ("lab/m-SFT", 8), ("lab/m-DPO", 16)):
        hub.publish(name, "main", family[step])
    for step in (8, 16):
        hub.publish("lab/m-RLVR", f"step_{step:04d}", family[step])
    suite = tmp_path / "stages.yaml"
    suite.write_text(SUITE)
    store = tmp_path / "store"
    with pytest.raises(SystemExit) as ended:
        sweep(["--suite", str(suite), "--text", "builtin", "--max-vectors", "64", "--store", str(store)])
    assert ended.value.code == 0
    frame = open_store(store).to_pandas()
    steps = frame.groupby("run")["step"].unique().map(sorted).to_dict()
    assert steps == {"lab/m/0-base": [0], "lab/m/1-sft": [0], "lab/m/2-dpo": [0], "lab/m/3-rlvr": [8, 16]}
    runs = measured_runs(frame)
    assert [(run.label, run.finished) for run in runs] == [
        ("0-base", True),
        ("1-sft", True),
        ("2-dpo", True),
        ("3-rlvr", False),
    ]
    assert len(set(frame["probe"])) == 1
    shown = capsys.readouterr().out
    assert re.search("0-base.*1-sft.*2-dpo.*3-rlvr", shown, re.DOTALL)
    assert list(Path(store).rglob("*compar*"))
