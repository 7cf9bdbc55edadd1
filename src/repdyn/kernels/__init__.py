"""Point clouds in, numbers out: pure torch, any device, any floating dtype; float64 where it decides."""

from repdyn.kernels.anisotropy import anisotropy, anisotropy_of
from repdyn.kernels.cloud import Cloud, Undefined, exact_arithmetic
from repdyn.kernels.two_nn import two_nn, two_nn_of

__all__ = ["Cloud", "Undefined", "anisotropy", "anisotropy_of", "exact_arithmetic", "two_nn", "two_nn_of"]
