"""Whole sequences: entropy, cosines, largest activations, and attention sinks.

The vectors of a cloud are sampled; these kernels need all tokens of a sequence, in their order.
:class:`Sequences` holds several of different lengths, for which each kernel returns a mean; the
kernels of attention take the weights of one sequence, and return a value for each head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from repdyn.kernels.arguments import as_points
from repdyn.kernels.cloud import RESOLUTION, Cloud, row_chunks
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined


@dataclass(frozen=True)
class Sequences:
    """The states of all tokens of several whole sequences.

    Raises:
        ValueError: vectors that are not (n_vectors, dim) of a floating dtype, or lengths that do
            not add up to them.
    """

    x: Tensor
    """(n_vectors, dim) one sequence after another, float16, bfloat16, float32 or float64, any
    device.
    """
    lengths: tuple[int, ...]
    """Number of tokens in each sequence, at least 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_points(self.x))
        n_vectors = Cloud(self.x).n_vectors
        if min(self.lengths, default=0) < 1 or sum(self.lengths) != n_vectors:
            raise ValueError(
                f"expected lengths of at least 1 that add up to {n_vectors} vectors, got "
                f"{self.lengths}; give the vectors of all sequences one after another"
            )

    @cached_property
    def padded(self) -> Tensor:
        """Return (n_sequences, longest, dim): float64, zeros after the end of each sequence;
        divided by the largest magnitude of each sequence, so that no square leaves the range of
        float64.
        """
        # where the tokens go is known to the host, which waits for a device that is given a mask
        rows = self._is_token.flatten().nonzero().flatten().to(self.x.device)
        padded = self.x.new_zeros((self._is_token.numel(), self.x.shape[1]), dtype=torch.float64)
        padded = padded.index_copy_(0, rows, self.x.detach().double())
        padded = padded.unflatten(0, self._is_token.shape)
        largest = padded.abs().amax((1, 2))
        largest_of_sequences = largest.tolist()
        if not all(map(math.isfinite, largest_of_sequences)):
            raise UndefinedError("the vectors contain NaN or inf", "not_finite")
        if not all(largest_of_sequences):
            raise UndefinedError(
                f"{largest_of_sequences.count(0)} of {len(largest_of_sequences)} sequences have "
                "vectors of zeros alone"
            )
        return padded / largest[:, None, None]

    @property
    def rounding(self) -> Tensor:
        """Return (n_sequences,) float64: the distance, in the unit of :attr:`padded`, up to which
        two vectors of a sequence differ by rounding alone, as :attr:`Cloud.rounding` has it.
        """
        return self._spread_and_rounding[1]

    @property
    def is_one_point(self) -> Tensor:
        """Return (n_sequences,) bool: whether the vectors of a sequence differ by rounding alone,
        so that a metric of their differences would be one of rounding.
        """
        spread, rounding = self._spread_and_rounding
        return spread <= rounding

    @cached_property
    def _is_token(self) -> Tensor:
        """Return (n_sequences, longest) bool, on the CPU: whether a sequence has a token at a place
        of :attr:`padded`.
        """
        return torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]

    @cached_property
    def _spread_and_rounding(self) -> tuple[Tensor, Tensor]:
        """Return the root mean square distance of each sequence's vectors from their mean, and the
        distance that is rounding alone: (n_sequences,) float64 each.

        All sequences are treated at once, since the host would wait for a device at each of them.
        """
        spreads = []
        lengths = []
        # a sequence is a row here: as many at a time as can be copied
        n_at_a_time = len(row_chunks(self.padded.flatten(1))[0])
        is_token = self._is_token.to(self.x.device)
        blocks = zip(self.padded.split(n_at_a_time), is_token.split(n_at_a_time), strict=True)
        for padded, is_token_of_block in blocks:
            is_padding = ~is_token_of_block[:, :, None]
            n_tokens = is_token_of_block.sum(1)[:, None]
            # what is constant is no rounding, however large
            is_constant = ((padded == padded[:, :1]) | is_padding).all(1)
            mean = padded.sum(1) / n_tokens
            centred = (padded - mean[:, None]).masked_fill_(is_padding, 0)
            for points, squares in ((centred, spreads), (padded, lengths)):
                squares_of_coordinates = points.square().sum(1) / n_tokens
                squares.append(squares_of_coordinates.masked_fill(is_constant, 0).sum(1))
        resolution = RESOLUTION[self.x.dtype]
        return torch.cat(spreads).sqrt(), resolution * torch.cat(lengths).sqrt()


@nan_if_undefined
def sequence_entropy(sequences: Sequences, *, normalised: bool = True) -> Tensor:
    """Compute the entropy of the eigenvalues of each sequence's Gram matrix, mean over sequences.

    With Z (length, dim) the vectors of a sequence, ``-sum(p_i log p_i)`` over the eigenvalues p_i
    of ``Z Z^T / trace(Z Z^T)``, the squared singular values of Z as shares of their sum. The
    vectors are neither centred nor scaled, so that one vector that is much longer than all others
    takes the entropy to 0.

    Args:
        normalised: whether to divide by the largest possible entropy, ``log(min(length, dim))``.

    Returns:
        0-d float64 tensor on the device of the states, a pure number in [0, 1], or nats in
        [0, log(min(length, dim))]; NaN when undefined. Absolute error below 1e-12.

    Invariant to rotation about the origin, uniform scaling of a sequence, order of its tokens and,
    unless it is normalised with dim < length, columns of zeros; not to translation.
    Undefined for a sequence of one token, for NaN and inf, for a sequence of zeros alone, and, if
    normalised, for vectors of one coordinate.

    Source: prompt entropy of Skean et al., Layer by Layer: Uncovering Hidden Representations in
    Language Models, ICML 2025 (arXiv 2502.02013), with alpha = 1, as measured by Queipo-de-Llano et
    al., Attention Sinks and Compression Valleys in LLMs Are Two Sides of the Same Coin (arXiv
    2510.06477). The code of the former centres the tokens of a sequence and scales each to length 1
    first, so that long vectors count as much as short ones.

    Example:
        >>> states = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 1.0], [2.0, 2.0]])
        >>> sequence_entropy(Sequences(states[:2], (2,))).item()
        1.0
        >>> round(sequence_entropy(Sequences(states, (2, 2))).item(), 12)
        0.5
    """
    _require_pairs(sequences)
    largest = [min(length, sequences.x.shape[1]) for length in sequences.lengths]
    if normalised and min(largest) == 1:
        raise UndefinedError("vectors of one coordinate have an entropy of 0, at most and at least")
    z = sequences.padded
    # both products have the same eigenvalues, but for zeros, which add no entropy: nor does padding
    values = torch.linalg.eigvalsh(z @ z.mT if z.shape[1] <= z.shape[2] else z.mT @ z).clamp_min(0)
    entropies = torch.special.entr(values / values.sum(1, keepdim=True)).sum(1)
    return (
        (entropies / z.new_tensor(largest).log()).clamp_max(1) if normalised else entropies
    ).mean()


@nan_if_undefined
def prompt_entropy(sequences: Sequences, *, order: int = 2) -> Tensor:
    """Compute the entropy of each sequence's Gram matrix in the convention of Layer by Layer, mean
    over sequences.

    The vectors of a sequence are centred and scaled to length 1: Z (length, dim). K is ``Z Z^T``
    or, of a sequence that is longer than the vectors, ``Z^T Z``, with negative entries set to 0. Of
    the positive eigenvalues p of K, as shares of their sum, it is ``-sum(p log p)`` for order 1,
    ``-log(sum(p**2))`` for order 2, divided by ``log(min(length, dim))``. Another quantity than
    :func:`sequence_entropy`: long vectors count as short ones.

    Args:
        order: of the Renyi entropy: 2 as published for WikiText, 1 as published for MTEB.

    Returns:
        0-d float64 tensor on the device of the states, a pure number in [0, 1]; NaN when undefined.

    Invariant to translation, uniform scaling of a sequence and the order of its tokens; to rotation
    where no sequence is longer than the vectors: of a longer one the products of coordinates are
    set to 0, not those of tokens, and values of both kinds do not compare. Undefined for a sequence
    of one token, for vectors of one coordinate, for NaN and inf, where the vectors of a sequence
    differ by rounding alone, and where one equals their mean up to it.

    Source: Skean et al., Layer by Layer: Uncovering Hidden Representations in Language Models, ICML
    2025 (arXiv 2502.02013), as its code has it.

    Example:
        >>> states = torch.tensor([[1.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]])
        >>> states = torch.cat([states, 2 * states.roll(1, dims=1)])
        >>> round(prompt_entropy(Sequences(states, (4,)), order=2).item(), 6)
        1.0
    """
    _require_pairs(sequences)
    if order not in (1, 2):
        raise ValueError(f"expected order 1 or 2, got {order}")
    if sequences.x.shape[1] == 1:
        raise UndefinedError(
            "vectors of one coordinate have one direction, so that log(min(length, dim)) is 0"
        )
    entropies = []
    directions = _directions(sequences)
    products = []
    for z in directions:
        # of which of the two decides where negative entries are set to 0
        of_pairs = z @ z.mT if len(z) <= z.shape[1] else z.mT @ z
        products.append(of_pairs.clamp_min(0))
    for eigenvalues, z in zip(_eigenvalues(products), directions, strict=True):
        values = eigenvalues.clamp_min(0)
        shares = values / values.sum()
        entropy = torch.special.entr(shares).sum() if order == 1 else -shares.square().sum().log()
        entropies.append(entropy.clamp_min(0) / math.log(min(z.shape)))
    return torch.stack(entropies).mean()


def _directions(sequences: Sequences) -> list[Tensor]:
    """Return the vectors of each sequence, centred and scaled to length 1: (length, dim) each;
    raise UndefinedError where a vector has no direction.
    """
    directions = []
    n_without_direction = []
    of_sequences = zip(
        sequences.padded, sequences.lengths, sequences.rounding.unbind(), strict=True
    )
    for vectors, length, rounding in of_sequences:
        z = vectors[:length] - vectors[:length].mean(0)
        norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        n_without_direction.append((norms <= rounding).sum())
        directions.append(z / norms)
    # the host waits for a device here, and not at each sequence
    totals = [sequences.is_one_point.sum(), torch.stack(n_without_direction).sum()]
    n_equal, n_without = torch.stack(totals).tolist()
    if n_equal:
        raise UndefinedError(
            f"in {n_equal} of {len(sequences.lengths)} sequences the vectors differ by less than "
            "rounding",
            "rounding",
        )
    if n_without:
        raise UndefinedError("a vector equals the mean of its sequence, and so has no direction")
    return directions


def _eigenvalues(matrices: list[Tensor]) -> Sequence[Tensor]:
    """Return the eigenvalues of symmetric positive semidefinite matrices of several sizes; on an
    accelerator with zeros beside them, up to the size of the largest.

    Filled up with zeros, all take one call there, for which the host waits once.
    """
    if matrices[0].device.type == "cpu":
        return [torch.linalg.eigvalsh(matrix) for matrix in matrices]
    size = max(map(len, matrices))
    filled = [pad(matrix, [0, size - len(matrix)] * 2) for matrix in matrices]
    return torch.linalg.eigvalsh(torch.stack(filled)).unbind()


@nan_if_undefined
def curvature(sequences: Sequences) -> Tensor:
    """Compute how much less a sequence of states turns than one of independent vectors does, mean
    over sequences.

    The mean angle between successive steps, ``arccos(cos(z_(k+1) - z_k, z_(k+2) - z_(k+1)))``, less
    ``2 pi / 3``: the steps between independent vectors have a cosine of -1/2. A step between two
    vectors that are equal up to rounding has no direction; the angles at it are left out.

    Returns:
        0-d float64 tensor on the device of the states, radians in [-2 pi / 3, pi / 3]: 0 for
        independent vectors, below for a smoother path; NaN when undefined.

    Invariant to translation, rotation and uniform scaling of a sequence; not to the order of its
    tokens. Undefined where a sequence has no two successive steps, and for NaN and inf.

    Source: Henaff, Goris, Simoncelli, Perceptual straightening of natural videos, Nature
    Neuroscience 22, 2019; for language models Hosseini, Fedorenko, NeurIPS 36, 2023, and Skean et
    al., arXiv 2502.02013. The deviation is ours.

    Example:
        >>> line = torch.arange(5.0)[:, None] * torch.tensor([[3.0, 4.0]])
        >>> round(curvature(Sequences(line, (5,))).item(), 6) == round(-2 * math.pi / 3, 6)
        True
    """
    means = []
    of_sequences = zip(
        sequences.padded, sequences.lengths, sequences.rounding.unbind(), strict=True
    )
    for z, length, rounding in of_sequences:
        steps = z[:length].diff(dim=0)
        sizes = torch.linalg.vector_norm(steps, dim=1)
        # NaN, which nanmean leaves out, for both angles at a step without a direction
        sizes = sizes.masked_fill(sizes <= rounding, torch.nan)
        cosines = torch.linalg.vecdot(steps[1:], steps[:-1]) / (sizes[1:] * sizes[:-1])
        means.append(cosines.clamp(-1, 1).arccos().nanmean())
    mean = torch.stack(means).mean()
    if mean.isnan():
        raise UndefinedError(
            "a sequence has no two successive steps: at least 3 tokens that differ are needed"
        )
    return mean - 2 * math.pi / 3


@nan_if_undefined
def sequence_cosine(sequences: Sequences) -> Tensor:
    """Compute the mean cosine between the vectors of two different tokens of a sequence, mean over
    sequences.

    With u_i the vectors of a sequence divided by their lengths, ``(|sum(u_i)|**2 - n) / (n * (n -
    1))``.

    Returns:
        0-d float64 tensor on the device of the states, a cosine in [-1 / (n - 1), 1] with n tokens
        in a sequence; NaN when undefined. Absolute error below 1e-13.

    Invariant to rotation about the origin, positive scaling of each vector, order of the tokens in
    a sequence and columns of zeros; not to translation.
    Undefined for a sequence of one token, and for NaN, inf or a vector of zeros.

    Source: Liu et al., Dispersion Loss Counteracts Embedding Condensation and Improves
    Generalization in Small Language Models, 2026 (arXiv 2602.00217), who average over all n**2
    pairs, each vector with itself among them: their value is ``c + (1 - c) / n`` where this one is
    c.

    Example:
        >>> states = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        >>> sequence_cosine(Sequences(states, (2, 3))).item()
        0.6666666666666666
    """
    _require_pairs(sequences)
    z = sequences.padded
    largest = z.abs().amax(2, keepdim=True)
    n_zero = int((largest == 0).sum()) - (largest.numel() - len(sequences.x))
    if n_zero:
        raise UndefinedError(
            f"{n_zero} of {len(sequences.x)} vectors are zero and have no direction"
        )
    # zeros after the end of a sequence stay zeros; vectors whose largest coordinate is 1 have a
    # length of at least 1
    z = z / largest.where(largest > 0, 1)
    total = (z / torch.linalg.vector_norm(z, dim=2, keepdim=True).clamp_min(1)).sum(1)
    n = z.new_tensor(sequences.lengths)
    return ((total.square().sum(1) - n) / (n * (n - 1))).clamp_max(1).mean()


@nan_if_undefined
def largest_activation(sequences: Sequences) -> Tensor:
    """Compute the largest magnitude of a coordinate in each sequence, mean over sequences.

    ``max |z_ij|`` over the vectors and coordinates of a sequence, without centring.

    Returns:
        0-d float64 tensor on the device of the states, in their unit, >= 0; NaN when undefined.

    Invariant to order of the tokens in a sequence and of their coordinates, signs, and columns of
    zeros; proportional to a scaling of the vectors; not invariant to rotation or translation.
    Undefined for NaN and inf.

    Source: Sun, Chen, Kolter, Liu, Massive Activations in Large Language Models, COLM 2024, who
    show the largest magnitudes of each layer, mean over sequences. Gallego-Feliciano et al., Hidden
    Dynamics of Massive Activations in Transformer Training (arXiv 2508.03616), follow them over
    training.

    Example:
        >>> states = torch.tensor([[1.0, -8.0], [2.0, 0.0], [0.5, 4.0]])
        >>> largest_activation(Sequences(states, (2, 1))).item()
        6.0
    """
    parts = sequences.x.detach().split(sequences.lengths)
    largest = torch.stack([part.abs().amax() for part in parts]).double()
    if not largest.isfinite().all():
        raise UndefinedError("the vectors contain NaN or inf", "not_finite")
    # divided first: the sum of numbers at the end of the range is infinite
    return largest.div(len(parts)).sum()


def _require_pairs(sequences: Sequences) -> None:
    """Raise UndefinedError if a sequence has one token only."""
    if n_short := sequences.lengths.count(1):
        raise UndefinedError(
            f"{n_short} of {len(sequences.lengths)} sequences have one token, at least 2 needed"
        )


@nan_if_undefined
def sink_rate(weights: Tensor, *, threshold: float = 0.3) -> Tensor:
    """Compute whether each head's mean attention to the first token exceeds a threshold: 1 where it
    does, 0 elsewhere.

    ``1[mean(a_i0 : i >= 1) > threshold]``, i attending to position 0. The first position itself,
    which in a causal model sees nothing else, is left out. The mean over heads, layers and
    sequences is the sink rate of the model.

    Args:
        weights: of one sequence, (heads, n, n) from each position to each, rows of sum 1; any
            floating dtype, device.
        threshold: of the mean weight, in (0, 1).

    Returns:
        (heads,) float64 on the device of ``weights``, 0 or 1; NaN when undefined.

    Invariant to the order of the positions after the first. Undefined for fewer than 2 positions,
    and for NaN and inf.

    Source: Gu, Pang, Du, Liu, Zhang, Du, Wang, Lin, When Attention Sink Emerges in Language Models:
    An Empirical View, ICLR 2025 (arXiv 2410.10781), section 3, with the threshold 0.3.

    Example:
        >>> weights = torch.tensor([[[1.0, 0.0], [0.9, 0.1]], [[1.0, 0.0], [0.2, 0.8]]])
        >>> sink_rate(weights).tolist()
        [1.0, 0.0]
    """
    require_attention(weights)
    if not 0 < threshold < 1:
        raise ValueError(f"expected a threshold in (0, 1), got {threshold}; the source takes 0.3")
    if weights.shape[1] < 2:
        raise UndefinedError(f"a sequence of {weights.shape[1]} positions, at least 2 needed")
    return (weights[:, 1:, 0].double().mean(1) > threshold).double()


@nan_if_undefined
def attention_evenness(weights: Tensor) -> Tensor:
    """Compute how evenly each head spreads its attention: its entropy as a share of the largest
    possible.

    ``mean_i(-sum_j(a_ij log a_ij) / log n_i)``, rows divided by their sums; n_i is the number of
    positions that i sees: those to which any head gives weight. Positions that see one alone, as
    the first of a causal model, are left out.

    Args: ``weights`` as for :func:`sink_rate`.

    Returns:
        (heads,) float64 on the device of ``weights``, from 0, all on one position, to 1, even; NaN
        when undefined.

    Invariant to the order of the positions. Undefined when no position sees two, and for NaN and
    inf.

    Source: entropy of attention, as in Ghader, Monz, What does Attention in Neural Machine
    Translation Pay Attention to?, IJCNLP 2017, here relative to even attention, which Li, Li,
    Risteski, ICML 2023, assume while embeddings form.

    Example:
        >>> weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]]])
        >>> attention_evenness(weights).tolist()
        [1.0, 0.0]
    """
    require_attention(weights)
    # a mask takes a position from all heads, the underflow of a softmax from some
    seen = (weights != 0).any(0).sum(1)
    chosen = weights[:, seen > 1].double()
    if not chosen.shape[1]:
        raise UndefinedError(f"none of the {weights.shape[1]} positions sees two")
    entropies = torch.special.entr(chosen / chosen.sum(2, keepdim=True)).sum(2)
    # a position that sees itself alone has no choice, and log(1) = 0 to divide by
    sees_several = seen > 1
    return (entropies / seen[sees_several].double().log()).mean(1).clamp(0, 1)


def require_attention(weights: Tensor) -> None:
    """Raise ValueError unless these are the attention weights of one sequence, and Undefined for
    NaN and inf.
    """
    if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or not weights.is_floating_point():
        raise ValueError(
            f"expected attention weights of shape (heads, n, n), got {tuple(weights.shape)} of "
            f"{weights.dtype}; give one sequence at a time"
        )
    if not weights.isfinite().all():
        raise UndefinedError("the attention weights contain NaN or inf", "not_finite")
