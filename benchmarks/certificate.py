"""Test whether the neighbour search ever reports a row as complete that lacks one of its nearest neighbours.

    python benchmarks/certificate.py
    python benchmarks/certificate.py --rows 1e7 --seed 1

Draws random and hostile clouds (low rank, steep spectra, wide coordinates, distant origins, pairs at 1e-5, grids, heavy
tails, coarse and sparse values), takes 1 to 20 neighbours, compares every row with float64 brute force, in bfloat16 and
in float32, and counts. One wrong row is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from unittest.mock import patch

import torch
from machine import facts
from torch import Tensor
from tqdm import tqdm

from repdyn.kernels import Cloud, candidates, full_precision

ROWS = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=2e6, help="to try in all (default: %(default).0e)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, value in facts(f"python benchmarks/certificate.py --rows {options.rows:g} --seed {options.seed}").items():
        print(f"{name}: {value}")
    counts = {dtype: {"complete": 0, "left open": 0, "wrong": 0} for dtype in (torch.bfloat16, torch.float32)}
    with tqdm(total=int(options.rows), unit="row") as bar:
        for number, points in enumerate(clouds(options.seed)):
            k = min(1 + number % 20, len(points) - 1)
            exact = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
            exact.fill_diagonal_(torch.inf)
            for dtype, count in counts.items():
                with patch.object(candidates, "fastest_dtype", return_value=dtype), full_precision("cpu"):
                    found = candidates.find_candidates(points, k)
                count["complete"] += int(found.complete.sum())
                count["left open"] += int((~found.complete).sum())
                count["wrong"] += count_missed(exact, found, k)
                bar.update(len(points))
            if bar.n >= options.rows:
                break
    for dtype, count in counts.items():
        print(f"{str(dtype).removeprefix('torch.')}: " + ", ".join(f"{n:,} {name}" for name, n in count.items()))
    if any(count["wrong"] for count in counts.values()):
        raise SystemExit("the certificate is broken")


def count_missed(exact: Tensor, found: candidates.Candidates, k: int) -> int:
    """Count the complete rows that lack one of their k nearest neighbours."""
    candidate_distances = torch.full_like(exact, torch.inf)
    candidate_distances[found.first, found.second] = exact[found.first, found.second]
    wrong = candidate_distances.topk(k, largest=False).values > exact.topk(k, largest=False).values * (1 + 1e-12)
    return int((wrong.any(1) & found.complete).sum())


def clouds(seed: int) -> Iterator[Tensor]:
    """Yield clouds of distinct points without end."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    while True:
        rank, dim = int(draw(1, 60)), int(draw(2, 60))
        points = torch.randn(ROWS, rank, generator=generator) @ torch.randn(rank, dim, generator=generator)
        points *= torch.arange(1, dim + 1).float().pow(-draw(0, 2))
        if draw(0, 1) < 0.5:
            points[:, : 1 + dim // 20] *= 10 ** draw(0, 3)
        if draw(0, 1) < 0.3:
            points += 10 ** draw(0, 4) * torch.randn(dim, generator=generator)
        if draw(0, 1) < 0.2:
            points[::2] = points[1::2] + 1e-5 * torch.randn(ROWS // 2, dim, generator=generator)
        if draw(0, 1) < 0.1:
            points = points.mul(3).round()
        if draw(0, 1) < 0.1:
            points /= torch.rand(ROWS, 1, generator=generator)
        if draw(0, 1) < 0.1:
            points = points.relu()
        if draw(0, 1) < 0.2:
            points = points.bfloat16().float()
        distinct = Cloud(points * 10 ** draw(-20, 15)).distinct
        if len(distinct) > 2:
            yield distinct


if __name__ == "__main__":
    main()
