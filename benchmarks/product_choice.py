"""Which product searches neighbours on this processor, what trying it costs, and whether the choice
is right once candidates are counted in.

    OMP_NUM_THREADS=1 python benchmarks/product_choice.py

The faster product is chosen by products alone. A search includes the candidates that a product
leaves, of which bfloat16 leaves more: where it leaves too many, the search takes float32. Processor
time, least of three repeats by turns, of 4,096 isotropic and decaying vectors.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import torch
from machine import facts

from repdyn.kernels import candidates
from repdyn.kernels.search import nearest_neighbours

N = 4096
DIMENSIONS = (128, 768, 2048, 4096)
N_REPEATS = 3
DTYPES = (torch.float32, torch.bfloat16, None)
"""None for the one that a search chooses."""


def main() -> None:
    for name, fact in facts("product_choice.py").items():
        print(f"{name}: {fact}")
    print(
        "| coordinates | cloud | faster product | trying, ms | float32, s (pairs) "
        "| bfloat16, s (pairs) | chosen, s (pairs) |"
    )
    print("|---" * 7 + "|")
    for dim in DIMENSIONS:
        generator = torch.Generator().manual_seed(0)
        isotropic = torch.randn(N, dim, generator=generator)
        decaying = isotropic * torch.arange(1.0, dim + 1) ** -0.7
        start = time.process_time()
        chosen = str(candidates.fastest_dtype(isotropic)).removeprefix("torch.")
        trying = 1000 * (time.process_time() - start)
        for cloud, points in (("isotropic", isotropic), ("decaying", decaying)):
            searched = " | ".join(searches(points))
            print(f"| {dim:,} | {cloud} | {chosen} | {trying:.1f} | {searched} |", flush=True)


def searches(points: torch.Tensor) -> list[str]:
    """Return the seconds of a search by each product and by the chosen one, and the pairs of a
    point that it leaves.
    """
    seconds: dict[torch.dtype | None, list[float]] = {dtype: [] for dtype in DTYPES}
    pairs: dict[torch.dtype | None, float] = {}
    for repeat in range(1 + N_REPEATS):
        for dtype in DTYPES:
            with pinned(dtype):
                if repeat == 0:  # warms up
                    pairs[dtype] = len(candidates.find_candidates(points, 2).first) / len(points)
                    continue
                start = time.process_time()
                nearest_neighbours(points, 2)
                seconds[dtype].append(time.process_time() - start)
    return [f"{min(seconds[dtype]):.3f} ({pairs[dtype]:.0f})" for dtype in DTYPES]


def pinned(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context in which points are rounded to a dtype; None for the chosen one."""
    if dtype is None:
        return nullcontext()

    def rounded(points: torch.Tensor, k: int, groups: torch.Tensor | None) -> object:
        return candidates.RoundedPoints(points, dtype, groups)

    return mock.patch.object(candidates, "rounded_points", rounded)


if __name__ == "__main__":
    main()
