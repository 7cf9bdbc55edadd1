"""Anisotropy: how much of a cloud's variance one direction carries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from repdyn.kernels.cloud import Cloud, as_cloud, error_of_sum, nan_if_undefined, row_chunks, sample
from repdyn.kernels.few_launches import LARGEST
from repdyn.kernels.spectrum import gram_matrix, spectrum_of

# below this side a float64 Gram matrix and its exact spectrum are cheaper than iterating
_SMALL_SIDE = 64
# iterations by products with the points, then by products with their scatter matrix
_MAX_POINT_STEPS, _MAX_STEPS = 20, 400
# steps before the rate of convergence is checked
_MIN_STEPS = 4
# relative residual at which the iteration stops, and the largest one accepted in float64: an
# eigenvalue is accurate to the residual, and usually to its square
_STOP_RESIDUAL, _MAX_RESIDUAL = 5e-7, 1e-6
_REFINEMENTS = 4
# powers of the covariance of a sample applied to the random start
_HEAD_START = 4
# share of the random vector in the start, for the directions that the sample lacks
_RANDOM_SHARE = 1e-3
# share of the mean in the second moment up to which float32 products are accurate without centring
_MAX_MEAN_SHARE = 0.9
# rows whose products are summed in float32: more would let the iteration stop short of its residual
_SUMMED = 1024
# columns of the scatter matrix at a time
_BLOCK = 256


def _std_error(x: Tensor | Cloud, windows: Tensor) -> Tensor:
    """Compute the standard error of the anisotropy of a cloud whose vectors come from windows of
    text.

    A window changes the share R by its influence ``s_c = sum((u @ x_i)**2 - R |x_i|**2)``, summed
    over its centred vectors, with u the first principal direction: the error is ``sqrt(C / (C - 1)
    * sum(s_c**2)) / sum(|x_i|**2)`` over C windows. Vectors of one window may depend on one
      another; windows are independent.
    """
    cloud = as_cloud(x)
    cloud.require_defined()
    leading = cloud.once(_iterated)
    if leading is None:
        values, vectors = torch.linalg.eigh(gram_matrix(cloud))
        leading = values[-1] / values.sum(), vectors[:, -1]
    share, direction = leading
    if cloud.x.shape[0] < cloud.x.shape[1]:  # of the points' products among themselves
        direction = normalize(direction @ cloud.centred.double(), dim=0)
    influence = []
    total = torch.zeros_like(share)
    for rows in row_chunks(cloud.x):
        wide = cloud.frame.transform(rows)
        squares = wide.square().sum(1)
        influence.append((wide @ direction).square_().sub_(share * squares))
        total += squares.sum()
    return error_of_sum(torch.cat(influence), windows) / total


@partial(nan_if_undefined, std_error=_std_error)
def anisotropy(x: Tensor | Cloud) -> Tensor:
    """Compute the share of the variance of a cloud that lies along its first principal direction.

    ``s_1**2 / sum(s_i**2)`` over the singular values of the points with their mean removed.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [1 / min(n_vectors - 1, dim),
        1]; NaN when undefined. Accurate to a relative 1e-6: an eigenvalue lies within the residual,
        which is measured in float64; that it is the largest follows from a start in general
        position.

    Invariant to translation, rotation, uniform scaling, order of the points and columns of zeros.
    Repeated points count as often as they occur.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ.

    Source: Razzhigaev et al., The Shape of Learning: Anisotropy and Intrinsic Dimensions in
    Transformer-Based Models, Findings of EACL 2024, section 3.1.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> anisotropy(square).item()
        0.5
        >>> anisotropy(square * torch.tensor([3.0, 1.0])).item()
        0.9
    """
    cloud = as_cloud(x)
    cloud.require_defined()
    # also where another metric needs the whole spectrum: the last bits must not depend on it
    leading = cloud.once(_iterated)
    if leading is not None:
        return leading[0]
    spectrum = cloud.once(spectrum_of)
    return spectrum[0] / spectrum.sum()


@dataclass(frozen=True, eq=False)
class _Scatter:
    """The scatter matrix ``(X - mean).T @ (X - mean)``, as products with vectors; each reads the
    points once.
    """

    points: Tensor
    mean: Tensor

    @classmethod
    def of(cls, cloud: Cloud) -> _Scatter:
        """Take the points unchanged unless their mean dominates them, and a centred copy
        otherwise.
        """
        x = cloud.x
        if x.dtype == torch.float32 and x.shape[0] >= x.shape[1]:
            mean, squares = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device), 0.0
            for rows in row_chunks(x):
                mean += rows.sum(0) / len(x)
                squares += torch.linalg.vector_norm(rows).double().square() / len(x)
            if 2.0**-80 < squares < 2.0**80 and mean @ mean < _MAX_MEAN_SHARE * squares:
                return cls(x, mean)
        # its transpose has the same singular values
        tall = cloud.centred if x.shape[0] >= x.shape[1] else cloud.centred.mT
        return cls(tall, torch.zeros(tall.shape[1], dtype=torch.float64, device=x.device))

    def product(self, vector: Tensor) -> Tensor:
        """Return the product with a vector, in the precision of the points; sums over points are in
        float64.
        """
        image = torch.zeros_like(vector)
        offset = (self.mean @ vector).to(self.points.dtype)
        total = torch.zeros_like(offset)
        narrow = vector.to(self.points.dtype)
        for rows in self.points.split(_SUMMED):
            along = rows @ narrow - offset
            image += along @ rows
            total += along.sum()
        return image - total * self.mean

    def product_and_trace(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product with a vector and the trace of the matrix, in float64."""
        image = torch.zeros_like(vector)
        trace = torch.zeros((), dtype=torch.float64, device=vector.device)
        for rows in row_chunks(self.points):
            wide = rows - self.mean
            flat = wide.flatten()
            trace += flat.dot(flat)  # faster than a norm
            image += (wide @ vector) @ wide
        return image, trace

    def matrix(self) -> Tensor:
        """Return the matrix in float64, from products of blocks on and above its diagonal, in that
        of the points.
        """
        side = len(self.mean)
        matrix = torch.zeros(side, side, dtype=torch.float64, device=self.mean.device)
        for start in range(0, side, _BLOCK):
            stop = min(start + _BLOCK, side)
            matrix[start:stop, start:] = self.points[:, start:stop].mT @ self.points[:, start:]
        matrix = matrix.triu() + matrix.triu(1).mT
        return matrix.addr_(self.mean, self.mean, alpha=-len(self.points))


def _iterated(cloud: Cloud) -> tuple[Tensor, Tensor] | None:
    """Return share and direction, of the smaller side, by iteration; None if that is small, or does
    not converge.
    """
    if min(cloud.x.shape) <= _SMALL_SIDE:
        return None
    if cloud.is_on_accelerator and cloud.x.numel() <= LARGEST:
        return _from_matrix(cloud)
    scatter = _Scatter.of(cloud)
    direction, converged = _leading_direction(scatter.product, _start(scatter), _MAX_POINT_STEPS)
    if not converged:
        matrix = scatter.matrix()
        direction, converged = _leading_direction(
            lambda v: matrix @ v, direction, min(_MAX_STEPS, 2 * len(matrix))
        )
    return _verified_share(scatter, direction) if converged else None


def _from_matrix(cloud: Cloud) -> tuple[Tensor, Tensor] | None:
    """Return what :func:`_iterated` does, from one product on the device and an iteration on the
    host: a device would be waited for at each of its steps.
    """
    exact = cloud.frame.transform(cloud.x)
    exact = exact.mT if exact.shape[0] >= exact.shape[1] else exact
    matrix = (exact @ exact.mT).cpu()
    start = _random_direction(len(matrix))
    for _ in range(_HEAD_START):
        start = normalize(matrix @ start, dim=0)
    start = normalize(start + _RANDOM_SHARE * _random_direction(len(matrix)), dim=0)
    most_steps = min(_MAX_STEPS, 2 * len(matrix))
    direction, converged = _leading_direction(lambda v: matrix @ v, start, most_steps)
    if not converged:
        return None
    for _ in range(_REFINEMENTS):
        image = matrix @ direction
        along = image @ direction
        if torch.linalg.vector_norm(image - along * direction) <= _MAX_RESIDUAL * along:
            share = along / matrix.trace()
            return share.to(exact.device), direction.to(exact.device)
        direction = normalize(image, dim=0)
    return None


def _random_direction(length: int) -> Tensor:
    """Return a vector of length 1 in general position, float64, always the same on the CPU."""
    generator = torch.Generator().manual_seed(0)
    return normalize(torch.randn(length, dtype=torch.float64, generator=generator), dim=0)


def _leading_direction(
    multiply: Callable[[Tensor], Tensor], start: Tensor, max_steps: int
) -> tuple[Tensor, bool]:
    """Return the top eigenvector (float64) of a symmetric matrix by Lanczos iteration, and whether
    it has converged.

    It ends early if the residual falls too slowly for ``max_steps``. The basis is reorthogonalised
    in float64.
    """
    steps = min(len(start), max_steps)
    basis = start.new_zeros(steps + 1, len(start))
    basis[0] = start
    diagonal, off_diagonal = start.new_zeros(2, steps)
    weights, residual = start[:0], torch.inf
    for step in range(steps):
        earlier = basis[: step + 1]
        image = multiply(earlier[-1])
        diagonal[step] = image @ earlier[-1]
        # "twice is enough": Parlett, The Symmetric Eigenvalue Problem, 1980, section 6.9
        for _ in range(2):
            image -= (earlier @ image) @ earlier
        off_diagonal[step] = torch.linalg.vector_norm(image)
        # a remainder of exactly zero (the cloud has few dimensions) leaves a zero row, which is
        # harmless
        basis[step + 1] = image / off_diagonal[step].clamp_min(torch.finfo(torch.float64).tiny)
        # the projected problem grows: solved ever more rarely, it stays the smaller part of the
        # work
        if (step + 1) % (1 + step // 8) == 0 or step == steps - 1:
            weights, residual = _top_ritz_vector(diagonal[: step + 1], off_diagonal[: step + 1])
            if residual <= _STOP_RESIDUAL or (
                step >= _MIN_STEPS and not residual <= _STOP_RESIDUAL ** (step / steps)
            ):
                break
    return normalize(
        weights.to(start.device) @ basis[: len(weights)], dim=0
    ), residual <= _STOP_RESIDUAL


def _top_ritz_vector(diagonal: Tensor, off_diagonal: Tensor) -> tuple[Tensor, float]:
    """Return its weights over the basis (on the CPU), and its residual relative to its value."""
    diagonal = diagonal.cpu()
    off_diagonal = off_diagonal.cpu()
    inner = off_diagonal[:-1]
    values, vectors = torch.linalg.eigh(diagonal.diag() + inner.diag(1) + inner.diag(-1))
    return vectors[:, -1], (off_diagonal[-1] * vectors[-1, -1].abs() / values[-1]).item()


def _verified_share(scatter: _Scatter, direction: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the share along ``direction`` in float64, and the direction; None if it is not an
    eigenvector.
    """
    for _ in range(_REFINEMENTS):
        image, trace = scatter.product_and_trace(direction)
        along = image @ direction
        if torch.linalg.vector_norm(image - along * direction) <= _MAX_RESIDUAL * along:
            return along / trace, direction
        # one step of power iteration removes rounding errors along minor directions
        direction = normalize(image, dim=0)
    return None


def _start(scatter: _Scatter) -> Tensor:
    """Return a start vector from a sample of the points and a seeded random vector.

    It is in general position: the iteration cannot find a direction that the start lacks.
    """
    random = _random_direction(len(scatter.mean)).to(scatter.mean.device)
    start, some = random, sample(scatter.points) - scatter.mean
    for _ in range(_HEAD_START):
        start = normalize((some @ start) @ some, dim=0)
    return normalize(start + _RANDOM_SHARE * random, dim=0)
