"""Stand-ins of the models of the paper, published on a hub of this machine."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from repdyn.data.tokens import byte_tokenizer

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
