"""Clouds: what they must fulfil, work that is done once for each, and arithmetic that loses
nothing.

- :class:`Cloud`: the points of a layer, with what several kernels need of them, computed once:
  distinct points, mean and scale, neighbours.
- :class:`Frame`: scales and centres points block by block, in float64, without a copy of all.
- :func:`row_chunks`, :func:`product`, :func:`unit_scale`: arithmetic for all kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from repdyn.kernels.arguments import as_points, as_tensor
from repdyn.kernels.kernel import Result, UndefinedError, in_full_precision

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# computed states are off by tens of roundings; stored coordinates in half precision differ by one
RESOLUTION = {
    dtype: (1 if dtype in (torch.float16, torch.bfloat16) else 64) * torch.finfo(dtype).eps
    for dtype in FLOAT_DTYPES
}
"""How much of their length two vectors must differ by for the difference to be more than rounding.
"""
_INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# elements converted at a time: few enough to stay in the cache of a CPU; an accelerator works on as
# many as 256 MB hold in float64, since each operation has to be launched
_CHUNK = 1 << 17
_DEVICE_CHUNK = 1 << 25
# rows of a sample
_SAMPLE_ROWS = 128


class Cloud:
    """A cloud, with cached results that several metrics share.

    Args:
        x: points, shape (n_vectors, dim), float16, bfloat16, float32 or float64, any device, any
            strides: a tensor, an array, a data frame or nested lists. It is not copied: do not
            modify it while the cloud is in use.
        groups: origin of each point, such as the text window it was taken from, shape (n_vectors,),
            integers. Points of one group are never each other's neighbours (Theiler, Spurious
            dimension from correlation algorithms applied to limited time-series data, Physical
            Review A 34:2427, 1986). Of exact duplicates only the first occurrence is used, with its
            own group. None excludes no neighbour.
        n_neighbours: largest number of nearest neighbours that will be used; they are searched
            once.

    Raises:
        ValueError: for another shape or dtype, of the points or of the groups.
        TypeError: points that are no numbers, such as a path.
    """

    def __init__(
        self,
        x: Tensor,
        *,
        groups: Tensor | None = None,
        n_neighbours: int = 2,
    ) -> None:
        x = as_points(x)
        if x.ndim != 2 or x.shape[1] == 0:
            raise ValueError(
                "expected points of shape (n_vectors, dim) with dim >= 1, got shape "
                f"{tuple(x.shape)}; flatten leading axes with x.flatten(0, -2)"
            )
        if x.dtype not in FLOAT_DTYPES:
            raise ValueError(
                f"expected points in float16, bfloat16, float32 or float64, got {x.dtype}; convert "
                "with x.float()"
            )
        self.x = x.detach()
        self.n_vectors = len(x)
        self.groups = None if groups is None else as_labels(x, groups=as_tensor(groups))[0]
        self.n_neighbours = n_neighbours
        self.results: dict[Any, Any] = {}
        """What :meth:`once` has computed, by function."""

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for what a tensor has, with how to get at the tensor."""
        how = "; its vectors, a tensor (n_vectors, dim), are its x" if hasattr(Tensor, name) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{how}")

    @property
    def n_unique(self) -> int:
        return len(self.distinct.first)

    @cached_property
    def distinct(self) -> Distinct:
        """Return the distinct rows of ``x`` in order of first occurrence: equal bitwise, except
        that -0.0 equals 0.0.
        """
        bits = _bits(self.x)
        every = torch.arange(len(bits), device=bits.device)
        # by hashes, which take a tenth of the time of torch.unique(dim=0)
        hashes, order = torch.sort(_row_hashes(bits), stable=True)
        repeat = hashes[1:] == hashes[:-1]
        if not repeat.any():
            return Distinct(points=self.x, groups=self.groups, first=every, inverse=every)
        _, inverse = torch.unique_consecutive(hashes, return_inverse=True)
        inverse = torch.empty_like(order).scatter_(0, order, inverse)
        # two rows share a hash
        if not torch.equal(bits[order[1:][repeat]], bits[order[:-1][repeat]]):
            _, inverse = torch.unique(bits, dim=0, return_inverse=True)
        n_distinct = int(inverse.max()) + 1
        first = every.new_full((n_distinct,), len(bits)).scatter_reduce(0, inverse, every, "amin")
        # by first occurrence, whatever the hashes
        first, by_position = first.sort()
        groups = None if self.groups is None else self.groups[first]
        return Distinct(
            points=self.x[first], groups=groups, first=first, inverse=by_position.argsort()[inverse]
        )

    @cached_property
    def n_possible(self) -> Tensor:
        """Return the number of possible neighbours of each distinct point, those outside its group:
        (n_unique,) int64.
        """
        groups = self.distinct.groups
        if groups is None:
            return torch.full((self.n_unique,), self.n_unique - 1, device=self.x.device)
        _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
        return self.n_unique - sizes[group]

    @cached_property
    def n_candidates(self) -> int:
        """Return the number of possible neighbours of the distinct point that has the fewest."""
        return self.n_unique - 1 if self.groups is None else int(self.n_possible.min())

    @cached_property
    def scale(self) -> float:
        """Return the power of two that brings the largest magnitude into [1/2, 1), NaN if that is
        not finite.
        """
        return unit_scale(self.x)

    @cached_property
    def frame(self) -> Frame:
        """Return the mean of all rows, and the power of two that brings the largest magnitude into
        [1/2, 1).
        """
        return Frame.fit(self.x, self.scale)

    @cached_property
    def centred(self) -> Tensor:
        """Return all rows minus their mean, times ``scale``: float64 for float64 points, otherwise
        float32.

        The mean of a sample is subtracted first and the mean of the rest last, so that an offset
        costs no digits.
        """
        x = self.x
        scale = self.scale
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        sample_mean = sample(x).double().mul(scale).mean(0)
        mean = torch.zeros_like(sample_mean)
        centred = torch.empty(x.shape, dtype=dtype, device=x.device)
        for rows, target in zip(row_chunks(x), row_chunks(centred), strict=True):
            if rows.dtype == dtype:
                torch.mul(rows, scale, out=target)
            else:
                target.copy_(rows).mul_(scale)
            target.sub_(sample_mean.to(dtype))
            mean += target.sum(0).double() / len(x)
        for target in row_chunks(centred):
            target.sub_(mean.to(dtype))
        return centred

    def __deepcopy__(self, memo: dict[int, Any]) -> Cloud:
        """Return a cloud of the same points in memory of its own, of which nothing is
        computed yet.
        """
        groups = None if self.groups is None else self.groups.clone()
        return Cloud(self.x.clone(), groups=groups, n_neighbours=self.n_neighbours)

    def require_defined(self) -> None:
        """Raise UndefinedError if no metric is defined on the cloud: NaN, inf, fewer than 3
        distinct points, or points that differ by rounding alone, of which every metric would
        describe the rounding."""
        if Cloud.require_defined in self.results:
            return
        if self.is_on_accelerator and self.n_vectors >= 3:
            self._survey()
        if self.n_vectors and not math.isfinite(self.scale):
            bad = "NaN" if self.x.isnan().any() else "inf"
            raise UndefinedError(f"the points contain {bad}", "not_finite")
        # where these differ, all do; a device waits once
        first = Cloud(self.x[:_SAMPLE_ROWS].cpu())
        if first.n_unique < 3 and self.n_unique < 3:
            raise UndefinedError(
                f"{self.n_unique} distinct of {self.n_vectors} points, at least 3 needed",
                "few_distinct",
            )
        if first.is_one_point and self.is_one_point:
            raise UndefinedError(
                f"the {self.n_vectors} points differ by less than rounding", "rounding"
            )
        self.results[Cloud.require_defined] = None

    @property
    def is_on_accelerator(self) -> bool:
        """Return whether the points are on another device than the CPU."""
        return self.x.device.type != "cpu"

    def _survey(self) -> None:
        """Find out at once what the host has to know of the points, so that it waits once: their
        scale, and if no point repeats, that all are distinct and how large a group is.
        """
        low, high = torch.aminmax(self.x)
        hashes = _row_hashes(_bits(self.x)).sort().values
        largest = self.x.new_ones(()) if self.groups is None else _largest_size(self.groups)
        told = [torch.maximum(-low, high), (hashes[1:] == hashes[:-1]).any(), largest]
        magnitude, repeats, largest = torch.stack([each.double() for each in told]).tolist()
        self.scale = _scale_of(magnitude, self.x.dtype)
        if not repeats:
            every = torch.arange(self.n_vectors, device=self.x.device)
            self.distinct = Distinct(points=self.x, groups=self.groups, first=every, inverse=every)
            self.n_candidates = self.n_vectors - int(largest)

    @property
    def is_one_point(self) -> bool:
        """Return whether the root mean square distance from the mean is below the resolution of the
        dtype.
        """
        spread = 0.0
        for rows in row_chunks(self.x):
            spread += self.frame.transform(rows)[:, self._varies].square().sum().item()
        return spread <= RESOLUTION[self.x.dtype] ** 2 * self._squared_length

    @property
    def rounding(self) -> float:
        """Return the distance, in the unit of :attr:`scale`, up to which two vectors differ by
        rounding alone: the resolution of the dtype times the root mean square length of the
        vectors, over the coordinates that vary.
        """
        return RESOLUTION[self.x.dtype] * math.sqrt(self._squared_length / self.n_vectors)

    @cached_property
    def _varies(self) -> Tensor:
        # what is constant is no rounding, however large
        return (self.x != self.x[:1]).any(0)

    @cached_property
    def _squared_length(self) -> float:
        length = 0.0
        for rows in row_chunks(self.x):
            length += rows[:, self._varies].double().mul(self.scale).square().sum().item()
        return length

    def once(self, compute: Callable[..., Result], *others: Cloud) -> Result:
        """Return ``compute(self, *others)``, cached by function, and by the others where there are
        some.
        """
        key = (compute, *others) if others else compute
        if key not in self.results:
            self.results[key] = compute(self, *others)
        return cast(Result, self.results[key])


class Distinct(NamedTuple):
    """The distinct points of a cloud."""

    points: Tensor
    """(n_unique, dim), the cloud's own tensor if no point repeats."""
    groups: Tensor | None
    """(n_unique,), those of the first occurrences; None when the cloud has no groups."""
    first: Tensor
    """(n_unique,) int64, positions of the first occurrences, ascending."""
    inverse: Tensor
    """(n_vectors,) int64, for each point the index in ``first`` of the occurrence it equals."""


@dataclass(frozen=True)
class Frame:
    """The mean of a cloud, and the power of two that brings its largest magnitude into [1/2, 1).

    The mean is subtracted in float64, so that an offset costs no digits. The scale keeps squares of
    1e-30 or 1e30 in the range of float32; it is exact, and metrics of the centred cloud do not
    depend on it.
    """

    scale: float
    mean: Tensor
    """(dim,) float64, of the scaled points."""

    @classmethod
    def fit(cls, x: Tensor, scale: float) -> Frame:
        mean = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        for rows in row_chunks(x):
            mean += rows.double().mul(scale / x.shape[0]).sum(0)
        return cls(scale, mean)

    def transform(self, rows: Tensor) -> Tensor:
        """Return points of the cloud, scaled and centred, in float64."""
        return rows.double().mul(self.scale).sub_(self.mean)


@in_full_precision
def gaussian_like(cloud: Cloud) -> Cloud:
    """Return a cloud of as many independent normal vectors with the covariance and the groups of a
    cloud; raise UndefinedError where no metric is defined on it.

    What a dimension says beyond the spectrum is how far it lies below that of such a cloud. The
    vectors are ``Z @ (X - mean) / sqrt(n - 1)`` with Z standard normal, always the same for one
    number of vectors.
    """
    cloud.require_defined()
    centred, generator, n = cloud.centred, torch.Generator().manual_seed(0), cloud.n_vectors
    vectors = torch.empty_like(centred)
    for rows in row_chunks(vectors):
        # drawn on the CPU: generators of devices have other sequences
        normal = torch.randn(len(rows), n, generator=generator, dtype=centred.dtype).to(
            centred.device
        )
        # in the unit of the cloud: the centred points are scaled, by a power of two
        rows.copy_(normal @ centred).div_(math.sqrt(n - 1) * cloud.scale)
    return Cloud(vectors, groups=cloud.groups, n_neighbours=cloud.n_neighbours)


def as_cloud(x: Tensor | Cloud) -> Cloud:
    """Return a kernel's points as a Cloud."""
    return x if isinstance(x, Cloud) else Cloud(x)


def as_labels(x: Tensor, **by_name: Tensor) -> list[Tensor]:
    """Return labels of vectors or positions, integers, on their device; raise ValueError for
    another shape or type.
    """
    for name, labels in by_name.items():
        if labels.shape != (len(x),) or labels.is_floating_point() or labels.is_complex():
            raise ValueError(
                f"expected {name} of shape ({len(x)},) and integer type, got {tuple(labels.shape)} "
                f"of {labels.dtype}; give one for each vector or position"
            )
    return [labels.to(x.device) for labels in by_name.values()]


def product(x: Tensor, y: Tensor) -> Tensor:
    """Return ``x @ y.T`` in the precision of the factors, by the fastest library."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        # oneDNN takes half the time of MKL on AMD processors
        return torch.ops.mkldnn._linear_pointwise(x, y, None, "none", [], "")
    return x @ y.T


def sample(x: Tensor) -> Tensor:
    """Return a few rows at equal distances over ``x``."""
    return x[:: -(-len(x) // _SAMPLE_ROWS)]


def unit_scale(x: Tensor) -> float:
    """Return the power of two that brings the largest magnitude of ``x`` into [1/2, 1), or as near
    as the factor itself is representable in the precision of ``x``; NaN if the magnitude is not
    finite."""
    low, high = torch.aminmax(x)
    return _scale_of(torch.maximum(-low, high).item(), x.dtype)


def _scale_of(magnitude: float, dtype: torch.dtype) -> float:
    """Return :func:`unit_scale` of points whose largest magnitude is given."""
    if not math.isfinite(magnitude):
        return math.nan
    # exponents of float64, and of float32, to which half precision is converted, with some to spare
    largest = 1000 if dtype == torch.float64 else 120
    return math.ldexp(1.0, min(max(-math.frexp(magnitude)[1], -largest), largest))


def row_chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Return successive blocks of rows, each small enough to convert to float64."""
    at_a_time = _CHUNK if x.device.type == "cpu" else _DEVICE_CHUNK
    return x.split(max(1, at_a_time // x.shape[1]))


def _bits(x: Tensor) -> Tensor:
    """Return rows as integers, equal where the rows are."""
    # adding zero turns -0.0 into 0.0
    bits = (x + 0.0).contiguous().view(_INTEGER_OF_SIZE[x.itemsize])
    # several coordinates in one integer are fewer numbers to compare and to hash
    return bits.view(torch.int64) if bits.shape[1] * bits.itemsize % 8 == 0 else bits


def _largest_size(groups: Tensor) -> Tensor:
    """Return the size of the largest group, a 0-d tensor."""
    ascending = groups.sort().values
    last = torch.searchsorted(ascending, ascending, right=True)
    return (last - torch.arange(len(groups), device=groups.device)).max()


def _row_hashes(bits: Tensor) -> Tensor:
    # products with odd numbers modulo 2**64: rows that differ in a single number never share a hash
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**63), 2**63 - 1, (bits.shape[1],), generator=generator) | 1
    weights = weights.to(bits.device)
    return torch.cat([(rows * weights).sum(1) for rows in row_chunks(bits)])
