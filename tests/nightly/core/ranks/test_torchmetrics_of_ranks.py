"""Metrics of torchmetrics on two ranks: the value of all vectors, on each of them."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from repdyn import kernels
from repdyn.torchmetrics import TwoNN

POINTS = torch.randn(700, 12, generator=torch.Generator().manual_seed(0)) + 1.0


def _on_rank(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=2
    )
    metric = TwoNN()
    # another number of vectors on each rank
    metric.update(POINTS[:300] if rank == 0 else POINTS[300:])
    torch.save(metric.compute(), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.process
def test_ranks_compute_the_value_of_all_vectors(tmp_path):
    mp.spawn(_on_rank, args=(tmp_path,), nprocs=2)
    expected = kernels.two_nn(POINTS)
    assert [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)] == [expected, expected]
