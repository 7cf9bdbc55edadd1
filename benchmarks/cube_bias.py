"""Measure the bias of the dimension estimators on clouds of known dimension: uniform cubes in 64
coordinates.

OMP_NUM_THREADS=1 python benchmarks/cube_bias.py
OMP_NUM_THREADS=1 python benchmarks/cube_bias.py --output docs/sampling/cube_bias.csv
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from machine import facts
from torch import Tensor
from tqdm import tqdm

from repdyn.kernels import Cloud, gride, levina_bickel, two_nn
from repdyn.utils.files import write_atomically

DIMENSIONS = (2, 5, 10, 20, 40)
SIZES = (1024, 4096, 16384)
ESTIMATORS: dict[str, Callable[[Cloud], Tensor]] = {
    "two_nn": two_nn,
    "two_nn[discard=0.8]": partial(two_nn, discard=0.8),
    "two_nn[estimator=maximum_likelihood]": partial(two_nn, estimator="maximum_likelihood"),
    "gride_8": partial(gride, k=8),
    "gride_32": partial(gride, k=32),
    "levina_bickel": levina_bickel,
}
_COORDINATES = 64


def cube(n: int, dimension: int, seed: int) -> Tensor:
    """Return n points of a uniform cube, (n, 64) float32, randomly rotated."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(_COORDINATES, dimension, generator=generator)).Q
    return torch.rand(n, dimension, generator=generator) @ directions.T


def bias_table(repeats: int) -> str:
    """Return the mean estimates over independent cubes, with their standard deviations, as CSV."""
    rows = ["estimator,n," + ",".join(f"d = {dimension}" for dimension in DIMENSIONS)]
    texts: dict[tuple[str, int], list[str]] = {(name, n): [] for name in ESTIMATORS for n in SIZES}
    for dimension, n in tqdm(
        [(dimension, n) for dimension in DIMENSIONS for n in SIZES], unit="size"
    ):
        clouds = [Cloud(cube(n, dimension, seed), n_neighbours=32) for seed in range(repeats)]
        for name, kernel in ESTIMATORS.items():
            values = [kernel(cloud).item() for cloud in clouds]
            texts[name, n].append(f"{statistics.mean(values):.2f}±{statistics.stdev(values):.2f}")
    rows += [",".join([name, str(n), *cells]) for (name, n), cells in texts.items()]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="independent cubes (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="file for the table")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"expected at least 2 repeats for a standard deviation, got {options.repeats}")
    about = facts(shlex.join(["python", "benchmarks/cube_bias.py", *sys.argv[1:]]))
    about["values"] = "mean±standard deviation over uniform cubes of d dimensions in 64 coordinates"
    text = "".join(f"# {name}: {fact}\n" for name, fact in about.items()) + bias_table(
        options.repeats
    )
    print(text)
    if options.output:
        write_atomically(options.output, lambda path: path.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    main()
