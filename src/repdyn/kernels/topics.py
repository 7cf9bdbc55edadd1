"""Topic structure: whether words of one topic are more similar, and attend more to each other, than other words.

Each gap is a mean over pairs of one topic minus a mean over pairs of different topics. Pairs of the same word, and
therefore of a position with itself, are excluded: their similarity does not come from the topic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, row_chunks, unit_scale
from repdyn.kernels.sink_rate import require_attention
from repdyn.kernels.undefined import Undefined, nan_if_undefined

# elements converted to float64 at a time
_CHUNK = 1 << 20


@nan_if_undefined
def topic_gap(x: Tensor | Cloud, ids: Tensor, topics: Tensor) -> Tensor:
    """Compute the mean cosine of vectors whose words share a topic, minus that of vectors whose words have different
    topics.

    ``mean(cos(x_i, x_j) : w_i != w_j, t_i = t_j) - mean(cos(x_i, x_j) : w_i != w_j, t_i != t_j)`` over all such pairs,
    each alike. It comes from sums of unit vectors, at a cost linear in the number of vectors.

    Args:
        x: vectors, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them. They are not centred.
        ids: word (token id) of each vector, shape (n_vectors,), integers.
        topics: topic of each vector, shape (n_vectors,), integers; vectors of a negative topic are left out.

    Returns:
        0-d float64 tensor on the device of ``x``, in [-2, 2]; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to rotation, to positive factors of each vector, to order and to names of words and topics. Undefined
    when no vector has a topic, when there are no pairs of one of the two kinds, when a vector is zero, or for NaN and
    inf.

    Source: Li, Li, Risteski, How Do Transformers Learn Topic Structure, ICML 2023, section 6; theirs is of the word
    embeddings, each word once.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> topic_gap(x, ids=torch.arange(4), topics=torch.tensor([0, 0, 1, 1])).item()
        1.0
    """
    cloud = as_cloud(x)
    with full_precision(cloud.x.device):
        x, pairs = _with_topics(cloud.x, ids, topics)
        norms = _norms(x)
        if n_zero := int((norms == 0).sum()):
            raise Undefined(f"{n_zero} of {len(x)} vectors are zero, and so have no cosine")
        return _gap(x, 1 / norms, pairs)


@nan_if_undefined
def topic_gap_dot(x: Tensor | Cloud, ids: Tensor, topics: Tensor) -> Tensor:
    """Compute :func:`topic_gap` of inner products instead of cosines, in the square of the vectors' unit.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> topic_gap_dot(x, ids=torch.arange(4), topics=torch.tensor([0, 0, 1, 1])).item()
        2.5
    """
    cloud = as_cloud(x)
    with full_precision(cloud.x.device):
        x, pairs = _with_topics(cloud.x, ids, topics)
        _norms(x)
        return _gap(x, x.new_full((len(x),), unit_scale(x), dtype=torch.float64), pairs, unit=1 / unit_scale(x))


@nan_if_undefined
def attention_topic_gap(weights: Tensor, ids: Tensor, topics: Tensor) -> Tensor:
    """Compute the mean attention weight between positions of one topic, minus that between positions of different
    topics.

    For each head ``mean(a_ij : w_i != w_j, t_i = t_j) - mean(a_ij : w_i != w_j, t_i != t_j)``, i attending to j, over
    all pairs that i sees, each alike. Neither a position and itself nor two positions of the same word are in it: a
    head that looks for itself, or for a word's earlier occurrence, would pass for one that looks for its topic. What i
    does not see (later positions of a causal model, those out of a window) is in neither mean: a pair that no head
    gives any weight. Weights are 1 / n on average, so gaps of sequences of different length n do not compare.

    Args:
        weights: of one sequence, shape (heads, n, n), from each position to each, any floating dtype, any device.
        ids: word (token id) at each position, shape (n,), integers.
        topics: topic at each position, shape (n,), integers; positions of a negative topic are left out.

    Returns:
        (heads,) float64 on the device of ``weights``, in [-1, 1]; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to the order of the positions and to names of words and topics. Undefined when no position has a topic,
    when there are no pairs of one of the two kinds, or for NaN and inf.

    Source: Li, Li, Risteski, How Do Transformers Learn Topic Structure, ICML 2023, section 6.

    Example:
        >>> weights = torch.tensor([[[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]])
        >>> attention_topic_gap(weights, ids=torch.arange(3), topics=torch.tensor([0, 0, 1])).tolist()
        [0.25]
    """
    require_attention(weights)
    ids, topics = _checked(weights.shape[1], ids, topics, weights.device)
    with full_precision(weights.device):
        if not weights.isfinite().all():
            raise Undefined("the attention weights contain NaN or inf")
        is_pair = (topics >= 0)[:, None] & (topics >= 0) & (ids[:, None] != ids) & (weights != 0).any(0)
        same = is_pair & (topics[:, None] == topics)
        other = is_pair & (topics[:, None] != topics)
        n_same, n_other = int(same.sum()), int(other.sum())
        _require_pairs(int((topics >= 0).sum()), n_same, n_other, "positions")
        kinds = torch.stack([same, other]).double().flatten(1)
        heads = weights.flatten(1).split(max(1, _CHUNK // kinds.shape[1]))
        of_same, of_other = torch.cat([some.double() @ kinds.mT for some in heads]).unbind(1)
    return of_same / n_same - of_other / n_other


class _Pairs(NamedTuple):
    """Vectors in groups of one topic and one word, and the groups by topic and by word."""

    order: Tensor
    """(n,) puts the vectors group after group, the groups of a topic next to each other."""
    group_sizes: Tensor
    groups_of_topic: Tensor
    """How many groups each topic has."""
    by_word: Tensor
    """(n_groups,) puts the groups of a word next to each other."""
    groups_of_word: Tensor
    n_same: int
    """Ordered pairs of different words and one topic."""
    n_other: int
    """Ordered pairs of different words and different topics."""


def _with_topics(x: Tensor, ids: Tensor, topics: Tensor) -> tuple[Tensor, _Pairs]:
    """Return the vectors that have a topic, and their pairs."""
    ids, topics = _checked(len(x), ids, topics, x.device)
    has_topic = topics >= 0
    x, ids, topics = (x, ids, topics) if has_topic.all() else (x[has_topic], ids[has_topic], topics[has_topic])
    words, of_word = ids.unique(return_inverse=True)
    of_topic = topics.unique(return_inverse=True)[1]
    groups, of_group, sizes = (of_topic * len(words) + of_word).unique(return_inverse=True, return_counts=True)
    word_of_group = groups % max(1, len(words))
    n_of_topic, n_of_word = of_topic.bincount(), of_word.bincount()
    n_same = int(n_of_topic.square().sum() - sizes.square().sum())
    n_other = int(len(x) ** 2 - n_of_word.square().sum()) - n_same
    _require_pairs(len(x), n_same, n_other, "vectors")
    return x, _Pairs(
        order=of_group.argsort(stable=True),
        group_sizes=sizes,
        groups_of_topic=(groups // len(words)).bincount(),
        by_word=word_of_group.argsort(stable=True),
        groups_of_word=word_of_group.bincount(),
        n_same=n_same,
        n_other=n_other,
    )


def _gap(x: Tensor, factors: Tensor, pairs: _Pairs, unit: float = 1.0) -> Tensor:
    """Return the gap of the inner products of ``x`` times ``factors`` times ``unit``.

    The inner products of all pairs within a group sum to the square of the group's sum; and squares add up over the
    coordinates, which are processed a few at a time. Sums by segments are deterministic, also on a GPU.
    """
    of_same, of_all = x.new_zeros(2, dtype=torch.float64)
    factors = factors[pairs.order, None]
    for columns in x.split(max(1, _CHUNK // len(x)), dim=1):
        by_group = _sums(columns[pairs.order].double() * factors, pairs.group_sizes)
        by_topic = _sums(by_group, pairs.groups_of_topic)
        by_word = _sums(by_group[pairs.by_word], pairs.groups_of_word)
        of_same += by_topic.square().sum() - by_group.square().sum()
        of_all += by_topic.sum(0).square().sum() - by_word.square().sum()
    gap = (of_same / pairs.n_same - (of_all - of_same) / pairs.n_other) * unit * unit
    if not gap.isfinite():
        raise Undefined("inner products leave the range of float64; rescale the vectors")
    return gap


def _sums(rows: Tensor, sizes: Tensor) -> Tensor:
    return torch.segment_reduce(rows.contiguous(), "sum", lengths=sizes, axis=0, unsafe=True)


def _norms(x: Tensor) -> Tensor:
    """Return the norms, (n,) float64."""
    scale = unit_scale(x) if bool(x.isfinite().all()) else 1.0
    norms = torch.cat([rows.double().mul(scale).square().sum(1).sqrt() for rows in row_chunks(x)]) / scale
    if not norms.isfinite().all():
        raise Undefined(f"the points contain {'NaN' if x.isnan().any() else 'inf'}")
    return norms


def _checked(n: int, ids: Tensor, topics: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    for name, labels in (("ids", ids), ("topics", topics)):
        if labels.shape != (n,) or labels.is_floating_point() or labels.is_complex():
            raise ValueError(
                f"expected {name} of shape ({n},) and integer type, got {tuple(labels.shape)} of {labels.dtype}; give "
                "one for each vector or position"
            )
    return ids.to(device), topics.to(device)


def _require_pairs(n: int, n_same: int, n_other: int, what: str) -> None:
    if n == 0:
        raise Undefined(f"none of the {what} has a topic")
    if n_same == 0:
        raise Undefined(f"no two of the {n} {what} with a topic have different words of one topic")
    if n_other == 0:
        raise Undefined(f"no two of the {n} {what} with a topic have different words of different topics")
