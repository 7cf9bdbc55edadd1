"""Which files are fetched, and that the model they give is what was published."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sweeping import downloads_in, measure_tasks, settings
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from repdyn import Probe, measure, open_store
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.options import Loading
from repdyn.checkpoints.tasks import Task
from repdyn.checkpoints.weights import load_model


def with_configuration(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 64,
}
T5 = {
    "d_model": 16,
    "d_ff": 32,
    "d_kv": 8,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "vocab_size": 64,
}


@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (lambda: LlamaForCausalLM(LlamaConfig(**SMALL)), {"num_hidden_layers": 0}),
        (lambda: LlamaModel(LlamaConfig(**SMALL)), {"num_hidden_layers": 0}),
        (lambda: T5ForConditionalGeneration(T5Config(**T5)), {"num_decoder_layers": 0}),
        (lambda: T5ForConditionalGeneration(T5Config(**T5)), {"num_layers": 0}),
    ],
    ids=["Llama", "Llama without a head", "decoder of T5", "encoder of T5"],
)
def test_a_configuration_without_any_layer_of_a_stack(tmp_path, make, changes, with_head):
    make().save_pretrained(tmp_path)
    load_model(tmp_path, Loading(), with_head=with_head)
    with pytest.raises(
        CheckpointError, match=r"has blocks that its configuration lacks, \d+ weights such as "
    ):
        load_model(with_configuration(tmp_path, **changes), Loading(), with_head=with_head)


ON_DISK = dict.fromkeys(("embed_in", "emb_dropout", "rotary_emb", "final_layer_norm"), "cpu")
ON_DISK |= {"layers.0": "disk", "layers.1": "disk"}


@pytest.mark.parametrize("places", ["auto", ON_DISK], ids=["auto", "blocks on disk"])
def test_a_model_spread_over_memory_and_disk_gives_the_same_numbers(family, places, tmp_path):
    pytest.importorskip("accelerate")
    tokens = torch.randint(3, 250, (24, 12), generator=torch.Generator().manual_seed(0))
    probe = Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96)
    loadings = (Loading(), Loading(device_map=places))
    whole, spread = (
        measure(load_model(family[8], loading, tmp_path), probe) for loading in loadings
    )
    assert [row.value for row in spread.rows] == [row.value for row in whole.rows]
    assert [row.parameters for row in spread.rows] == [row.parameters for row in whole.rows]


def test_remote_code_is_not_run_unless_asked_for(family, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    folder = family[8]
    config = json.loads((folder / "config.json").read_text())
    custom = {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config | custom))
    (folder / "mine.py").write_text(
        "from transformers import GPTNeoXConfig, GPTNeoXModel\n"
        "class Config(GPTNeoXConfig):\n    model_type = 'mine'\n"
        "class Model(GPTNeoXModel):\n    config_class = Config\n"
    )
    with pytest.raises(
        CheckpointError,
        match="it needs Python code of its own repository; .* allow it with trust_remote_code",
    ):
        load_model(folder, Loading())
    assert type(load_model(folder, replace(Loading(), trust_remote_code=True))).__name__ == "Model"


def test_both_stacks_of_an_encoder_decoder_come_through_a_sweep(tmp_path):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=260, d_model=16, d_ff=32, d_kv=8, num_layers=2, num_decoder_layers=3, num_heads=2
    )
    model = T5ForConditionalGeneration(config).eval()
    for step in (0, 10):
        model.save_pretrained(tmp_path / "checkpoints" / f"step{step}")
    tokens = torch.randint(3, 250, (24, 12), generator=torch.Generator().manual_seed(0))
    probe = Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96)
    tasks = [
        Task(target, probe) for target in find_checkpoints(tmp_path / "checkpoints", "t5").targets
    ]
    store = open_store(tmp_path / "store")
    report = measure_tasks(tasks, store, settings(), downloads_in(tmp_path / "downloads"))
    assert [task.target.step for task in report.measured] == [0, 10]
    rows = store.to_pandas("t5").query("layer.notna() and metric == 'two_nn' and step == 10")
    assert rows.groupby("stack")["layer"].max().to_dict() == {"encoder": 2, "decoder": 3}
    assert rows.groupby("stack")["causal"].unique().map(list).to_dict() == {
        "encoder": [False],
        "decoder": [True],
    }
    expected = {(row.stack, row.layer): row.value for row in measure(model, probe, ["two_nn"]).rows}
    assert (
        dict(zip(zip(rows["stack"], rows["layer"], strict=True), rows["value"], strict=True))
        == expected
    )
