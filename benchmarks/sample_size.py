"""How metrics of the spectrum depend on the number of vectors: Gaussian clouds with power-law
spectra beside the truth.

OMP_NUM_THREADS=1 python benchmarks/sample_size.py
OMP_NUM_THREADS=1 python benchmarks/sample_size.py --output docs/kernels/sample_size.csv
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

from repdyn import kernels
from repdyn.kernels import Cloud
from repdyn.utils.files import write_atomically

WIDTH = 768
EXPONENTS = (0.5, 1.0, 1.5)
SIZES = (500, 2000, 15_000)
METRICS: dict[str, Callable[[Cloud], Tensor]] = {
    "anisotropy": kernels.anisotropy,
    "participation_ratio": kernels.participation_ratio,
    "unbiased_participation_ratio": kernels.unbiased_participation_ratio,
    "effective_rank": kernels.effective_rank,
    "effective_rank_of_variance": kernels.effective_rank_of_variance,
    "alpha_req": kernels.alpha_req,
    "alpha_req[first=12]": partial(kernels.alpha_req, first=12),
    "isoscore": kernels.isoscore,
    **{
        f"components_{percent}": partial(kernels.components, share=percent / 100)
        for percent in (50, 90, 95, 99)
    },
}
"""Functions of the spectrum of a cloud."""


# a loop for each axis of the table: sizes, exponents, repeats
def size_table(sizes: tuple[int, ...], repeats: int) -> str:
    """Return the means over independent clouds, with their standard deviations, and the truth, as
    CSV.
    """
    rows = ["metric,exponent," + ",".join(f"n = {n}" for n in sizes) + ",truth"]
    texts: dict[tuple[str, float], list[str]] = {
        (name, a): [] for name in METRICS for a in EXPONENTS
    }
    for exponent, n in tqdm([(a, n) for a in EXPONENTS for n in sizes], unit="size"):
        scales = torch.arange(1.0, WIDTH + 1, dtype=torch.float64) ** (-exponent / 2)
        values: dict[str, list[float]] = {name: [] for name in METRICS}
        for seed in range(repeats):
            points = (
                torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed))
                * scales.float()
            )
            cloud = Cloud(points)
            for name, kernel in METRICS.items():
                values[name].append(kernel(cloud).item())
        for name, of_size in values.items():
            texts[name, exponent].append(
                f"{statistics.mean(of_size):.4g}±{statistics.stdev(of_size):.1g}"
            )
        if n == sizes[-1]:
            # a cloud whose own covariance is the true one: of as many vectors as one likes
            exact = Cloud(torch.cat([scales.diag(), -scales.diag()]))
            for name, kernel in METRICS.items():
                true = (
                    kernels.participation_ratio
                    if name == "unbiased_participation_ratio"
                    else kernel
                )
                texts[name, exponent].append(f"{true(exact).item():.4g}")
    rows += [",".join([name, str(exponent), *cells]) for (name, exponent), cells in texts.items()]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="vectors (default: 500 2000 15000)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="independent clouds (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="file for the table")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"expected at least 2 repeats for a standard deviation, got {options.repeats}")
    about = facts(shlex.join(["python", "benchmarks/sample_size.py", *sys.argv[1:]]))
    about["values"] = (
        f"mean±standard deviation of Gaussian clouds of {WIDTH} dimensions, eigenvalues i^-exponent"
    )
    text = "".join(f"# {name}: {fact}\n" for name, fact in about.items())
    text += size_table(tuple(options.sizes), options.repeats)
    print(text)
    if options.output:
        write_atomically(options.output, lambda path: path.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    main()
