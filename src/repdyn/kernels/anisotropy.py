"""Anisotropy: how much of a cloud's variance one direction carries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from repdyn.kernels.cloud import Cloud, Undefined, exact_arithmetic, row_chunks

# below this side a float64 Gram matrix and its exact spectrum are cheaper than iterating
_SMALL_SIDE = 64
_MAX_STEPS = 160
# steps between looks at the projected problem, each of which waits for the device
_STEPS_PER_CHECK = 8
# relative residual at which the iteration stops (about what float32 products can reach), and the one that is accepted
# when it is measured in float64: an eigenvalue lies within the residual, and usually within its square
_STOP, _ACCEPT = 1e-6, 5e-6
_REFINEMENTS = 3


def anisotropy(x: Tensor | Cloud) -> Tensor:
    """Share of the variance of a point cloud that lies along its first principal direction.

    ``s_1**2 / sum(s_i**2)`` over the singular values of the points with their mean removed.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [1 / min(n_vectors - 1, dim), 1]; NaN when
        undefined. Accurate to a relative 1e-5 at worst, typically 1e-7.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to translation, rotation, uniform scaling, order of the points and columns of zeros. Repeated points
    count as often as they occur.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ.

    Source: Razzhigaev et al., The Shape of Learning: Anisotropy and Intrinsic Dimensions in Transformer-Based Models,
    Findings of EACL 2024, section 3.1.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> anisotropy(square).item()
        0.5
        >>> anisotropy(square * torch.tensor([3.0, 1.0])).item()
        0.9
    """
    cloud = x if isinstance(x, Cloud) else Cloud(x)
    try:
        return anisotropy_of(cloud)
    except Undefined:
        return torch.tensor(torch.nan, dtype=torch.float64, device=cloud.x.device)


def anisotropy_of(cloud: Cloud) -> Tensor:
    """As ``anisotropy``, but raises Undefined with the reason instead of returning NaN."""
    cloud.require_defined()
    with exact_arithmetic(cloud.x.device):
        x = cloud.centred
        # x and its transpose share their singular values; the shorter side is the one iterated on
        tall = x if x.shape[0] >= x.shape[1] else x.mT
        share = _iterated_share(tall) if tall.shape[1] > _SMALL_SIDE else None
        return _exact_share(tall) if share is None else share


def _exact_share(tall: Tensor) -> Tensor:
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64, device=tall.device)
    for rows in row_chunks(tall):
        wide = rows.double()
        gram.addmm_(wide.mT, wide)
    return torch.linalg.eigvalsh(gram)[-1] / gram.trace()


def _iterated_share(tall: Tensor) -> Tensor | None:
    """None when no direction stands out enough for the iteration to settle on one."""
    direction = _leading_direction(tall)
    return None if direction is None else _verified_share(tall, direction)


def _leading_direction(tall: Tensor) -> Tensor | None:
    """Top right singular vector (float64) by Lanczos iteration on ``tall.T @ tall``; None when it does not settle.

    Products are taken in the precision of ``tall``: rounding moves the direction by some 1e-6, hence the eigenvalue by
    its square. The basis is kept and reorthogonalised in float64.
    """
    side = tall.shape[1]
    steps = min(side, _MAX_STEPS)
    basis = torch.zeros(steps + 1, side, dtype=torch.float64, device=tall.device)
    basis[0] = _start(side).to(tall.device)
    diagonal, off_diagonal = torch.zeros(2, steps, dtype=torch.float64, device=tall.device)
    for step in range(steps):
        image = (tall.mT @ (tall @ basis[step].to(tall.dtype))).double()
        diagonal[step] = image @ basis[step]
        known = basis[: step + 1]
        for _ in range(2):  # "twice is enough": Parlett, The Symmetric Eigenvalue Problem, 1980, section 6.9
            image -= (known @ image) @ known
        off_diagonal[step] = torch.linalg.vector_norm(image)
        # a remainder of exactly zero (the cloud has few dimensions) leaves a zero row, which is harmless
        basis[step + 1] = image / off_diagonal[step].clamp_min(torch.finfo(torch.float64).tiny)
        if (step + 1) % _STEPS_PER_CHECK == 0:
            weights = _settled(diagonal[: step + 1], off_diagonal[: step + 1])
            if weights is not None:
                return normalize(weights.to(tall.device) @ known, dim=0)
    return None


def _settled(diagonal: Tensor, off_diagonal: Tensor) -> Tensor | None:
    """Weights of the top Ritz vector over the basis (on the CPU), None while its residual is too large."""
    diagonal, off_diagonal = diagonal.cpu(), off_diagonal.cpu()
    inner = off_diagonal[:-1]
    values, vectors = torch.linalg.eigh(diagonal.diag() + inner.diag(1) + inner.diag(-1))
    residual = off_diagonal[-1] * vectors[-1, -1].abs()
    return vectors[:, -1] if residual <= _STOP * values[-1] else None


def _verified_share(tall: Tensor, direction: Tensor) -> Tensor | None:
    """Share along ``direction``, in float64; None when it is not a principal direction after all."""
    for _ in range(_REFINEMENTS):
        total = torch.zeros((), dtype=torch.float64, device=tall.device)
        image = torch.zeros_like(direction)
        for rows in row_chunks(tall):
            wide = rows.double()
            total += torch.linalg.vector_norm(wide).square()
            image += (wide @ direction) @ wide
        along = image @ direction
        if torch.linalg.vector_norm(image - along * direction) <= _ACCEPT * along:
            return along / total
        # the image is one step of power iteration ahead: it sheds what float32 products left of minor directions
        direction = normalize(image, dim=0)
    return None


def _start(side: int) -> Tensor:
    """A fixed unit vector in general position; the global random state is left alone."""
    start = torch.randn(side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return normalize(start, dim=0)
