"""Metrics of torchmetrics: the kernels' values of all vectors, over batches."""

from __future__ import annotations

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from jobs import batches
from jobs import trainer as lightning_trainer
from torch import Tensor, nn

from repdyn import kernels
from repdyn.torchmetrics import Anisotropy, EffectiveRank, RankMe, TwoNN

POINTS = torch.randn(700, 12, generator=torch.Generator().manual_seed(0)) + 1.0


def published_rank_me(points: Tensor) -> float:
    """Equations 2 and 3 of Garrido et al., in NumPy."""
    singular_values = np.linalg.svd(points.double().numpy(), compute_uv=False)
    shares = singular_values / np.abs(singular_values).sum() + 1e-7
    return float(np.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize(
    ("metric", "kernel"),
    [
        (TwoNN, kernels.two_nn),
        (Anisotropy, kernels.anisotropy),
        (EffectiveRank, kernels.effective_rank),
    ],
)
def test_values_are_those_of_the_kernels_on_all_batches(metric, kernel):
    computed = metric()
    for batch in POINTS.split(32):
        computed.update(batch)
    assert computed.compute() == kernel(POINTS)
    computed.reset()
    computed.update(POINTS[:60].view(6, 10, 12))
    assert computed.compute() == kernel(POINTS[:60])


@pytest.mark.parametrize(
    "points",
    [POINTS, POINTS[:8], POINTS @ torch.ones(12, 300), POINTS.bfloat16()],
    ids=["full rank", "few", "rank 1", "bfloat16"],
)
def test_rank_me_is_the_published_one(points):
    """Catches eigenvalues in place of singular values, centring, and another epsilon."""
    metric = RankMe()
    metric.update(points)
    assert metric.compute().item() == pytest.approx(published_rank_me(points), rel=1e-9)


def test_of_many_vectors_evenly_spaced_ones_are_used():
    metric = TwoNN(max_vectors=100)
    metric.update(POINTS)
    rows = np.linspace(0, 699, 100).round().astype(int)
    assert metric.compute() == kernels.two_nn(POINTS[rows])


def test_what_is_undefined_is_nan():
    for metric in (TwoNN(), Anisotropy(), EffectiveRank(), RankMe()):
        metric.update(POINTS[:2])
        assert metric.compute().isnan()
        metric.update(torch.full((9, 12), torch.nan))
        assert metric.compute().isnan()
        with pytest.raises(ValueError, match="shape"):
            metric.update(POINTS[0])


class Embedding(pl.LightningModule):
    """Logs the geometry of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.rank_me = RankMe()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.embed(batch["input_ids"]).square().mean()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        states = self.embed(batch["input_ids"]) + torch.arange(12)[:, None]
        self.rank_me.update(states)
        self.log("val/rank_me", self.rank_me)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def test_lightning_logs_one_value_an_epoch(tmp_path):
    job = Embedding()
    fitted = lightning_trainer(tmp_path, max_epochs=2, max_steps=-1)
    held_out = batches(shuffle=False, n=20)
    fitted.fit(job, batches(), held_out)
    ids = torch.cat([batch["input_ids"] for batch in held_out])
    states = (job.embed(ids) + torch.arange(12)[:, None]).detach().flatten(0, 1)
    logged = fitted.callback_metrics["val/rank_me"].item()
    assert logged == pytest.approx(published_rank_me(states), rel=1e-6)
