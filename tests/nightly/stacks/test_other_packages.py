"""Models and trainers of other packages, tracked in the documented way. Skipped where a package is not installed.

``nox -s stacks`` installs them into an environment of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from repdyn import Probe, Tracker, measure, open_store
from repdyn.callbacks import HuggingFaceTracker
from repdyn.data.tokens import byte_tokenizer

TOKENS = torch.randint(3, 50, (256, 24), generator=torch.Generator().manual_seed(0))
TEXTS = [f"sentence number {number} about topic {number % 7}" for number in range(64)]


def probe_of_tokens() -> Probe:
    return Probe.from_tokens(TOKENS[:128], max_vectors=1024, batch_vectors=256)


def probe_of_texts(tokenizer: Any) -> Probe:
    return Probe.from_texts([" ".join(TEXTS)] * 20, tokenizer, sequence_length=32, max_vectors=512, batch_vectors=128)


def stored(folder: Path) -> Any:
    """Return the rows of layers, after checking that all steps and values are there, but for few distinct embeddings."""
    frame = open_store(folder).to_pandas()
    frame = frame[frame["layer"].notna()]
    assert sorted(frame["step"].unique()) == [0, 2, 4]
    assert bool(frame.loc[frame["layer"] > 0, "value"].notna().all())
    return frame


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, weight), same in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(weight, same), name


def next_token_loss(logits: Tensor, batch: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def test_litgpt_under_lightning_fabric(tmp_path, without_figures) -> None:
    litgpt = pytest.importorskip("litgpt")
    from lightning.fabric import Fabric

    def train(tracked: bool) -> nn.Module:
        torch.manual_seed(0)
        fabric = Fabric(accelerator="cpu", precision="bf16-mixed", devices=1)
        plain = litgpt.GPT(
            litgpt.Config(block_size=24, vocab_size=50, padded_vocab_size=50, n_layer=2, n_head=2, n_embd=32)
        )
        model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), 1e-3))
        probe = probe_of_tokens()
        tracker = Tracker(model, probe, schedule=2, store=tmp_path / "store", report=False).start() if tracked else None
        for batch in TOKENS[128:].split(32):
            loss = next_token_loss(model(batch), batch)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if tracker is not None:
                tracker.step(loss=loss)
        if tracker is not None:
            tracker.finish()
        return plain

    model = train(tracked=True)
    assert_same_weights(model, train(tracked=False))
    frame = stored(tmp_path / "store")
    # the weights' own precision, rather than that of Fabric's autocast; and the values of the bare model
    assert (set(frame["dtype"]), set(frame["causal"])) == ({"float32"}, {True})
    offline = {(row.layer, row.metric, row.subset): row.value for row in measure(model, probe_of_tokens()).rows}
    last = frame[(frame["step"] == 4) & frame["value"].notna()]
    for row in last.itertuples():
        assert row.value == offline[row.layer, row.metric, row.subset]


def test_x_transformers(tmp_path, without_figures) -> None:
    x_transformers = pytest.importorskip("x_transformers")

    def train(tracked: bool) -> nn.Module:
        torch.manual_seed(0)
        layers = x_transformers.Decoder(dim=32, depth=3, heads=2, attn_dropout=0.1, ff_dropout=0.1)
        plain = x_transformers.TransformerWrapper(num_tokens=50, max_seq_len=24, attn_layers=layers)
        model = x_transformers.AutoregressiveWrapper(plain)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        settings = {"layers": "attn_layers.layers.*.2", "schedule": 2, "store": tmp_path / "store", "report": False}
        tracker = Tracker(model.net, probe_of_tokens(), **settings).start() if tracked else None
        for batch in TOKENS[128:].split(32):
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if tracker is not None:
                tracker.step(loss=loss)
        if tracker is not None:
            tracker.finish()
        return plain

    model = train(tracked=True)
    assert_same_weights(model, train(tracked=False))
    assert set(stored(tmp_path / "store")["causal"]) == {True}
    with pytest.raises(ValueError, match=r'layers=\["attn_layers.layers.1.2", '):
        measure(model, probe_of_tokens())
    rows = measure(model, probe_of_tokens(), layers="attn_layers.layers.*.2").rows
    assert {row.layer for row in rows} == set(range(7))
    assert {row.causal for row in rows} == {True}


def test_sentence_transformers(tmp_path, without_figures) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("accelerate")
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CosineSimilarityLoss
    from sentence_transformers.models import Pooling, Transformer

    tokenizer = byte_tokenizer(for_encoder=True)
    tokenizer.save_pretrained(tmp_path / "bert")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "bert")
    data = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [0.5] * len(TEXTS)}

    def train(tracked: bool) -> nn.Module:
        words = Transformer(str(tmp_path / "bert"), max_seq_length=64)
        model = SentenceTransformer(modules=[words, Pooling(32)], device="cpu")
        tracker = HuggingFaceTracker(probe_of_texts(tokenizer), schedule=2, report=False)
        trainer = SentenceTransformerTrainer(
            model,
            args=SentenceTransformerTrainingArguments(
                str(tmp_path), max_steps=4, report_to="none", use_cpu=True, per_device_train_batch_size=8, seed=1
            ),
            train_dataset=Dataset.from_dict(data),
            loss=CosineSimilarityLoss(model),
            callbacks=[tracker] if tracked else [],
        )
        trainer.train()
        return model

    assert_same_weights(train(tracked=True), train(tracked=False))
    assert set(stored(tmp_path / "repdyn")["causal"]) == {False}


def test_trl_with_lora(tmp_path, without_figures) -> None:
    trl = pytest.importorskip("trl")
    peft = pytest.importorskip("peft")
    from datasets import Dataset

    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "</s>", "pad_token": "<pad>"})
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )

    def train(tracked: bool) -> nn.Module:
        torch.manual_seed(0)
        tracker = HuggingFaceTracker(probe_of_texts(tokenizer), schedule=2, report=False)
        trainer = trl.SFTTrainer(
            LlamaForCausalLM(config),
            args=trl.SFTConfig(str(tmp_path), max_steps=4, report_to="none", use_cpu=True, bf16=False, max_length=64),
            train_dataset=Dataset.from_dict({"text": TEXTS}),
            processing_class=tokenizer,
            peft_config=peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, lora_dropout=0.1),
            callbacks=[tracker] if tracked else [],
        )
        trainer.train()
        return trainer.model

    assert_same_weights(train(tracked=True), train(tracked=False))
    assert set(stored(tmp_path / "repdyn")["causal"]) == {True}


def test_accelerate_under_autocast(tmp_path, without_figures) -> None:
    accelerate = pytest.importorskip("accelerate")
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_dropout=0.1,
    )

    def train(tracked: bool) -> nn.Module:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # a Trainer may have set another
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        plain = LlamaForCausalLM(config)
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), 1e-3))
        settings = {"schedule": 2, "store": tmp_path / "store", "report": False}
        tracker = Tracker(model, probe_of_tokens(), **settings).start() if tracked else None
        for batch in TOKENS[128:].split(32):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if tracker is not None:
                tracker.step(loss=loss)
        if tracker is not None:
            tracker.finish()
        return plain

    assert_same_weights(train(tracked=True), train(tracked=False))
    assert set(stored(tmp_path / "store")["dtype"]) == {"float32"}


@pytest.mark.parametrize(
    ("name", "settings", "size", "positions", "n_layers"),
    [
        pytest.param("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 2}, 32, slice(1, None), 3, id="ViT"),
        pytest.param("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 4}, 64, None, 5, id="Swin"),
    ],
)  # fmt: skip
def test_timm(name: str, settings: dict, size: int, positions: slice | None, n_layers: int) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = timm.create_model(name, num_classes=4, **settings)
    images = torch.randn(48, 3, size, size, generator=torch.Generator().manual_seed(0)).split(16)
    probe = Probe.from_inputs(images, positions=positions, max_vectors=192, batch_vectors=96, vectors_per_input=4)
    rows = measure(model, probe, ("anisotropy",)).rows
    assert [row.layer for row in rows] == list(range(n_layers))
    assert all(row.reason is None for row in rows)
