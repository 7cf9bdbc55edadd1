"""Models and trainers of other packages, tracked in the documented way. Skipped where a package is
not installed.

``nox -s stacks`` installs them into an environment of its own, and runs the tests of Lightning and
the Trainer there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from repdyn import Probe, Tracker, measure, open_store
from repdyn.callbacks import HuggingFaceTracker
from repdyn.data.tokens import byte_tokenizer

GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(3, 50, (256, 24), generator=torch.Generator().manual_seed(0))
BATCHES = TOKENS[128:].split(32)
TEXTS = [f"sentence number {number} about topic {number % 7}" for number in range(64)]


def probe_of_tokens() -> Probe:
    return Probe.from_tokens(TOKENS[:128], max_vectors=1024, batch_vectors=256)


def probe_of_texts(tokenizer: Any) -> Probe:
    return Probe.from_texts(
        [" ".join(TEXTS)] * 20, tokenizer, sequence_length=32, max_vectors=512, batch_vectors=128
    )


def stored(folder: Path, share: float = 1.0) -> Any:
    """Return the rows of layers, after checking that all steps and a share of the values are there,
    but for few distinct embeddings."""
    frame = open_store(folder).to_pandas()
    frame = frame[frame["layer"].notna()]
    assert sorted(frame["step"].unique()) == [0, 2, 4]
    assert frame.loc[frame["layer"] > 0, "value"].notna().mean() >= share
    return frame


def assert_same_weights(first: nn.Module, other: nn.Module) -> None:
    for (name, weight), same in zip(
        first.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, same), name


def trained_twice(
    model: Callable[[], nn.Module],
    loss: Callable,
    batches: Any,
    probe: Probe,
    *,
    prepare: Callable = lambda trained, optimizer: (trained, optimizer),
    backward: Callable = Tensor.backward,
    measured: Callable = lambda trained: trained,
    **settings: Any,
) -> nn.Module:
    """Train without and with the tracker, check that the weights are the same, and return the
    model.
    """
    trained_models = []
    for tracked in (False, True):
        torch.manual_seed(0)
        plain = model()
        trained, optimizer = prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
        options = {"schedule": 2, "report": False, "on_error": "raise"} | settings
        tracker = Tracker(measured(trained), probe, **options).start() if tracked else None
        for batch in batches:
            value = loss(trained, batch)
            backward(value)
            optimizer.step()
            optimizer.zero_grad()
            if tracker is not None:
                tracker.step(loss=value)
        if tracker is not None:
            tracker.finish()
        trained_models.append(plain)
    assert_same_weights(*trained_models)
    return plain


def next_token_loss(logits: Tensor, batch: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def test_lightning_demo_transformer(tmp_path, without_figures) -> None:
    """Lightning's own LightningTransformer, whose forward takes inputs and targets."""
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.demos import Transformer

    from repdyn.callbacks import RepresentationDynamics

    class Demo(pl.LightningModule):  # as LightningTransformer, without the download of WikiText2
        def __init__(self) -> None:
            super().__init__()
            self.model = Transformer(vocab_size=50, ninp=32, nhead=2, nhid=64, nlayers=2)

        def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
            return self.model(inputs, target)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return cross_entropy(self(*batch).flatten(0, -2), batch[1].flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    tokens = torch.randint(3, 50, (160, 24), generator=GENERATOR)
    probe = Probe.from_tokens(tokens[:64], max_vectors=256, batch_vectors=128)
    tracker = RepresentationDynamics(
        probe,
        schedule=2,
        layers={
            "encoder": "model.transformer.encoder.layers.*",
            "decoder": "model.transformer.decoder.layers.*",
        },
        forward=lambda model, batch: model(batch.input_ids, batch.input_ids),
        on_error="raise",
    )
    trainer = pl.Trainer(
        max_steps=4,
        accelerator="cpu",
        callbacks=[tracker],
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    data = torch.utils.data.TensorDataset(tokens[64:], tokens[64:])
    trainer.fit(Demo(), torch.utils.data.DataLoader(data, batch_size=16))
    frame = tracker.store.to_pandas()
    assert set(frame["stack"].dropna()) == {"encoder", "decoder"}
    assert sorted(frame.loc[frame["layer"].notna(), "step"].unique()) == [0, 2, 4]


def test_litgpt_under_lightning_fabric(tmp_path, without_figures) -> None:
    litgpt = pytest.importorskip("litgpt")
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", precision="bf16-mixed", devices=1)
    config = litgpt.Config(
        block_size=24, vocab_size=50, padded_vocab_size=50, n_layer=2, n_head=2, n_embd=32
    )
    model = trained_twice(
        lambda: litgpt.GPT(config),
        lambda trained, batch: next_token_loss(trained(batch), batch),
        BATCHES,
        probe_of_tokens(),
        prepare=fabric.setup,
        backward=fabric.backward,
        store=tmp_path,
    )
    frame = stored(tmp_path)
    # the weights' own precision, rather than that of Fabric's autocast; and the values of the bare
    # model
    assert set(frame["dtype"]) == {"float32"}
    assert set(frame["causal"]) == {True}
    offline = {
        (row.layer, row.metric, row.subset): row.value
        for row in measure(model, probe_of_tokens()).rows
    }
    last = frame[(frame["step"] == 4) & frame["value"].notna()]
    for row in last.itertuples():
        assert row.value == offline[row.layer, row.metric, row.subset]


def test_x_transformers(tmp_path, without_figures) -> None:
    x_transformers = pytest.importorskip("x_transformers")
    pattern = "attn_layers.layers.*.2"

    def model() -> nn.Module:
        layers = x_transformers.Decoder(dim=32, depth=3, heads=2, attn_dropout=0.1, ff_dropout=0.1)
        plain = x_transformers.TransformerWrapper(num_tokens=50, max_seq_len=24, attn_layers=layers)
        return x_transformers.AutoregressiveWrapper(plain)

    options = {"measured": lambda trained: trained.net, "layers": pattern, "store": tmp_path}
    trained = trained_twice(
        model, lambda trained, batch: trained(batch), BATCHES, probe_of_tokens(), **options
    )
    assert set(stored(tmp_path)["causal"]) == {True}
    with pytest.raises(ValueError, match=r'layers=\["attn_layers.layers.1.2", '):
        measure(trained.net, probe_of_tokens())
    rows = measure(trained.net, probe_of_tokens(), layers=pattern).rows
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
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "bert")
    data = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [0.5 for _ in TEXTS]}

    def train(tracked: bool) -> nn.Module:
        words = Transformer(str(tmp_path / "bert"), max_seq_length=64)
        model = SentenceTransformer(modules=[words, Pooling(32)], device="cpu")
        tracker = HuggingFaceTracker(probe_of_texts(tokenizer), schedule=2, report=False)
        trainer = SentenceTransformerTrainer(
            model,
            args=SentenceTransformerTrainingArguments(
                str(tmp_path),
                max_steps=4,
                report_to="none",
                use_cpu=True,
                per_device_train_batch_size=8,
                seed=1,
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
            args=trl.SFTConfig(
                str(tmp_path),
                max_steps=4,
                report_to="none",
                use_cpu=True,
                bf16=False,
                max_length=64,
            ),
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
    accelerate.state.AcceleratorState._reset_state(
        reset_partial_state=True
    )  # a Trainer may have set another
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    trained_twice(
        lambda: LlamaForCausalLM(LlamaConfig(vocab_size=50, attention_dropout=0.1, **sizes)),
        lambda trained, batch: trained(input_ids=batch, labels=batch).loss,
        BATCHES,
        probe_of_tokens(),
        prepare=accelerator.prepare,
        backward=accelerator.backward,
        store=tmp_path,
    )
    assert set(stored(tmp_path)["dtype"]) == {"float32"}


@pytest.mark.parametrize(
    ("name", "settings", "size", "positions", "n_layers"),
    [
        pytest.param(
            "vit_tiny_patch16_224",
            {"img_size": 32, "patch_size": 4, "depth": 2},
            32,
            slice(1, None),
            3,
            id="ViT",
        ),
        pytest.param(
            "swin_tiny_patch4_window7_224",
            {"img_size": 64, "window_size": 4},
            64,
            None,
            5,
            id="Swin",
        ),
    ],
)
def test_timm(name: str, settings: dict, size: int, positions: slice | None, n_layers: int) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = timm.create_model(name, num_classes=4, **settings)
    images = torch.randn(48, 3, size, size, generator=torch.Generator().manual_seed(0)).split(16)
    probe = Probe.from_inputs(
        images, positions=positions, max_vectors=192, batch_vectors=96, vectors_per_input=4
    )
    rows = measure(model, probe, ("anisotropy",)).rows
    assert [row.layer for row in rows] == list(range(n_layers))
    assert all(row.reason is None for row in rows)


def test_diffusion_transformer(tmp_path, without_figures) -> None:
    """A DiT of diffusers, whose inputs are noisy images, times and classes."""
    diffusers = pytest.importorskip("diffusers")

    def model() -> nn.Module:
        return diffusers.DiTTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            num_layers=2,
            sample_size=8,
            num_embeds_ada_norm=10,
            norm_type="ada_norm_zero",
        )

    def inputs(n: int) -> dict[str, Tensor]:
        images = torch.randn(n, 4, 8, 8, generator=GENERATOR)
        times, classes = (torch.randint(top, (n,), generator=GENERATOR) for top in (1000, 10))
        return {"hidden_states": images, "timestep": times, "class_labels": classes}

    def loss(trained: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return mse_loss(trained(**batch).sample[:, :4], batch["hidden_states"])

    probe = Probe.from_inputs(
        [inputs(16) for _ in range(3)], causal=False, max_vectors=192, batch_vectors=96
    )
    trained_twice(model, loss, [inputs(8) for _ in range(4)], probe, store=tmp_path)
    assert set(stored(tmp_path, 0.8)["layer"]) == {0, 1, 2}


def test_graph_transformer(tmp_path, without_figures) -> None:
    """Blocks of PyTorch Geometric's GPSConv on graphs of equal size; the vectors are the nodes."""
    geometric = pytest.importorskip("torch_geometric.nn")
    ring = torch.stack([torch.arange(24), torch.arange(24).roll(1)])

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = geometric.GPSConv(
                32, geometric.GINConv(nn.Linear(32, 32)), heads=2, norm="layer_norm"
            )

        def forward(self, x: Tensor) -> Tensor:  # (n_graphs, n_nodes, dim)
            n_graphs, n_nodes, _ = x.shape
            edges = torch.cat([ring + n_nodes * graph for graph in range(n_graphs)], dim=1)
            return self.conv(
                x.flatten(0, 1), edges, torch.arange(n_graphs).repeat_interleave(n_nodes)
            ).view_as(x)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(8, 32)
            self.head = nn.Linear(32, 3)
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graphs = torch.randn(80, 24, 8, generator=GENERATOR)
    probe = Probe.from_inputs(
        list(graphs[:48].split(16)), causal=False, max_vectors=192, batch_vectors=96
    )

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        return cross_entropy(network(x).flatten(0, 1), x[..., :3].argmax(-1).flatten())

    trained_twice(Network, loss, list(graphs[48:].split(8)), probe, store=tmp_path)
    assert set(stored(tmp_path, 0.8)["layer"]) == {0, 1, 2}


def test_open_clip(tmp_path, without_figures) -> None:
    """Both towers of a small CLIP of open_clip."""
    pytest.importorskip("open_clip", exc_type=ImportError)
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP

    def model() -> nn.Module:
        vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16}
        text = {"context_length": 16, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2}
        return CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)

    def inputs(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 3, 32, 32, generator=GENERATOR), torch.randint(
            3, 50, (n, 16), generator=GENERATOR
        )

    layers = {"text": "transformer.resblocks.*", "vision": "visual.transformer.resblocks.*"}
    batches = [dict(zip(("image", "text"), inputs(16), strict=True)) for _ in range(3)]
    probe = Probe.from_inputs(batches, causal=False, max_vectors=192, batch_vectors=96)
    trained_twice(
        model, lambda clip, batch: ClipLoss()(*clip(*batch)), [inputs(8) for _ in range(4)], probe,
        store=tmp_path, layers=layers,
    )  # fmt: skip
    assert set(stored(tmp_path, 0.8)["stack"]) == {"text", "vision"}
