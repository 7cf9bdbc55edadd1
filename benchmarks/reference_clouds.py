"""Print metrics of synthetic clouds and of pairs of them, 4,096 points of 768 coordinates.

python benchmarks/reference_clouds.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn.functional import pad

from repdyn import kernels

_OF_ONE = (
    kernels.anisotropy,
    kernels.participation_ratio,
    kernels.alpha_req,
    kernels.mean_cosine,
    kernels.isoscore,
)
_OF_NEIGHBOURS = (kernels.two_nn, kernels.levina_bickel)


def _draw(seed: int) -> Tensor:
    return torch.randn(4096, 768, generator=torch.Generator().manual_seed(seed))


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    x = _draw(0)
    other = _draw(1)
    sinks = torch.zeros_like(x)
    sinks[::512, 7] = 1000
    clouds = {
        "no structure": x,
        "+ 3": x + 3,
        "variance 1 / i": x * torch.arange(1.0, 769.0).rsqrt(),
        "8 sinks": torch.where(sinks > 0, sinks, x),
        "64 of 768": pad(x[:, :64], (0, 704)),
    }
    for name, points in clouds.items():
        cloud = kernels.Cloud(points, n_neighbours=20)
        values = {kernel.__name__: kernel(cloud).item() for kernel in (*_OF_ONE, *_OF_NEIGHBOURS)}
        print(f"{name}:", ", ".join(f"{metric} {value:.3g}" for metric, value in values.items()))
    block = torch.tanh(x @ _draw(2)[:768] / 768**0.5)
    pairs = {
        "unrelated": (x, other),
        "turned": (x, x @ torch.linalg.qr(_draw(3)[:768]).Q + 3),
        "small step": (x, x + 0.5 * block),
        "large step": (x, x + 5 * block),
        "alike sinks": (x + sinks, other + sinks),
    }
    for name, (a, b) in pairs.items():
        both = kernels.Cloud(a), kernels.Cloud(b)
        values = {
            "step_cosine": kernels.alignment(*both),
            "linearity": kernels.linearity(*both),
            "linearity_step": kernels.linearity(*both, of="step"),
            "cka": kernels.linear_cka(*both),
        }
        print(
            f"{name}:",
            ", ".join(f"{metric} {value.item():.3f}" for metric, value in values.items()),
        )


if __name__ == "__main__":
    main()
