"""The rows of a model's input embedding, prepared for comparison with the tokens of all layers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from repdyn.kernels.cloud import FLOAT_DTYPES, full_precision, row_chunks

# cached results: enough for the batches, subsets and states of a layer
_CACHE_SIZE = 64


class Vocabulary:
    """The rows of a model's input embedding, for comparison with the tokens of all layers.

    Args:
        table: (n_rows, dim), float16, bfloat16, float32 or float64, any device. It is not copied: do not modify it
            while the vocabulary is in use.
        added: (dim,) a vector added to every row, such as a position's embedding; in float64. None for none.

    Raises:
        ValueError: for another shape or dtype.
    """

    def __init__(self, table: Tensor, added: Tensor | None = None) -> None:
        if table.ndim != 2 or 0 in table.shape or table.dtype not in FLOAT_DTYPES:
            raise ValueError(
                "expected an embedding table of shape (n_rows, dim) in float16, bfloat16, float32 or float64, got "
                f"{tuple(table.shape)} of {table.dtype}; give the weight of an nn.Embedding"
            )
        if added is not None and added.shape != table.shape[1:]:
            raise ValueError(
                f"expected a vector of shape {tuple(table.shape[1:])} to add to every row, got {tuple(added.shape)}"
            )
        self.table = table.detach()
        self.added = None if added is None else added.detach().to(table.device).double()
        self._cache: dict[tuple, Tensor] = {}

    @property
    def n_rows(self) -> int:
        return self.table.shape[0]

    @cached_property
    def norms(self) -> Tensor:
        """(n_rows,) float64: Euclidean norms of the rows."""
        with full_precision(self.table.device):
            return torch.cat([row_norms(self._as_float64(rows)) for rows in row_chunks(self.table)])

    @cached_property
    def problem(self) -> str:
        """Why the rows cannot be compared with anything; "" if they can."""
        if bool(self.norms.isfinite().all()):
            return ""
        return f"the input embeddings contain {'NaN' if bool(self.norms.isnan().any()) else 'inf'}"

    def units(self, rows: Tensor) -> Tensor:
        """Return the given rows (indices of any shape) at unit length, (..., dim) float64; NaN where a row is zero."""
        rows = rows.to(self.table.device)
        return self._as_float64(self.table[rows]) / self.norms[rows].unsqueeze(-1)

    def unit_tiles(self, n_rows: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows at unit length in tiles: the index of the first row, and (at most n_rows, dim) float64."""
        for start in range(0, self.n_rows, n_rows):
            rows, norms = self.table[start : start + n_rows], self.norms[start : start + n_rows]
            yield start, self._as_float64(rows.to(device)) / norms.to(device).unsqueeze(1)

    def once(self, compute: Callable[[Tensor, Tensor, Vocabulary], Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """Return ``compute(x, ids, self)``, cached by the content of the tensors."""
        key = (compute, x.dtype, tuple(x.shape), _digest(x), _digest(ids))
        if key not in self._cache:
            if len(self._cache) == _CACHE_SIZE:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = compute(x, ids, self)
        return self._cache[key]

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
    """Return a digest of the content: each metric has its own slices of a layer."""
    return hashlib.sha256(values.contiguous().view(torch.uint8).cpu().numpy().tobytes()).digest()
