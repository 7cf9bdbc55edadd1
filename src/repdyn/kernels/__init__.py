"""Point clouds in, numbers out: pure torch, any device, any floating dtype; float64 where it decides."""

from repdyn.kernels.anisotropy import anisotropy, anisotropy_of
from repdyn.kernels.cloud import Cloud, Undefined, exact_arithmetic
from repdyn.kernels.gride import SCALES, gride, gride_of
from repdyn.kernels.spectrum import effective_rank, effective_rank_of, participation_ratio, participation_ratio_of
from repdyn.kernels.two_nn import two_nn, two_nn_of

__all__ = [
    "SCALES",
    "Cloud",
    "Undefined",
    "anisotropy",
    "anisotropy_of",
    "effective_rank",
    "effective_rank_of",
    "exact_arithmetic",
    "gride",
    "gride_of",
    "participation_ratio",
    "participation_ratio_of",
    "two_nn",
    "two_nn_of",
]
