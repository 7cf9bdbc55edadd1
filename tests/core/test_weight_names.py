"""Weights that a model does not use, or lacks: harmless by name, or the checkpoint is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5EncoderModel,
)

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.options import Loading
from repdyn.checkpoints.other_weights import warn_of_other_sizes
from repdyn.checkpoints.weight_files import ADAPTER, ListedFile, choose_files, files_in
from repdyn.checkpoints.weights import load_model

DIM = 16
SIZES = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


def llama():
    return LlamaForCausalLM(LlamaConfig(intermediate_size=32, **SIZES))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_embd=DIM, n_layer=2, n_head=2, vocab_size=64))


def bert():
    return BertForMaskedLM(BertConfig(intermediate_size=32, **SIZES))


def with_more(folder: Path, model, more, *, prefix: str = "") -> Path:
    """The checkpoint of a model, with further tensors in its file."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    tensors |= more if isinstance(more, dict) else {name: torch.ones(DIM) for name in more}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def short_name(case) -> str:
    if isinstance(case, list | dict):
        return next(iter(case))
    return case if isinstance(case, str) else case.__name__


PROJECTION = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("with_head", [False, True], ids=["without head", "with head"])
@pytest.mark.parametrize(
    ("make", "more", "word"),
    [
        (llama, [f"{PROJECTION}.weight_scale"], "quantization_config"),
        (llama, [f"{PROJECTION}.weight_scale_inv"], "quantization_config"),
        (llama, [f"{PROJECTION}.SCB"], "quantization_config"),
        (llama, ["lm_head.weight_scale"], "quantization_config"),
        (llama, ["model.layers.1.mlp.experts.down_proj_scales"], "quantization_config"),
        (
            llama,
            {f"{PROJECTION}.weight": torch.ones(DIM, DIM, dtype=torch.int8)},
            "quantization_config",
        ),
        (llama, [f"{PROJECTION}.bias"], "attention_bias"),
        (llama, ["model.layers.1.mlp.up_proj.bias", "model.norm.bias"], "mlp_bias"),
        (llama, [f"{PROJECTION}.lora_A.weight", f"{PROJECTION}.lora_B.weight"], "merge"),
        (llama, [f"base_model.model.{PROJECTION}.lora_A.default.weight"], "merge"),
        (llama, [f"{PROJECTION}.lora_magnitude_vector.weight"], "merge"),
        (llama, ["prompt_encoder.embedding.weight"], "adapter"),
        (llama, ["model.layers.0.self_attn.q_norm.weight"], "q_norm"),
        (llama, ["model.embed_norm.weight"], "embed_norm"),
        (llama, ["model.layers.0.layer_scale"], "another model's"),
        (gpt2, ["transformer.h.0.mlp.gate.weight"], "gate"),
        (bert, {"bert.encoder.layer.0.attention.bias": torch.ones(DIM)}, "attention.bias"),
        (bert, ["bert.encoder.layer.0.attention.output.gamma_2"], "gamma_2"),
    ],
    ids=short_name,
)
def test_what_a_model_leaves_out_and_would_change_it_is_refused(
    tmp_path, make, more, word, with_head
):
    """Each would give the values of another model, without a word."""
    with pytest.raises(CheckpointError, match=word):
        load_model(with_more(tmp_path, make(), more), Loading(), with_head=with_head)


@pytest.mark.parametrize("with_head", [False, True], ids=["without head", "with head"])
@pytest.mark.parametrize(
    ("make", "more"),
    [
        (llama, [f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in (0, 1)]),
        (llama, ["model.layers.0.self_attn.rotary_emb.cos_cached"]),
        (llama, ["rope.freqs"]),
        (llama, ["model.layers.0.self_attn.k_scale"]),
        (llama, ["score.weight"]),
        (llama, ["v_head.summary.weight", "v_head.summary.bias"]),
        (llama, ["mtp.layers.0.self_attn.q_proj.weight"]),
        (gpt2, {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8)}),
        (gpt2, {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}),
        (bert, ["bert.embeddings.position_ids"]),
        (bert, {"bert.pooler.dense.weight": torch.ones(DIM, DIM)}),
        (llama, ["logit_scale"]),
        (bert, ["cls.seq_relationship.weight"]),
    ],
    ids=short_name,
)
def test_what_published_checkpoints_hold_beside_their_weights_is_harmless(
    tmp_path, make, more, with_head, caplog
):
    folder = with_more(tmp_path, make(), more)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(folder, Loading(), with_head=with_head)
    assert hasattr(loaded, "lm_head") or hasattr(loaded, "cls") or not with_head
    assert "not read" not in caplog.text


@pytest.mark.parametrize("with_head", [False, True], ids=["without head", "with head"])
def test_names_of_a_model_saved_without_the_beginning_of_its_names(tmp_path, with_head):
    """As the first GPT-2 was: a module that is none of the model's may be in it."""
    mask = {"h.0.attn.bias": torch.ones(1, 1, 8, 8)}
    folder = with_more(tmp_path / "sound", gpt2(), mask, prefix="transformer.")
    assert load_model(folder, Loading(), with_head=with_head)
    for number, name in enumerate(("h.0.attn.c_attn.scaled", "embedding_norm.weight")):
        folder = with_more(tmp_path / f"other{number}", gpt2(), [name], prefix="transformer.")
        with pytest.raises(CheckpointError, match=name):
            load_model(folder, Loading(), with_head=with_head)


def test_a_module_of_ones_own_beside_the_model_is_named(tmp_path, caplog):
    folder = with_more(tmp_path, llama(), ["regression.weight"])
    with caplog.at_level(logging.WARNING):
        load_model(folder, Loading())
    assert "regression.weight" in caplog.text


def test_one_of_two_models_is_not_chosen(tmp_path):
    """Two towers: the first one's names would have been taken, without a word."""
    llama().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {
        f"{tower}.{name}": value.clone()
        for tower in ("query", "passage")
        for name, value in tensors.items()
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="two"):
        load_model(tmp_path, Loading())


def test_biases_that_the_configuration_names_are_read(tmp_path):
    LlamaForCausalLM(
        LlamaConfig(intermediate_size=32, attention_bias=True, **SIZES)
    ).save_pretrained(tmp_path)
    loaded = load_model(tmp_path, Loading())
    assert loaded.layers[0].self_attn.q_proj.bias is not None
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attention_bias": False}))
    with pytest.raises(CheckpointError, match="attention_bias"):
        load_model(tmp_path, Loading())


@pytest.mark.parametrize("with_head", [False, True], ids=["without head", "with head"])
def test_positions_that_are_computed_need_not_be_stored(tmp_path, with_head):
    """Marian saves none, and was refused as if they were random."""
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=64,
        d_model=DIM,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=32,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    saved = MarianMTModel(config)
    saved.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, Loading(), with_head=with_head).base_model
    expected = saved.model.encoder.embed_positions.weight
    assert torch.equal(loaded.get_encoder().embed_positions.weight, expected)


def shards_of(folder: Path, model) -> None:
    """Save the weights of a model as shards beside what is in the folder."""
    model.save_pretrained(folder / "shards", max_shard_size="20KB")
    for path in (folder / "shards").glob("model*"):
        path.rename(folder / path.name)


@pytest.mark.parametrize("seed", [0, 1], ids=["the same weights", "other weights"])
@pytest.mark.parametrize("form", ["shards", "pytorch_model.bin"])
def test_stale_weights_beside_others_are_named(tmp_path, seed, form, caplog):
    """What transformers reads is measured: the single file, however old it is."""
    torch.manual_seed(0)
    read = llama()
    read.save_pretrained(tmp_path)
    torch.manual_seed(seed)
    if form == "shards":
        shards_of(tmp_path, llama())
    else:
        torch.save(llama().half().state_dict(), tmp_path / form)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(tmp_path, Loading())
    assert torch.equal(loaded.embed_tokens.weight, read.model.embed_tokens.weight)
    assert ("other weights" in caplog.text) == (seed == 1)


def test_files_of_an_adapter_are_read_where_its_configuration_is(tmp_path, caplog):
    """Merged models are published with what is left of their adapter; on the hub the adapter's file
    was downloaded in place of the model's."""
    read = llama()
    read.save_pretrained(tmp_path)
    save_file({"q_proj.lora_A.weight": torch.ones(2, DIM)}, tmp_path / "adapter_model.safetensors")
    names = files_in(tmp_path)
    assert "model.safetensors" in choose_files(names)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(tmp_path, Loading())
    assert torch.equal(loaded.embed_tokens.weight, read.model.embed_tokens.weight)
    assert not caplog.text
    assert "adapter_model.safetensors" in choose_files(names | {ADAPTER: ListedFile(9)})


def test_the_shapes_are_named_where_the_configuration_has_others(tmp_path):
    """A padded vocabulary was refused with advice on an argument of transformers."""
    llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    with pytest.raises(CheckpointError, match=r"\(64, 16\) for \(60, 16\)"):
        load_model(tmp_path, Loading())


@pytest.mark.parametrize("with_head", [False, True], ids=["without head", "with head"])
def test_the_encoder_of_an_encoder_decoder_is_read_alone(tmp_path, with_head):
    """It was refused, since it has no decoder."""
    sizes = {"d_model": DIM, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    saved = T5EncoderModel(T5Config(vocab_size=64, **sizes))
    saved.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, Loading(), with_head=with_head)
    assert {*loaded.state_dict()} == {*saved.state_dict()}


def test_stale_weights_on_the_hub_are_named_if_their_size_differs(caplog):
    single = {"model.safetensors": ListedFile(1000)}
    shards = {f"model-0000{n}-of-00002.safetensors": ListedFile(500) for n in (1, 2)}
    index = {"model.safetensors.index.json": ListedFile(9)}
    pickled = {"pytorch_model.bin": ListedFile(2000)}
    with caplog.at_level(logging.WARNING):
        warn_of_other_sizes("lab/model", single | shards | index | pickled)
    assert not caplog.text
    shards = {name: ListedFile(700) for name in shards}
    with caplog.at_level(logging.WARNING):
        warn_of_other_sizes("lab/model", single | shards | index)
    assert "another size" in caplog.text


def test_the_context_of_a_roberta_is_without_the_positions_of_its_padding():
    """The sweep ended with IndexError, and advised another probe."""
    from types import SimpleNamespace

    from transformers import RobertaConfig, RobertaModel

    from repdyn.checkpoints.probes import context_length

    config = RobertaConfig(intermediate_size=32, max_position_embeddings=34, **SIZES)
    no_limit = SimpleNamespace(model_max_length=10**30)
    length = context_length(config, no_limit)
    assert length == 32
    model = RobertaModel(config).eval()
    assert model(torch.full((1, length), 5)).last_hidden_state.shape == (1, 32, DIM)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, length + 1), 5))
