"""Tokens against the vocabulary: how much of its own input embedding a token's vector still shows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repdyn.kernels.cloud import FLOAT_DTYPES, full_precision, row_chunks
from repdyn.kernels.undefined import Undefined, mean_over_vectors, nan_if_undefined
from repdyn.kernels.vocabulary import Vocabulary, unit_rows
from repdyn.kernels.vocabulary_search import closer_rows


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
        ValueError: for another shape or dtype, or an id that is no row.

    Invariant to the length of every vector and of every embedding, and to a rotation of both.
    Undefined when the vectors or the embeddings contain NaN or inf, or have different dimensions, and when a vector or
    the embedding of a token among them is zero.

    Source: "token encodings across attention layers", an interactive exploration of RoBERTa.

    Example:
        >>> token_cosine(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), Vocabulary(torch.eye(2))).item()
        0.8
    """
    return token_cosines(x, ids, vocabulary)


@nan_if_undefined
def token_rank(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Compute the rank of a token's own input embedding among all, seen from the token's vector: the median over the
    vectors.

    The rank is the number of rows of the vocabulary with a larger cosine to the vector than its own row has, rows that
    no token uses among them; 0 where the own row is the nearest. See :func:`token_ranks`.

    Args and Raises: as for :func:`token_cosine`.

    Returns:
        0-d float64 tensor on the device of ``x``, in [0, n_rows - 1]; NaN when undefined. Of an even number of vectors
        it is the mean of the two in the middle.

    Invariant, undefined, source: as :func:`token_cosine`.

    Example:
        >>> token_rank(torch.tensor([[3.0, 4.0]]), torch.tensor([0]), Vocabulary(torch.eye(2))).item()
        1.0
    """
    ranks = token_ranks(x, ids, vocabulary).sort().values
    return (ranks[(len(ranks) - 1) // 2] + ranks[len(ranks) // 2]).double() / 2


@mean_over_vectors
def token_top1_match(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Compute the share of the vectors to which no row of the vocabulary is closer than their token's own (rank 0).

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


def token_cosines(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the cosine of each vector to its token's own row, (n,) float64.

    Raises:
        Undefined, ValueError: as for :func:`token_cosine` and its ``or_raise``.
    """
    _require_comparable(x, ids, vocabulary)
    with full_precision(x.device):
        pairs = zip(row_chunks(x), ids.split(len(row_chunks(x)[0])), strict=True)
        own = [torch.linalg.vecdot(unit_rows(rows), vocabulary.units(some).to(x.device)) for rows, some in pairs]
    cosines = torch.cat(own)
    if bool((undefined := cosines.isnan()).any()):
        token = int(ids[undefined.to(ids.device)][0])
        if float(vocabulary.norms[token]) == 0:
            raise Undefined(f"the input embedding of token {token} is zero")
        raise Undefined(f"{int(undefined.sum())} of {len(x)} vectors are zero")
    return cosines


def token_ranks(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Count the rows of the vocabulary that are closer (cosine) to each vector than its token's own, (n,) int64.

    Exact, with cosines that differ by less than 4 (dim + 8) 2^-53 counted as equal: copies of a row tie, whatever
    their length. A row of zeros is never closer. Computed once for the same vectors and tokens.

    Raises:
        Undefined, ValueError: as for :func:`token_cosine` and its ``or_raise``.
    """
    _require_comparable(x, ids, vocabulary)
    return vocabulary.once(_ranks, x, ids)


def _ranks(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    return closer_rows(x, token_cosines(x, ids, vocabulary), vocabulary)


def _require_comparable(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> None:
    if x.ndim != 2 or x.dtype not in FLOAT_DTYPES or ids.shape != x.shape[:1] or ids.is_floating_point():
        raise ValueError(
            "expected vectors of shape (n, dim) in a floating dtype and n integers as ids, got "
            f"{tuple(x.shape)} of {x.dtype} and {tuple(ids.shape)} of {ids.dtype}"
        )
    if len(x) == 0:
        raise Undefined("there are no vectors")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary.n_rows:
        raise ValueError(
            f"expected ids from 0 to {vocabulary.n_rows - 1}, the rows of the vocabulary, got {int(ids.min())} to "
            f"{int(ids.max())}"
        )
    if x.shape[1] != vocabulary.table.shape[1]:
        raise Undefined(f"the input embeddings have {vocabulary.table.shape[1]} dimensions, the vectors {x.shape[1]}")
    if not math.isfinite(x.abs().amax()):
        raise Undefined(f"the vectors contain {'NaN' if bool(x.isnan().any()) else 'inf'}")
    if vocabulary.problem:
        raise Undefined(vocabulary.problem)
