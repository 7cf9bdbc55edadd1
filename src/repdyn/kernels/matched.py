"""Matched clouds: row i of each belongs to the same token."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, row_chunks
from repdyn.kernels.undefined import Undefined

COMPARED_WITH = "compared with: "
"""Prefix of a reason that concerns another cloud than the first."""


def require_matched(check: Callable[[Cloud], object], cloud: Cloud, *others: Cloud, one_space: bool = False) -> None:
    """Raise unless the clouds have as many points, and each passes a check.

    Args:
        check: raises Undefined for a cloud that does not pass.
        one_space: their dimensions must agree too.

    Raises:
        ValueError: the shapes differ.
        Undefined: a cloud does not pass; the reason says if it is not the first.
    """
    for other in others:
        if other.n_vectors != cloud.n_vectors:
            raise ValueError(
                f"expected clouds of as many points, row by row of the same tokens, got {cloud.n_vectors} and "
                f"{other.n_vectors}; take both from one probe"
            )
        if one_space and other.x.shape[1] != cloud.x.shape[1]:
            raise ValueError(
                f"expected points of one dimension, got {cloud.x.shape[1]} and {other.x.shape[1]}; across dimensions "
                "take linear_cka or linearity"
            )
    check(cloud)
    for other in others:
        try:
            check(other)
        except Undefined as undefined:
            raise Undefined(COMPARED_WITH + undefined.reason) from undefined


def require_numbers(cloud: Cloud) -> None:
    """Raise Undefined for a cloud without points, or with NaN or inf among them."""
    if cloud.n_vectors == 0:
        raise Undefined("0 points, at least 1 needed")
    if found := cloud.once(_non_finite):
        raise Undefined(f"the points contain {found}")


def _non_finite(cloud: Cloud) -> str:
    if torch.stack(torch.aminmax(cloud.x)).isfinite().all():
        return ""
    return "NaN" if cloud.x.isnan().any() else "inf"


def row_pairs(cloud: Cloud, other: Cloud) -> Iterator[tuple[Tensor, Tensor]]:
    """Return blocks of matching rows of two clouds of one dimension, each small enough to convert to float64."""
    return zip(row_chunks(cloud.x), row_chunks(other.x), strict=True)


def cosines(cloud: Cloud, other: Cloud) -> Tensor:
    """Return the cosine of the angle between the two vectors of each row, (n,) float64 in [-1, 1].

    Raises:
        Undefined: a vector is zero.
    """
    products, own, others = [], [], []
    for rows, other_rows in row_pairs(cloud, other):
        wide, other_wide = _scaled(rows)[0], _scaled(other_rows)[0]
        products.append(torch.linalg.vecdot(wide, other_wide))
        own.append(torch.linalg.vector_norm(wide, dim=1))
        others.append(torch.linalg.vector_norm(other_wide, dim=1))
    for prefix, norms in (("", torch.cat(own)), (COMPARED_WITH, torch.cat(others))):
        if n_zero := int((norms == 0).sum()):
            raise Undefined(f"{prefix}{n_zero} of {cloud.n_vectors} vectors are zero and have no direction")
    return (torch.cat(products) / torch.cat(own) / torch.cat(others)).clamp(-1, 1)


def lengths(rows: Tensor) -> Tensor:
    """Return the Euclidean length of each row, (n,) float64."""
    wide, factor = _scaled(rows)
    return torch.linalg.vector_norm(wide, dim=1) * factor


def _scaled(rows: Tensor) -> tuple[Tensor, Tensor | float]:
    """Return rows in float64 whose squares do not overflow, and the factor divided out: (n,), or one for all."""
    if rows.dtype != torch.float64:
        return rows.double(), 1.0
    largest = rows.abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    return rows / largest[:, None], largest
