"""Local checkpoints: found, measured once, resumed; and the command that does it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import random_tokens

from repdyn import Probe, open_store
from repdyn.models import build_model
from repdyn.sweep import find_checkpoints, sweep
from repdyn.sweep.cli import main

SIZES = {"vocab_size": 50, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 12}


@pytest.fixture
def run(tmp_path) -> Path:
    """A run's folder with three checkpoints and its probe."""
    for step in (0, 8, 16):
        torch.manual_seed(step)
        build_model("gpt_neox", **SIZES).save_pretrained(tmp_path / "quick" / "run" / "hf_checkpoints" / f"step{step}")
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    open_store(tmp_path / "quick" / "run" / "repdyn").save_probe(probe)
    return tmp_path / "quick" / "run"


def test_find_checkpoints(run):
    found = find_checkpoints(run / "hf_checkpoints")
    assert [(checkpoint.path.name, checkpoint.step) for checkpoint in found] == [
        ("step0", 0),
        ("step8", 8),
        ("step16", 16),
    ]
    assert [checkpoint.step for checkpoint in find_checkpoints(run / "hf_checkpoints" / "step8")] == [8]


def test_find_checkpoints_refuses(run, tmp_path):
    with pytest.raises(
        ValueError, match=r"expected checkpoints \(folders such as step512 with a config.json\) in .*, found none"
    ):
        find_checkpoints(tmp_path)
    (run / "hf_checkpoints" / "step0").rename(run / "hf_checkpoints" / "copy-8")
    with pytest.raises(ValueError, match=r"expected one checkpoint for each step, got .*8 and .*8; sweep them apart"):
        find_checkpoints(run / "hf_checkpoints")


def test_a_second_sweep_repeats_nothing(run, tmp_path):
    probe = Probe.load(next((run / "repdyn" / "probes").iterdir()))
    store, found = open_store(tmp_path / "swept"), find_checkpoints(run / "hf_checkpoints")
    sweep(found[:2], probe, store, run="swept")
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*.parquet")}
    sweep(found, probe, store, run="swept")
    assert store.steps("swept") == [0, 8, 16]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    sweep(found, probe, store, run="swept", metrics=["two_nn@no_sink"])  # another question is asked anew
    assert len(list(store.path.rglob("step*.parquet"))) == 6


def test_half_precision_checkpoints_are_measured_as_they_are(run, tmp_path):
    probe = Probe.load(next((run / "repdyn" / "probes").iterdir()))
    build_model("gpt_neox", **SIZES).to(torch.bfloat16).save_pretrained(tmp_path / "half" / "step4")
    store = open_store(tmp_path / "swept")
    sweep(find_checkpoints(tmp_path / "half"), probe, store, run="half")
    assert set(store.to_pandas()["dtype"]) == {"bfloat16"}


def test_command(run, capsys):
    main([str(run), "--metrics", "two_nn"])
    store = open_store(run / "sweep")
    assert store.runs() == ["run/hf_checkpoints"]
    assert store.steps("run/hf_checkpoints") == [0, 8, 16]
    assert list(store.path.glob("figures/heatmap_two_nn_all.png"))
    assert "3 steps, 0 to 16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "expected checkpoints"),
        (["RUN", "--metrics", "twonn"], "expected metrics among anisotropy, two_nn, got 'twonn'"),
        (["RUN/hf_checkpoints"], "found 0; name the probe with --probe FILE"),
        (["RUN", "--probe", "none.safetensors"], "none.safetensors"),
        (
            ["RUN", "--layers", "h.*"],
            "'h.\\*' matches none; lists of blocks in it: \"layers.\\*\" \\(2 of GPTNeoXLayer\\)",
        ),
    ],
)
def test_command_says_what_is_wrong_without_a_traceback(run, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main([argument.replace("RUN", str(run)) for argument in arguments])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert re.search(message, printed)


def test_script_and_views_command_have_help_with_examples(run):
    for command in (["analyze_checkpoints.py", "--help"], ["-m", "repdyn.views", "--help"]):
        result = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
        )
        assert "example" in result.stdout
    main([str(run)])
    shown = subprocess.run(
        [sys.executable, "-m", "repdyn.views", str(run / "sweep")], capture_output=True, text=True, check=True
    )
    assert "run/hf_checkpoints" in shown.stdout
    empty = subprocess.run(
        [sys.executable, "-m", "repdyn.views", str(run)], capture_output=True, text=True, check=False
    )
    assert (empty.returncode, empty.stderr.splitlines()[-1]) == (
        2,
        f"error: expected a store with measurements, found none in {run}",
    )


def test_config_json_alone_is_no_checkpoint(run, capsys):
    broken = run / "hf_checkpoints" / "step99"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    with pytest.raises(SystemExit):
        main([str(run)])
    assert "no file named model.safetensors" in capsys.readouterr().err
    assert open_store(run / "sweep").steps("run/hf_checkpoints") == [0, 8, 16]  # what came before is kept
