"""How far TwoNN falls short of a known dimension at the sample size of one batch.

    python benchmarks/dimension_bias.py

Uniform cubes of 4096 points: the mean over five clouds and its standard deviation, seeds 0 to 4.
"""

import statistics

import torch

from repdyn.kernels import two_nn

for dim in (2, 10, 20):
    clouds = (torch.rand(4096, dim, generator=torch.Generator().manual_seed(seed)) for seed in range(5))
    estimates = [two_nn(cloud).item() for cloud in clouds]
    print(f"true dimension {dim}: {statistics.mean(estimates):.1f} ± {statistics.stdev(estimates):.1f}")
