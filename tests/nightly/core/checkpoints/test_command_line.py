"""The whole command against a hub on this machine: exit statuses, what is refused, and what a
process prints.
"""

from __future__ import annotations

import signal
import time

import huggingface_hub
import pytest
import torch
from sweeping import MEASURED, lines, weights_fetched
from transformers import MambaConfig, MambaForCausalLM

from repdyn import open_store
from repdyn.checkpoints.measuring import measure_checkpoint
from repdyn.data.tokens import byte_tokenizer

# exit statuses


def test_no_network(hub, commits, command):
    hub.__exit__()
    huggingface_hub.close_session()
    for named in (["lab/model"], ["--suite", "pythia-14m"], ["lab/model", "--dry-run"]):
        status, out, err = command(*named)
        assert status == 1
        assert out == ""
        assert err.startswith("stopped: no connection to http://127.0.0.1:")
        assert "HF_HUB_OFFLINE=1" in err


def test_the_network_fails_during_a_sweep(hub, commits, command, monkeypatch):
    """Measurements are stored, no failure is recorded, and the same command continues."""

    def measured(task, *arguments):
        timing = measure_checkpoint(task, *arguments)
        hub.__exit__()
        huggingface_hub.close_session()
        return timing

    monkeypatch.setattr("repdyn.checkpoints.measuring.measure_checkpoint", measured)
    status, _, err = command("lab/model")
    assert status == 1
    assert err.splitlines()[-1].startswith("stopped: no connection to")
    store = open_store("sweeps")
    assert store.steps("lab/model") in ([0], [0, 8])  # the next one may have been fetched by then
    assert list(store.path.rglob("*failed*")) == []


# as a process


@pytest.mark.process
def test_a_reader_that_has_seen_enough_prevents_no_report(hub, commits, start, tmp_path):
    process = start("lab/model", "--metrics", "anisotropy", "--revisions", "step0,step8")
    process.stdout.close()
    assert process.wait() == 0
    assert (tmp_path / "sweeps" / "report.html").exists()


@pytest.mark.once
@pytest.mark.process
def test_interrupted_during_two_downloads_and_completed(hub, commits, start, tmp_path):
    store = open_store(tmp_path / "sweeps")
    downloads = tmp_path / "c" / "downloads"
    moments = {
        # in the first download, and in the second one, when the first checkpoint is measured
        signal.SIGINT: lambda: commits[0] in weights_fetched(hub),
        signal.SIGTERM: lambda: store.steps("lab/model") == [0],
    }
    for (kind, has_come), step in zip(moments.items(), (0, 8), strict=True):
        hub.faults.clear()
        hub.fault(
            f"{commits[step]}/model.safetensors",
            "slow",
            bytes_per_second=25_000 if step == 0 else 15_000,
        )
        process = start("lab/model")
        while process.poll() is None and not has_come():
            time.sleep(0.02)
        process.send_signal(kind)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert out == "", err
        assert lines(err)[-1] == (
            "stopped; completed measurements are stored, and the same command continues the sweep"
        )
        assert "Traceback" not in err
        assert [path.name for path in downloads.rglob("*")] == ["repdyn-downloads"]
    assert store.steps("lab/model") == [0]
    assert list(store.path.rglob("*failed*")) == []

    # Without a terminal there is a plain line for each checkpoint, and no word of a request that
    # was repeated.
    hub.faults.clear()
    hub.fault(f"^HEAD .*{commits[8]}/model", "status", code=500, times=1)
    process = start("lab/model")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert lines(err) == [
        "1 of 3 checkpoints are in sweeps already",
        f"[1/2] lab/model step8: {MEASURED}",
        f"[2/2] lab/model step16: {MEASURED}",
    ]
    assert "3 steps, 0 to 16" in out
    assert "\x1b" not in out + err
    assert list((store.path / "figures").rglob("*.png"))
    assert store.steps("lab/model") == [0, 8, 16]
    assert [path.name for path in downloads.rglob("*")] == ["repdyn-downloads"]


@pytest.mark.process
def test_a_healthy_sweep_prints_its_own_lines_alone(start, tmp_path):
    """transformers says of Mamba, once in a process, that kernels are missing; its weights have
    progress bars.
    """
    config = MambaConfig(vocab_size=260, hidden_size=16, num_hidden_layers=2, state_size=4)
    for step in (0, 8):
        torch.manual_seed(step)
        MambaForCausalLM(config).save_pretrained(tmp_path / "lab" / "mamba" / f"step{step}")
        byte_tokenizer().save_pretrained(tmp_path / "lab" / "mamba" / f"step{step}")
    process = start("lab/mamba", "--sequence-length", "32", "--metrics", "all")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert lines(err) == [
        f"[{number}/2] lab/mamba step{step}: {MEASURED}" for number, step in ((1, 0), (2, 8))
    ]
    assert "[transformers]" not in out
