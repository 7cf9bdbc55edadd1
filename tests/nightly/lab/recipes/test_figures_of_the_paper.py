"""The command of each figure of The Shape of Learning, as docs/reproduce.md has it, on stand-ins of
its families.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from test_rows_handed_in import faults
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from repdyn import open_store
from repdyn.cli.main import main
from repdyn.data.tokens import byte_tokenizer

PAGE = Path(__file__).parents[4] / "docs" / "reproduce.md"
STORE = "docs/public_models/rows"
COMMANDS = re.findall(
    r"^    repdyn (sweep --suite .*?) +# figure \d", PAGE.read_text(), re.MULTILINE
)
FINISHED = {
    "bert": "google-bert/bert-base-uncased",
    "roberta": "FacebookAI/roberta-base",
    "albert": "albert/albert-base-v2",
    "gpt2": "openai-community/gpt2",
    "opt": "facebook/opt-125m",
    "llama": "meta-llama/Llama-2-7b-hf",
    "gptj": "EleutherAI/gpt-j-6b",
    "falcon": "tiiuae/falcon-7b",
}
HISTORIES = {
    "gpt_neox": ("EleutherAI/pythia-70m", "step{}", (0, 512, 64000, 143000)),
    "bloom": ("bigscience/bloom-560m-intermediate", "global_step{}", (1000, 100000, 600000)),
}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TOKENS = {"vocab_size": 260, "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}


@pytest.fixture
def published(hub, tmp_path):
    def publish(family: str, repository: str, revision: str = "main", seed: int = 0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = AutoConfig.for_model(
                family, **SIZES, **TOKENS, **({"rotary_dim": 4} if family == "gptj" else {})
            )
            auto = AutoModelForMaskedLM if "bert" in family else AutoModelForCausalLM
            auto.from_config(config).save_pretrained(tmp_path / "saved")
        byte_tokenizer().save_pretrained(tmp_path / "saved")
        hub.publish(repository, revision, tmp_path / "saved")
        shutil.rmtree(tmp_path / "saved")

    for family, repository in FINISHED.items():
        publish(family, repository)
    for family, (repository, name, steps) in HISTORIES.items():
        for step in steps:
            publish(family, repository, name.format(step), step)
    publish("bloom", "bigscience/bloom-560m")  # whose tokenizer the history has


def test_one_command_each(published, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    quick = [
        "--text",
        "builtin",
        "--sequence-length",
        "16",
        "--max-vectors",
        "256",
        "--device",
        "cpu",
    ]
    for number, command in enumerate(COMMANDS, start=1):
        given = [*command.split(), *quick, "--downloads", str(tmp_path / "downloads")]
        capsys.readouterr()
        main([*given, "--dry-run", "--json"])
        plans = json.loads(capsys.readouterr().out)
        # figures 3 and 4 are of what figure 2 has measured
        assert all(bool(plan["download_bytes"]) == (number < 3) for plan in plans)
        main(given)
    rows = open_store(STORE).to_pandas().dropna(subset=["layer"])
    runs = rows.groupby("run", observed=True).agg(
        {"causal": "first", "layer": "nunique", "step": "nunique"}
    )
    found = {
        str(run): (bool(causal), layers, steps) for run, causal, layers, steps in runs.itertuples()
    }
    expected = {repository: ("bert" not in family, 6, 1) for family, repository in FINISHED.items()}
    assert found == expected | {
        name: (True, 6, len(steps)) for name, _, steps in HISTORIES.values()
    }
    drawn = {
        path.relative_to(Path(STORE) / "figures").as_posix() for path in Path(STORE).rglob("*.png")
    }
    profiles = {
        f"{name.replace('/', '_')}/profile_anisotropy.png" for name, *_ in HISTORIES.values()
    }
    assert {
        "comparison/profiles_anisotropy.png",
        "comparison/means_over_layers.png",
    } | profiles <= drawn
    assert faults(Path(STORE)) == []
