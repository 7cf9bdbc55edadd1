"""Tokens against the vocabulary: how much of its own input embedding a token's vector
still shows.

- :class:`Vocabulary`: the rows of the input embedding, as directions whose products order them by
  cosine or by distance.
- :func:`token_ranks`: how many rows are closer than a token's own. Products in float32 decide where
  they are farther from the limit than their error, float64 decides the rest.
- :func:`token_cosine`, :func:`token_rank`, :func:`token_top1_match`, :func:`token_distance`: the
  kernels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from repdyn.kernels.cloud import FLOAT_DTYPES, product, row_chunks
from repdyn.kernels.kernel import (
    UndefinedError,
    full_precision,
    mean_over_vectors,
    nan_if_undefined,
)


class Vocabulary:
    """The rows of a model's input embedding, for comparison with the tokens of all layers.

    Args:
        table: (n_rows, dim), float16, bfloat16, float32 or float64, any device. It is not copied:
            do not modify it while the vocabulary is in use.
        added: (dim,) a vector added to every row, such as a position's embedding; in float64. None
            for none.
        by_distance: whether the closer of two rows is the one at the smaller Euclidean distance
            rather than the one with the larger cosine.
    """

    def __init__(
        self, table: Tensor, added: Tensor | None = None, *, by_distance: bool = False
    ) -> None:
        if table.ndim != 2 or 0 in table.shape or table.dtype not in FLOAT_DTYPES:
            raise ValueError(
                "expected an embedding table of shape (n_rows, dim) in float16, bfloat16, float32 "
                f"or float64, got {tuple(table.shape)} of {table.dtype}; give the weight of an "
                "nn.Embedding"
            )
        self.table = table.detach()
        self.added = None if added is None else added.detach().to(table.device).double()
        self.by_distance = by_distance
        self.ranks: dict[tuple, Tensor] = {}
        """What :func:`token_ranks` has counted, by the content of vectors and tokens."""

    @property
    def n_rows(self) -> int:
        return self.table.shape[0]

    @cached_property
    def norms(self) -> Tensor:
        """Return (n_rows,) float64: Euclidean norms of the rows."""
        with full_precision(self.table.device):
            return torch.cat([row_norms(self._as_float64(rows)) for rows in row_chunks(self.table)])

    @cached_property
    def is_finite(self) -> bool:
        """Return whether the rows can be compared with anything: none contains NaN or inf."""
        return bool(self.norms.isfinite().all())

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the given rows (indices of any shape) as they are, (..., dim) float64."""
        return self._as_float64(self.table[numbers.to(self.table.device)])

    def directions(self, numbers: Tensor) -> Tensor:
        """Return the given rows (indices of any shape) such that the closest to a vector x has the
        largest product with :meth:`direction_of` x, (..., dim or dim + 1) float64, of length 1 at
        most.

        For cosines they are the rows at unit length, NaN where a row is zero. For distances, with c
        the largest norm, ``(row, -|row|^2 / 2c) / 1.2c``: the product with (x, c) falls with ``|x -
        row|^2``.
        """
        numbers = numbers.to(self.table.device)
        return self._directed(self.rows(numbers), self.norms[numbers])

    def direction_of(self, x: Tensor) -> Tensor:
        """Return what vectors (n, dim) are multiplied with, (n, dim or dim + 1) float64, of length
        1.
        """
        if not self.by_distance:
            return unit_rows(x)
        return unit_rows(torch.cat([x.double(), self._largest.to(x.device).expand(len(x), 1)], 1))

    def tiles(self, n_rows: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """Yield the directions of all rows in tiles: the index of the first row, and at most
        ``n_rows`` of them.
        """
        for start in range(0, self.n_rows, n_rows):
            rows = self.table[start : start + n_rows]
            norms = self.norms[start : start + n_rows]
            yield start, self._directed(self._as_float64(rows.to(device)), norms.to(device))

    def _directed(self, rows: Tensor, norms: Tensor) -> Tensor:
        norms = norms.unsqueeze(-1)
        if not self.by_distance:
            return rows / norms
        largest = self._largest.to(rows.device)
        # the longest has a length of sqrt(1 + 1 / 4): at most 1 after the division
        return torch.cat([rows / largest, -((norms / largest) ** 2) / 2], -1) / 1.2

    @cached_property
    def _largest(self) -> Tensor:
        return self.norms.max().where(self.norms.max() > 0, 1.0)

    def _as_float64(self, rows: Tensor) -> Tensor:
        return rows.double() if self.added is None else rows.double() + self.added.to(rows.device)


def unit_rows(x: Tensor) -> Tensor:
    """Return vectors (n, dim) of any dtype at unit length, float64; NaN where a vector is zero."""
    return x.double() / row_norms(x).unsqueeze(1)


def row_norms(x: Tensor) -> Tensor:
    """Return the Euclidean norms (n,), float64, of rows of any magnitude whose norm is finite."""
    wide = x.double()
    largest = wide.abs().amax(1)
    # the scale of each row is its own: squares of 1e200 would leave the range
    scale = largest.where((largest > 0) & largest.isfinite(), 1.0)
    return torch.linalg.vector_norm(wide / scale.unsqueeze(1), dim=1) * scale


def _digest(values: Tensor) -> bytes:
    return hashlib.sha256(values.contiguous().view(torch.uint8).cpu().numpy().tobytes()).digest()


# vectors compared with the table at a time
_VECTOR_CHUNK = 2048
# rows of the table at a time: their cosines with all vectors fit the cache of a CPU, or keep an
# accelerator busy
_ROWS = {"cpu": 512, "cuda": 2048}
# terms summed in float32 before the sum is added to others: the error grows with their number, not
# with dim
_SUMMED = 128
# cost of a single pair in float64, relative to a pair in a float64 product
_PAIR_COST = 24
# coordinates of the nearest rows in float64 at a time, and rows that they are found among
_CHUNK, _TILE_ROWS = 1 << 22, 2048


def nearest_rows(x: Tensor, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor]:
    """Return the cosines of each vector with the k closest rows of a vocabulary, and these rows:
    (n, k) float64, int64.

    The vectors are finite and not zero. Cosines descend, equal ones by index; of several that tie
    with the last one, any may be left out. A vocabulary by distance gives distances, which ascend.

    Example:
        >>> nearest_rows(torch.tensor([[3.0, 4.0]]), Vocabulary(torch.eye(2)), k=1)
        (tensor([[0.8000]], dtype=torch.float64), tensor([[1]]))
    """
    n_rows = vocabulary.n_rows if vocabulary.by_distance else int(vocabulary.norms.gt(0).sum())
    if not 1 <= k <= n_rows:
        raise ValueError(f"expected k from 1 to the {n_rows} rows that are not zero, got {k}")
    with full_precision(x.device):
        nearest = [
            _nearest(some, vocabulary, k) for some in x.split(max(1, _CHUNK // (k * x.shape[1])))
        ]
    cosines, rows = (torch.cat(parts) for parts in zip(*nearest, strict=True))
    return cosines, rows


def _nearest(x: Tensor, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor]:
    unit = vocabulary.direction_of(x)
    best = unit.new_full((len(unit), k), -torch.inf)
    rows = torch.zeros(best.shape, dtype=torch.int64, device=best.device)
    for start, tile in vocabulary.tiles(_TILE_ROWS, best.device):
        numbers = torch.arange(start, start + len(tile), device=best.device).expand(len(unit), -1)
        best, order = torch.cat([best, (unit @ tile.T).nan_to_num_(-torch.inf)], 1).topk(k)
        rows = torch.cat([rows, numbers], 1).gather(1, order)
    # one by one, so that equal rows have equal cosines; by index first: the second sort is stable
    rows = rows.sort().values
    if vocabulary.by_distance:
        exact = torch.linalg.vector_norm(
            x.double().unsqueeze(1) - vocabulary.rows(rows).to(x.device), dim=2
        )
    else:
        exact = torch.linalg.vecdot(
            unit.unsqueeze(1), vocabulary.directions(rows).to(x.device)
        ).nan_to_num_(-torch.inf)
    values, order = exact.sort(descending=not vocabulary.by_distance, stable=True)
    return values, rows.gather(1, order)


def _n_above(limits: Tensor, unit: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Count the rows of a vocabulary whose cosine to each unit vector exceeds its limit, (n,)
    int64.

    Cosines in float32 decide where they are farther from the limit than their error; exact ones
    decide the rest.
    """
    n_rows = _ROWS["cpu" if unit.device.type == "cpu" else "cuda"]
    parts = [columns_of.contiguous() for columns_of in unit.float().split(_SUMMED, 1)]
    # Both factors are rounded, products summed in any order, the sums added: Higham, Accuracy and
    # Stability of Numerical Algorithms, 2002, section 3.1. Accelerators may truncate instead of
    # rounding.
    roundoff = 2.0**-24 if unit.device.type == "cpu" else 2.0**-23
    error = 1.02 * roundoff * (min(_SUMMED, unit.shape[1]) + len(parts) + 4)
    upper, lower = ((limits + sign * error).float().unsqueeze(1) for sign in (1, -1))
    n_above = torch.zeros(len(unit), dtype=torch.int64, device=unit.device)
    for _, rows in vocabulary.tiles(n_rows, unit.device):
        columns = [columns_of.contiguous() for columns_of in rows.float().split(_SUMMED, 1)]
        cosines = product(parts[0], columns[0])
        for left, right in zip(parts[1:], columns[1:], strict=True):
            cosines += product(left, right)
        # compared into floats, which are summed several times faster than bools
        flags = torch.empty_like(cosines)
        above = torch.gt(cosines, upper, out=flags).sum(1)
        n_above += above.long()
        some = (torch.gt(cosines, lower, out=flags).sum(1) > above).nonzero().flatten()
        if len(some):
            between = (cosines[some] > lower[some]) & (cosines[some] <= upper[some])
            n_above[some] += _n_exactly_above(limits[some], unit[some], rows, between)
    return n_above


def _n_exactly_above(limits: Tensor, unit: Tensor, rows: Tensor, rows_asked: Tensor) -> Tensor:
    """Count the same among some pairs of vectors and rows, (n, n_rows) bool, in float64."""
    vectors, columns = rows_asked.nonzero().unbind(1)
    if len(vectors) * _PAIR_COST > rows_asked.numel():
        return ((unit @ rows.T > limits.unsqueeze(1)) & rows_asked).sum(1)
    pairs = zip(vectors.split(len(rows)), columns.split(len(rows)), strict=True)
    exact = torch.cat([torch.linalg.vecdot(unit[some], rows[others]) for some, others in pairs])
    is_above = exact > limits[vectors]
    return vectors[is_above].bincount(minlength=len(unit))


@mean_over_vectors
def token_cosine(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Compute the mean cosine of each token's vector to the token's own input embedding.

    Args:
        x: vectors, shape (n, dim), any floating dtype, any device.
        ids: (n,) integers, which row of the vocabulary is each vector's own.
        vocabulary: the input embeddings.

    Returns:
        0-d float64 tensor on the device of ``x``, in [-1, 1]; NaN when undefined.

    Raises:
        ValueError: an id that is no row.

    Invariant to the length of every vector and of every embedding, and to a rotation of both.
    Undefined when the vectors or the embeddings contain NaN or inf, or have different dimensions,
    and when a vector or the embedding of a token among them is zero.

    Source: "token encodings across attention layers", an interactive exploration of RoBERTa.

    Example:
        >>> token_cosine(torch.tensor([[3.0, 4.0]]), torch.tensor([1]),
        ...     Vocabulary(torch.eye(2))).item()
        0.8
    """
    return token_cosines(x, ids, vocabulary)


@nan_if_undefined
def token_rank(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Compute the median over the vectors of the rank that their token's own input embedding has
    among all.

    The rank is the number of rows of the vocabulary with a larger cosine to the vector than its own
    row has, rows that no token uses among them; 0 where the own row is the nearest.

    Args and Raises: as for :func:`token_cosine`.

    Returns:
        0-d float64 tensor on the device of ``x``, in [0, n_rows - 1]; NaN when undefined. Of an
        even number of vectors it is the mean of the two in the middle.

    Invariant, undefined, source: as :func:`token_cosine`.

    Example:
        >>> token_rank(torch.tensor([[3.0, 4.0]]), torch.tensor([0]),
        ...     Vocabulary(torch.eye(2))).item()
        1.0
    """
    ranks = token_ranks(x, ids, vocabulary).sort().values
    return (ranks[(len(ranks) - 1) // 2] + ranks[len(ranks) // 2]).double() / 2


@mean_over_vectors
def token_top1_match(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Compute the share of the vectors to which no row of the vocabulary is closer than their
    token's own (rank 0).

    Args and Raises: as for :func:`token_cosine`.

    Returns:
        0-d float64 tensor on the device of ``x``, in [0, 1]; NaN when undefined.

    Invariant, undefined, source: as :func:`token_cosine`.

    Example:
        >>> x = torch.tensor([[3.0, 4.0], [4.0, 3.0]])
        >>> token_top1_match(x, torch.tensor([0, 0]), Vocabulary(torch.eye(2))).item()
        0.5
    """
    return token_ranks(x, ids, vocabulary).eq(0).double()


@mean_over_vectors
def token_distance(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Compute the mean Euclidean distance of each token's vector to the token's own input
    embedding.

    Args and Raises: as for :func:`token_cosine`.

    Returns:
        0-d float64 tensor on the device of ``x``, in its unit, >= 0; NaN when undefined.

    Invariant to a common rotation and translation. Undefined when the vectors or the embeddings
    contain NaN or inf, or have different dimensions. Source: as :func:`token_cosine`, which names
    both measures.

    Example:
        >>> token_distance(torch.tensor([[3.0, 5.0]]), torch.tensor([1]),
        ...     Vocabulary(torch.eye(2))).item()
        5.0
    """
    return token_distances(x, ids, vocabulary)


def token_distances(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the distance of each vector to its token's own row, (n,) float64; errors as for
    :func:`token_distance`.
    """
    _require_comparable(x, ids, vocabulary)
    with full_precision(x.device):
        pairs = zip(row_chunks(x), ids.split(len(row_chunks(x)[0])), strict=True)
        return torch.cat(
            [row_norms(rows.double() - vocabulary.rows(some).to(x.device)) for rows, some in pairs]
        )


def token_cosines(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the cosine of each vector to its token's own row, (n,) float64; errors as for
    :func:`token_cosine`.
    """
    cosines = _own_products(x, ids, vocabulary)
    if bool((undefined := cosines.isnan()).any()):
        token = int(ids[undefined.to(ids.device)][0])
        if float(vocabulary.norms[token]) == 0:
            raise UndefinedError(f"the input embedding of token {token} is zero")
        raise UndefinedError(f"{int(undefined.sum())} of {len(x)} vectors are zero")
    return cosines


def _own_products(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the product of the directions of each vector and of its token's own row, (n,)
    float64.
    """
    _require_comparable(x, ids, vocabulary)
    with full_precision(x.device):
        pairs = zip(row_chunks(x), ids.split(len(row_chunks(x)[0])), strict=True)
        products = [
            (vocabulary.direction_of(rows), vocabulary.directions(some).to(x.device))
            for rows, some in pairs
        ]
        return torch.cat([torch.linalg.vecdot(*both) for both in products])


def token_ranks(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Count the rows of the vocabulary that are closer to each vector than its token's own, (n,)
    int64.

    Exact, with cosines that differ by less than 4 (dim + 8) 2^-53 counted as equal: copies of a row
    tie, whatever their length. A row of zeros never has a larger cosine. By distance the same holds
    for the products of :meth:`Vocabulary.directions`, so that rows much shorter than the longest
    one tie.
    """
    _require_comparable(x, ids, vocabulary)
    # by content, since each metric has its own slices of a layer, and two metrics need the ranks
    key = x.dtype, _digest(x), _digest(ids)
    if key not in vocabulary.ranks:
        product_of_own = _own_products if vocabulary.by_distance else token_cosines
        # above the rounding of two float64 cosines, so that neither the own row counts nor copies
        limits = product_of_own(x, ids, vocabulary) + 4 * (x.shape[1] + 8) * 2.0**-53
        with full_precision(x.device):
            parts = zip(x.split(_VECTOR_CHUNK), limits.split(_VECTOR_CHUNK), strict=True)
            counts = [
                _n_above(limit, vocabulary.direction_of(some), vocabulary) for some, limit in parts
            ]
        vocabulary.ranks[key] = torch.cat(counts)
    return vocabulary.ranks[key]


def _require_comparable(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> None:
    if (
        x.ndim != 2
        or x.dtype not in FLOAT_DTYPES
        or ids.shape != x.shape[:1]
        or ids.is_floating_point()
    ):
        raise ValueError(
            "expected vectors of shape (n, dim) in a floating dtype and n integers as ids, got "
            f"{tuple(x.shape)} of {x.dtype} and {tuple(ids.shape)} of {ids.dtype}"
        )
    if len(x) == 0:
        raise UndefinedError("there are no vectors")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary.n_rows:
        raise ValueError(
            f"expected ids from 0 to {vocabulary.n_rows - 1}, the rows of the vocabulary, got "
            f"{int(ids.min())} to {int(ids.max())}"
        )
    if x.shape[1] != vocabulary.table.shape[1]:
        raise UndefinedError(
            f"the input embeddings have {vocabulary.table.shape[1]} dimensions, the vectors "
            f"{x.shape[1]}"
        )
    if not math.isfinite(x.abs().amax()):
        raise UndefinedError(
            f"the vectors contain {'NaN' if bool(x.isnan().any()) else 'inf'}", "not_finite"
        )
    if not vocabulary.is_finite:
        raise UndefinedError(
            f"the input embeddings contain {'NaN' if vocabulary.norms.isnan().any() else 'inf'}",
            "not_finite",
        )
