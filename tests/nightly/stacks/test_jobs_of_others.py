"""Models and training loops of other packages as they are, with one callback or three lines. Skipped where one is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from repdyn import Probe, Tracker, open_store

GENERATOR = torch.Generator().manual_seed(0)


def trained_twice(model: Callable[[], nn.Module], loss: Callable, batches: list, probe: Probe, **settings: Any) -> Any:
    """Train without and with the tracker, check that the weights are the same, and return the rows of layers."""
    weights, store = [], settings["store"]
    for tracked in (False, True):
        torch.manual_seed(0)
        trained = model()
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
        options = {"schedule": 2, "report": False, "on_error": "raise"} | settings
        tracker = Tracker(trained, probe, **options).start() if tracked else None
        for batch in batches:
            value = loss(trained, batch)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            if tracker is not None:
                tracker.step(loss=value)
        if tracker is not None:
            tracker.finish()
        weights.append(trained.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    frame = open_store(store).to_pandas()
    frame = frame[frame["layer"].notna()]
    assert sorted(frame["step"].unique()) == [0, 2, 4]
    assert frame["value"].notna().mean() > 0.8
    return frame


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
        layers={"encoder": "model.transformer.encoder.layers.*", "decoder": "model.transformer.decoder.layers.*"},
        forward=lambda model, batch: model(batch.input_ids, batch.input_ids),
        on_error="raise",
    )
    trainer = pl.Trainer(
        max_steps=4, accelerator="cpu", callbacks=[tracker], default_root_dir=tmp_path, logger=False,
        enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(tokens[64:], tokens[64:])
    trainer.fit(Demo(), torch.utils.data.DataLoader(data, batch_size=16))
    frame = tracker.store.to_pandas()
    assert set(frame["stack"].dropna()) == {"encoder", "decoder"}
    assert sorted(frame.loc[frame["layer"].notna(), "step"].unique()) == [0, 2, 4]


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

    probe = Probe.from_inputs([inputs(16) for _ in range(3)], causal=False, max_vectors=192, batch_vectors=96)
    frame = trained_twice(model, loss, [inputs(8) for _ in range(4)], probe, store=tmp_path)
    assert set(frame["layer"]) == {0, 1, 2}


def test_graph_transformer(tmp_path, without_figures) -> None:
    """Blocks of PyTorch Geometric's GPSConv on graphs of equal size; the vectors are the nodes."""
    geometric = pytest.importorskip("torch_geometric.nn")
    ring = torch.stack([torch.arange(24), torch.arange(24).roll(1)])

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = geometric.GPSConv(32, geometric.GINConv(nn.Linear(32, 32)), heads=2, norm="layer_norm")

        def forward(self, x: Tensor) -> Tensor:  # (n_graphs, n_nodes, dim)
            n_graphs, n_nodes, _ = x.shape
            edges = torch.cat([ring + n_nodes * graph for graph in range(n_graphs)], dim=1)
            return self.conv(x.flatten(0, 1), edges, torch.arange(n_graphs).repeat_interleave(n_nodes)).view_as(x)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 3)
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graphs = torch.randn(80, 24, 8, generator=GENERATOR)
    probe = Probe.from_inputs(list(graphs[:48].split(16)), causal=False, max_vectors=192, batch_vectors=96)

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        return cross_entropy(network(x).flatten(0, 1), x[..., :3].argmax(-1).flatten())

    frame = trained_twice(Network, loss, list(graphs[48:].split(8)), probe, store=tmp_path)
    assert set(frame["layer"]) == {0, 1, 2}


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
        return torch.randn(n, 3, 32, 32, generator=GENERATOR), torch.randint(3, 50, (n, 16), generator=GENERATOR)

    layers = {"text": "transformer.resblocks.*", "vision": "visual.transformer.resblocks.*"}
    batches = [dict(zip(("image", "text"), inputs(16), strict=True)) for _ in range(3)]
    probe = Probe.from_inputs(batches, causal=False, max_vectors=192, batch_vectors=96)
    frame = trained_twice(
        model, lambda clip, batch: ClipLoss()(*clip(*batch)), [inputs(8) for _ in range(4)], probe,
        store=tmp_path, layers=layers,
    )  # fmt: skip
    assert set(frame["stack"]) == {"text", "vision"}


FSDP2_LOOP = """
import sys
import torch
import torch.distributed as dist
from small import HandWritten, random_tokens
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from repdyn import Probe, Tracker

dist.init_process_group("gloo")
mesh = torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),))
for tracked in (False, True):
    torch.manual_seed(0)
    model = HandWritten()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    settings = {"schedule": 2, "store": sys.argv[1], "report": False, "on_error": "raise"}
    tracker = Tracker(model, probe, **settings).start() if tracked else None
    for batch in random_tokens(32, 12, seed=1 + dist.get_rank()).split(8):
        loss = cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if tracker is not None:
            tracker.step(loss=loss)
    if tracker is not None:
        tracker.finish()
    weights = [p.full_tensor() for p in model.parameters()]
    first = weights if not tracked else first
    assert all(map(torch.equal, weights, first))
dist.destroy_process_group()
"""


@pytest.mark.process
def test_fsdp2_loop_as_in_torchtitan(tmp_path) -> None:
    """Blocks and model under fully_shard on two processes, gradients clipped."""
    (script := tmp_path / "loop.py").write_text(FSDP2_LOOP, encoding="utf-8")
    tests = Path(__file__).parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    result = subprocess.run(
        [*command, str(tmp_path / "store")], capture_output=True, text=True, timeout=250, check=False, cwd=tests
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    frame = open_store(tmp_path / "store").to_pandas()
    assert sorted(frame.loc[frame["layer"].notna(), "step"].unique()) == [0, 2, 4]
