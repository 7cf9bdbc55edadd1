"""Anisotropy: how much of a cloud's variance one direction carries.

Only the largest eigenvalue of the scatter matrix is needed, and its trace, which is a sum of
squares. The whole spectrum would cost a float64 Gram matrix and an ``eigh``. So the eigenvector is
found in steps, each of which can fail and hand over to the next:

1. :func:`_leading_direction` with products with the points (:meth:`_Scatter.product`), in their own
   precision. Where one direction dominates, as in most layers, a few steps are enough.
2. The same with the scatter matrix itself, for more steps: a step is then cheaper, but the matrix
   has to be made first.
3. :func:`_verified_share` computes eigenvalue and residual in float64, so that the rounding of the
   steps before does not count: for a symmetric matrix an eigenvalue lies within the norm of the
   residual of the Rayleigh quotient (Parlett, The Symmetric Eigenvalue Problem, 1980, theorem
   4.5.1).
4. :func:`repdyn.kernels.spectrum.spectrum_of`, the whole spectrum, where that fails, and for small
   clouds.

On an accelerator :func:`_from_matrix` takes the place of the first three. A residual proves that
there is an eigenvalue, not that it is the largest. It is where it makes up half of the trace; else
:func:`_largest_orthogonal` looks for a larger one at right angles to its direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from repdyn.kernels.cloud import Cloud, as_cloud, row_chunks, sample
from repdyn.kernels.few_launches import LARGEST
from repdyn.kernels.kernel import error_of_sum, nan_if_undefined
from repdyn.kernels.spectrum import gram_matrix, spectrum_of

# below this side a float64 Gram matrix and its exact spectrum are cheaper than iterating
_SMALL_SIDE = 64
# iterations by products with the points, then by products with their scatter matrix
_MAX_POINT_STEPS = 20
_MAX_STEPS = 400
# steps before the rate of convergence is checked
_MIN_STEPS = 4
# relative residual at which the iteration stops, and the largest one accepted in float64: an
# eigenvalue is accurate to the residual, and usually to its square
_STOP_RESIDUAL = 5e-7
_MAX_RESIDUAL = 1e-6
# attempts to bring the residual in float64 below its limit, by a step of power iteration each
_REFINEMENTS = 4
# powers of the covariance of a sample applied to the random start
_HEAD_START = 4
# share of the random vector in the start, for the directions that the sample lacks
_RANDOM_SHARE = 1e-3
# products after which a look at right angles to a direction shows what is larger there
_LOOKS = 2
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
        which is measured in float64. It is the largest where the result is above 1/2; below, no
        larger one shows in three products with a second vector in general position.

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

        The scatter matrix is X.T @ X - n mean mean.T, so that no centred copy is needed; but where
        the mean is most of the second moment, the subtraction would cancel the leading digits.
        """
        x = cloud.x
        if x.dtype == torch.float32 and x.shape[0] >= x.shape[1]:
            mean, squares = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device), 0.0
            for rows in row_chunks(x):
                mean += rows.sum(0) / len(x)
                squares += torch.linalg.vector_norm(rows).double().square() / len(x)
            # squares of such points are far from the ends of float32's range
            is_in_range = 2.0**-80 < squares < 2.0**80
            if is_in_range and mean @ mean < _MAX_MEAN_SHARE * squares:
                return cls(x, mean)
        # the transpose has the same singular values, and a smaller scatter matrix
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
    """Return the share and the direction, on the smaller side of the points, by iteration; None
    where that side is small, or the iteration does not converge.
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
    # as _start does with a sample of the points: here the whole matrix is at hand
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
            trace = matrix.trace()
            if not _is_largest(along, trace, lambda v: matrix @ v, direction):
                return None
            return (along / trace).to(exact.device), direction.to(exact.device)
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

    After k products the matrix is known on the space of start, A start, ..., A^(k-1) start, where
    it is tridiagonal: the top eigenvector of that small matrix is the best approximation in the
    space (a Ritz vector), and the last off-diagonal entry gives its residual without another
    product. It takes about the square root of the number of steps that power iteration takes.
    In floating point the basis loses its orthogonality, and eigenvalues come twice; so it is
    reorthogonalised against all earlier vectors, which costs little as long as steps are few.

    It ends early if the residual falls too slowly for ``max_steps``.

    Source: Golub, Van Loan, Matrix Computations, 2013, sections 10.1 to 10.3.
    """
    steps = min(len(start), max_steps)
    basis = start.new_zeros(steps + 1, len(start))
    basis[0] = start
    diagonal, off_diagonal = start.new_zeros(2, steps)
    weights = start[:0]
    residual = torch.inf
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
            # falling at a constant rate, the residual would be here now to stop in time; written
            # with "not", so that NaN is too slow as well
            is_too_slow = not residual <= _STOP_RESIDUAL ** (step / steps)
            if residual <= _STOP_RESIDUAL or (step >= _MIN_STEPS and is_too_slow):
                break
    direction = normalize(weights.to(start.device) @ basis[: len(weights)], dim=0)
    return direction, residual <= _STOP_RESIDUAL


def _top_ritz_vector(diagonal: Tensor, off_diagonal: Tensor) -> tuple[Tensor, float]:
    """Return the top eigenvector of the tridiagonal matrix, which is the Ritz vector's weights over
    the basis (on the CPU), and the residual relative to its eigenvalue.

    The residual is the last off-diagonal entry times the last weight (Parlett, section 13.2).
    """
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
            if not _is_largest(along, trace, scatter.product, direction):
                return None
            return along / trace, direction
        # one step of power iteration removes rounding errors along minor directions
        direction = normalize(image, dim=0)
    return None


def _is_largest(
    along: Tensor, trace: Tensor, multiply: Callable[[Tensor], Tensor], direction: Tensor
) -> bool:
    """Return whether no eigenvalue is larger than the one along ``direction``: for certain where it
    is more than half of the trace, as far as :func:`_largest_orthogonal` sees where it is not.
    """
    if 2 * along > trace:
        return True
    return bool(_largest_orthogonal(multiply, direction) <= along * (1 + _MAX_RESIDUAL))


def _largest_orthogonal(multiply: Callable[[Tensor], Tensor], direction: Tensor) -> Tensor:
    """Estimate the largest eigenvalue orthogonal to an eigenvector, from below.

    The start of the iteration may lack the leading direction: that of a massive activation, a
    single coordinate of a few points, is no point's of the sample, and one coordinate in some
    thousand is nearly zero in a random vector. No coordinate of this second vector is.
    """
    generator = torch.Generator().manual_seed(1)
    magnitudes = 0.5 + torch.rand(len(direction), dtype=torch.float64, generator=generator)
    signs = torch.randint(2, (len(direction),), generator=generator) * 2 - 1
    look = (magnitudes * signs).to(direction.device)
    for _ in range(_LOOKS):
        look = multiply(look - (look @ direction) * direction)
        look = normalize(look, dim=0)
    look = normalize(look - (look @ direction) * direction, dim=0)
    return look @ multiply(look)


def _start(scatter: _Scatter) -> Tensor:
    """Return a start vector from a sample of the points and a seeded random vector.

    A few steps of power iteration on the sample bring it near the leading direction at small cost.
    It would then lack all directions that no point of the sample has, and no iteration finds a
    direction that its start lacks: the random vector, added once more, has a part of every one.
    """
    random = _random_direction(len(scatter.mean)).to(scatter.mean.device)
    sampled = sample(scatter.points) - scatter.mean
    start = random
    for _ in range(_HEAD_START):
        start = normalize((sampled @ start) @ sampled, dim=0)
    return normalize(start + _RANDOM_SHARE * random, dim=0)
