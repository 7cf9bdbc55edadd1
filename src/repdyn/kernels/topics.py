"""Topics of words: how much more alike the vectors of one topic are than those of two, and how much
more attention positions of one topic give each other.

Means over all pairs are not taken pair by pair: the inner products of all pairs of a group sum to
the square of the sum of its vectors, at a cost that is linear in their number.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from repdyn.kernels.classes import CHUNK, norms_of, positive_norms, reduced
from repdyn.kernels.cloud import Cloud, as_cloud, as_labels, unit_scale
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.sequences import require_attention


@nan_if_undefined
def topic_gap(x: Tensor | Cloud, ids: Tensor, topics: Tensor) -> Tensor:
    """Compute the mean cosine of vectors of words of one topic, minus that of vectors of words of
    different topics.

    ``mean(cos(x_i, x_j) : w_i != w_j, t_i = t_j) - mean(cos(x_i, x_j) : w_i != w_j, t_i != t_j)``
    over all such pairs, each alike. It comes from sums of unit vectors, at a cost linear in the
    number of vectors.

    Args:
        x: vectors, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them. They
            are not centred.
        ids: word (token id) of each vector, shape (n_vectors,), integers.
        topics: topic of each vector, shape (n_vectors,), integers; vectors of a negative topic are
            left out.

    Returns:
        0-d float64 tensor on the device of ``x``, in [-2, 2]; NaN when undefined.

    Invariant to rotation, to positive factors of each vector, to order and to names of words and
    topics. Undefined when no vector has a topic, when there are no pairs of one kind, when a vector
    is zero, or for NaN and inf.

    Source: Li, Li, Risteski, How Do Transformers Learn Topic Structure, ICML 2023, section 6;
    theirs is of the word embeddings, each word once.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> topic_gap(x, ids=torch.arange(4), topics=torch.tensor([0, 0, 1, 1])).item()
        1.0
    """
    same, different = _means(x, ids, topics, "cosine")
    return same - different


@nan_if_undefined
def topic_gap_dot(x: Tensor | Cloud, ids: Tensor, topics: Tensor) -> Tensor:
    """Compute :func:`topic_gap` of inner products instead of cosines, in the square of the vectors'
    unit.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> topic_gap_dot(x, ids=torch.arange(4), topics=torch.tensor([0, 0, 1, 1])).item()
        2.5
    """
    same, different = _means(x, ids, topics, "dot")
    return same - different


@nan_if_undefined
def topic_mean(
    x: Tensor | Cloud, ids: Tensor, topics: Tensor, *, product: str = "cosine", pairs: str = "same"
) -> Tensor:
    """Compute one of the two means of :func:`topic_gap`, or of :func:`topic_gap_dot`.

    Args:
        x, ids, topics: as for :func:`topic_gap`.
        product: "cosine" or "dot".
        pairs: "same", of words that share a topic, or "different".

    Returns:
        0-d float64 tensor on the device of ``x``, in [-1, 1] for cosines; NaN when undefined.

    Invariant, undefined, source: as :func:`topic_gap`.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> topic_mean(x, torch.arange(4), torch.tensor([0, 0, 1, 1]), product="dot").item()
        2.5
    """
    if product not in {"cosine", "dot"}:
        raise ValueError(f"expected product cosine or dot, got {product!r}")
    return _means(x, ids, topics, product)[_place_of(pairs)]


@nan_if_undefined
def attention_topic_gap(weights: Tensor, ids: Tensor, topics: Tensor) -> Tensor:
    """Compute the mean attention weight between positions of one topic, minus that between
    different topics.

    For each head ``mean(a_ij : w_i != w_j, t_i = t_j) - mean(a_ij : w_i != w_j, t_i != t_j)``, i
    attending to j, over all pairs that i sees, each alike. Neither a position and itself nor two
    positions of the same word are in it: a head that looks for itself, or for a word's earlier
    occurrence, would pass for one that looks for its topic. What i does not see (later positions of
    a causal model, those out of a window) is in neither mean: a pair that no head gives any weight.
    Weights are 1 / n on average, so gaps of sequences of different length n do not compare.

    Args:
        weights: of one sequence, shape (heads, n, n), from each position to each, any floating
            dtype, any device.
        ids: word (token id) at each position, shape (n,), integers.
        topics: topic at each position, shape (n,), integers; positions of a negative topic are left
            out.

    Returns:
        (heads,) float64 on the device of ``weights``, in [-1, 1]; NaN when undefined.

    Invariant to the order of the positions and to names of words and topics. Undefined when no
    position has a topic, when there are no pairs of one of the two kinds, or for NaN and inf.

    Source: Li, Li, Risteski, How Do Transformers Learn Topic Structure, ICML 2023, section 6.

    Example:
        >>> weights = torch.tensor([[[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]])
        >>> attention_topic_gap(weights, ids=torch.arange(3), topics=torch.tensor([0, 0,
        ...     1])).tolist()
        [0.25]
    """
    same, different = _attention_means(weights, ids, topics)
    return same - different


@nan_if_undefined
def attention_topic_mean(
    weights: Tensor, ids: Tensor, topics: Tensor, *, pairs: str = "same"
) -> Tensor:
    """Compute one of the two means of :func:`attention_topic_gap`.

    Args:
        weights, ids, topics: as for :func:`attention_topic_gap`.
        pairs: "same", of positions that share a topic, or "different".

    Returns:
        (heads,) float64 on the device of ``weights``, in [0, 1]; NaN when undefined.

    Invariant, undefined, source: as :func:`attention_topic_gap`.

    Example:
        >>> weights = torch.tensor([[[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]])
        >>> attention_topic_mean(weights, torch.arange(3), torch.tensor([0, 0, 1]),
        ...     pairs="different").tolist()
        [0.5]
    """
    return _attention_means(weights, ids, topics)[_place_of(pairs)]


def _place_of(pairs: str) -> int:
    if pairs not in {"same", "different"}:
        raise ValueError(f"expected pairs same or different, got {pairs!r}")
    return int(pairs == "different")


def _attention_means(weights: Tensor, ids: Tensor, topics: Tensor) -> tuple[Tensor, Tensor]:
    """Return each head's mean weight between positions of one topic, and between those of different
    topics.
    """
    require_attention(weights)
    ids, topics = as_labels(weights[0], ids=ids, topics=topics)
    is_pair = (topics >= 0)[:, None] & (topics >= 0) & (ids[:, None] != ids) & (weights != 0).any(0)
    same = is_pair & (topics[:, None] == topics)
    other = is_pair & (topics[:, None] != topics)
    n_same = int(same.sum())
    n_other = int(other.sum())
    _require_pairs(int((topics >= 0).sum()), n_same, n_other, "positions")
    kinds = torch.stack([same, other]).double().flatten(1)
    # sums over the pairs of a kind are products with zeros and ones, some heads at a time
    heads = weights.flatten(1).split(max(1, CHUNK // kinds.shape[1]))
    of_same, of_other = torch.cat([some.double() @ kinds.mT for some in heads]).unbind(1)
    return of_same / n_same, of_other / n_other


class _Groups(NamedTuple):
    """Vectors in groups of one topic and one word, and their pairs of different words."""

    order: Tensor
    """(n,) sorts the vectors group after group, those of a topic next to each other."""
    sizes: Tensor
    """(n_groups,) number of vectors in each."""
    n_of_topic: Tensor
    """(n_topics,) number of groups of each topic, in their order."""
    by_word: Tensor
    """(n_groups,) sorts the groups word after word."""
    n_of_word: Tensor
    """(n_words,) number of groups of each word, in that order."""
    n_same: int
    """Number of ordered pairs of vectors of one topic."""
    n_different: int
    """Number of those of different topics."""


def _groups_of(ids: Tensor, topics: Tensor) -> _Groups:
    """Return the groups of vectors with these words and topics, (n,) each."""
    words, of_word = ids.unique(return_inverse=True)
    of_topic = topics.unique(return_inverse=True)[1]
    groups, of_group, sizes = (of_topic * len(words) + of_word).unique(
        return_inverse=True, return_counts=True
    )
    word_of_group = groups % len(words)
    # of one topic, less those of one word too; of different words, less the former
    n_same = int(of_topic.bincount().square().sum() - sizes.square().sum())
    n_of_different_words = int(len(ids) ** 2 - of_word.bincount().square().sum())
    return _Groups(
        order=of_group.argsort(stable=True),
        sizes=sizes,
        n_of_topic=(groups // len(words)).bincount(),
        by_word=word_of_group.argsort(stable=True),
        n_of_word=word_of_group.bincount(),
        n_same=n_same,
        n_different=n_of_different_words - n_same,
    )


def _means(x: Tensor | Cloud, ids: Tensor, topics: Tensor, product: str) -> tuple[Tensor, Tensor]:
    """Return the mean product of vectors of one topic, and that of vectors of different topics.

    The inner products of all pairs within a group, here of one topic and one word, sum to the
    square of the group's sum; and squares add up over the coordinates, which are processed a few at
    a time.
    """
    x = as_cloud(x).x
    ids, topics = as_labels(x, ids=ids, topics=topics)
    has_topic = topics >= 0
    if not has_topic.all():
        x = x[has_topic]
        ids = ids[has_topic]
        topics = topics[has_topic]
    groups = _groups_of(ids, topics)
    _require_pairs(len(x), groups.n_same, groups.n_different, "vectors")
    factors, unit = _factors(x, product)
    factors = factors[groups.order, None]
    of_same, of_all = x.new_zeros(2, dtype=torch.float64)
    for columns in x.split(max(1, CHUNK // len(x)), dim=1):
        by_group = reduced(columns[groups.order].double() * factors, "sum", groups.sizes)
        by_topic = reduced(by_group, "sum", groups.n_of_topic)
        by_word = reduced(by_group[groups.by_word], "sum", groups.n_of_word)
        of_same += by_topic.square().sum() - by_group.square().sum()
        of_all += by_topic.sum(0).square().sum() - by_word.square().sum()
    # the unit twice, not its square, which need not be representable
    same = of_same / groups.n_same * unit * unit
    different = (of_all - of_same) / groups.n_different * unit * unit
    if not torch.stack([same, different]).isfinite().all():
        raise UndefinedError("inner products leave the range of float64; rescale the vectors")
    return same, different


def _factors(x: Tensor, product: str) -> tuple[Tensor, float]:
    """Return what each vector is multiplied with, (n,) float64, and the unit of the results: for
    cosines one over its norm, else one over a common unit in which no square leaves the range.
    """
    if product == "cosine":
        return 1 / positive_norms(x), 1.0
    unit = 1 / unit_scale(x)
    norms = norms_of(x)  # refuses NaN and inf
    return torch.full_like(norms, 1 / unit), unit


def _require_pairs(n: int, n_same: int, n_other: int, what: str) -> None:
    if n == 0:
        raise UndefinedError(f"none of the {what} has a topic")
    if n_same == 0:
        raise UndefinedError(
            f"no two of the {n} {what} with a topic have different words of one topic"
        )
    if n_other == 0:
        raise UndefinedError(
            f"no two of the {n} {what} with a topic have different words of different topics"
        )
