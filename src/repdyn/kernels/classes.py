"""Vectors with labels: variance within classes, and words in several contexts.

- Classes, such as windows of text or words: :func:`class_variance`, :func:`lidar`, :func:`dime`.
- Words in several contexts: :func:`self_similarity`.
"""

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, as_labels, row_chunks, unit_scale
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined

# classes whose means are compared with all others at once
_ROWS = 512
# distance between means, in lengths of the longest one, below which rounding decides
_TOO_CLOSE = 1e-9


@nan_if_undefined
def class_variance(x: Tensor | Cloud, classes: Tensor, *, min_vectors: int = 2) -> Tensor:
    """Compute the class-distance normalised variance, averaged over all pairs of classes.

    ``mean_(i<j)((s_i**2 + s_j**2) / (2 * |m_i - m_j|**2))``, where m_i is the mean of the vectors
    of class i, and s_i**2 their mean squared distance from it.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        classes: integers, shape (n_vectors,), the class of each point; negative for none.
        min_vectors: smallest number of vectors of a class that is used, >= 2.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number >= 0: 0 where the vectors of each
        class are equal; about (v - 1) / 2 for classes of v vectors each that were assigned at
        random. NaN when undefined.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and
    names of the classes. Undefined when the points contain NaN or inf, when fewer than 3 of them
    differ, when fewer than 2 classes have ``min_vectors``, or when two have the same mean up to
    rounding (1e-9 of the longest one's length, centred).

    Source: Wu, Papyan, Linguistic Collapse: Neural Collapse in (Large) Language Models, arXiv
    2405.17767, 2024; the quantity is that of Galanti, György, Hutter, On the Role of Neural
    Collapse in Transfer Learning, ICLR 2022.

    Example:
        >>> points = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0], [9.0, 9.0]])
        >>> round(class_variance(points, torch.tensor([7, 7, 3, 3, -1])).item(), 9)
        0.0625
    """
    if not isinstance(min_vectors, int) or min_vectors < 2:
        raise ValueError(
            f"expected min_vectors >= 2, got {min_vectors}; a single vector has no variance"
        )
    cloud = as_cloud(x)
    points, sizes = _classes_of(cloud, classes, min_vectors)
    means = reduced(points, "mean", sizes)
    _require_different(means - means.mean(0), sizes, cloud)
    variances = reduced(
        (points - means.repeat_interleave(sizes, dim=0)).square().sum(1), "mean", sizes
    )
    return _mean_over_pairs(means, variances)


@nan_if_undefined
def lidar(x: Tensor | Cloud, classes: Tensor, *, delta: float = 1e-4) -> Tensor:
    """Compute the number of directions that tell classes, such as windows of text, apart from the
    spread within them.

    ``exp(-sum(p_i log p_i))`` with ``p_i = l_i / sum(l)`` and l the eigenvalues of ``W**-1/2 B
    W**-1/2``: B is the covariance of the means of the classes, W that of the vectors about these
    means, plus ``delta`` of its mean variance in every direction.

    Args:
        x, classes: as for :func:`class_variance`.
        delta: >= 0; the source adds 1e-4 itself, which depends on the scale of the points.

    Returns:
        0-d float64 tensor on the device of ``x``, in directions, in [1, min(n_classes - 1, dim)];
        NaN when undefined.

    Invariant to translation, rotation, uniform scaling and order of the points and, where ``delta``
    is small, to any invertible linear map. Undefined when the points contain NaN or inf, when fewer
    than 3 of them differ, when fewer than 2 classes have 2 vectors, when these have too few vectors
    for W (beside one of each, at least dim), or when all means are equal up to
    rounding.

    Source: Thilak et al., LiDAR: Sensing Linear Probing Performance in Joint Embedding SSL
    Architectures, ICLR 2024 (arXiv 2312.04000).

    Example:
        >>> points = torch.tensor([[0.0, 1.0], [0.2, 1.1], [4.0, 1.0], [4.1, 0.8], [9.0, 9.0],
        ...     [9.1, 9.3]])
        >>> round(lidar(points, torch.tensor([7, 7, 3, 3, 1, 1])).item(), 2)
        1.33
    """
    if delta < 0:
        raise ValueError(f"expected delta >= 0, got {delta}")
    cloud = as_cloud(x)
    points, sizes = _classes_of(cloud, classes)
    dim = points.shape[1]
    n_beside = len(points) - len(sizes)
    if n_beside < dim:
        raise UndefinedError(
            f"{n_beside} vectors beside one of each of {len(sizes)} classes, at least {dim} needed"
        )
    means = reduced(points, "mean", sizes)
    points -= means.repeat_interleave(sizes, dim=0)
    means -= means.mean(0)
    within = points.mT @ points / len(points)
    within.diagonal().add_(delta * within.diagonal().mean())
    root, info = torch.linalg.cholesky_ex(within)
    if int(info):
        raise UndefinedError("no spread within the classes")
    _require_different(means, sizes, cloud)
    # with W = L L.T, L**-1 B L**-T has the eigenvalues of W**-1/2 B W**-1/2; the number of classes,
    # by which B would be divided, cancels in their shares
    whitened = torch.linalg.solve_triangular(root, means.mT, upper=False)
    values = torch.linalg.eigvalsh(whitened @ whitened.mT).clamp_min(0)
    return torch.special.entr(values / values.sum()).sum().exp()


@nan_if_undefined
def dime(x: Tensor | Cloud, classes: Tensor, *, pairs: int = 512, permutations: int = 10) -> Tensor:
    """Compute how much less entropy two views of the same classes, such as windows of text, have
    together than in random pairs: a mutual information of matrices.

    ``mean_P(H(K * P K' P^T)) - H(K * K')``: the views are the means of every other vector of each
    class, K and K' their Gram matrices after centring and scaling to length 1, ``*`` multiplies
    elements, P permutes the classes, and H is ``-sum(p log p)`` of a matrix's eigenvalues as shares
    of their sum. The permutations are drawn from a fixed seed.

    Args:
        x, classes: as for :func:`class_variance`.
        pairs: largest number of classes, >= 2, the first by their number; time grows with its cube,
            and values of different numbers do not compare.
        permutations: >= 1; the more, the less the value depends on them.

    Returns:
        0-d float64 tensor on the device of ``x``, in nats, at most log(pairs), near 0 and of either
        sign for unrelated views; NaN when undefined. It is no mutual information of the vectors
        themselves: equal views have little of it where all vectors lie in a few directions, or
        where they are orthogonal; and in a small trained decoder (512 windows of 80 tokens, 64
        coordinates) it is within 0.01 of 0 in every layer.

    Invariant to translation, rotation and uniform scaling. Undefined when the points contain NaN or
    inf, when fewer than 3 of them differ, when fewer than 2 classes have 2 vectors, or when a class
    equals the mean of all in a view.

    Source: Skean et al., DiME: Maximizing Mutual Information by a Difference of Matrix-Based
    Entropies, arXiv 2301.08164; with these matrices in the code of Layer by Layer, arXiv
    2502.02013, whose views are augmented prompts.

    Example:
        >>> points = torch.tensor([[3.0, 0.0], [2.0, 1.0], [0.0, 3.0], [-1.0, 2.0], [-3.0, -1.0],
        ...     [-2.0, -4.0]])
        >>> dime(points, torch.tensor([7, 7, 3, 3, 1, 1])).item() > 0
        True
    """
    if pairs < 2 or permutations < 1:
        raise ValueError(
            f"expected pairs >= 2 and permutations >= 1, got {pairs} and {permutations}"
        )
    cloud = as_cloud(x)
    points, sizes = _classes_of(cloud, classes)
    points = points[: int(sizes[:pairs].sum())]
    sizes = sizes[:pairs]
    # the number of each vector within its class: even ones are in the first view
    of_class = torch.arange(len(points), device=points.device) - (
        sizes.cumsum(0) - sizes
    ).repeat_interleave(sizes)
    grams = []
    for turn, n_of_view in ((0, (sizes + 1) // 2), (1, sizes // 2)):
        is_in_view = of_class % 2 == turn
        view = reduced(points[is_in_view], "mean", n_of_view)
        view -= view.mean(0)
        lengths = torch.linalg.vector_norm(view, dim=1, keepdim=True)
        _require_different(view, n_of_view, cloud)
        if not bool((lengths > _TOO_CLOSE * lengths.max()).all()):
            raise UndefinedError(
                "a class equals the mean of all in a view, and so has no direction"
            )
        view /= lengths
        grams.append(view @ view.mT)
    generator = torch.Generator().manual_seed(0)
    shuffles = [
        torch.randperm(len(sizes), generator=generator).to(sizes.device)
        for _ in range(permutations)
    ]
    together = torch.stack(
        [grams[0] * other for other in (grams[1], *(grams[1][p][:, p] for p in shuffles))]
    )
    # the diagonals are 1, so that the trace is the number of classes
    shares = torch.linalg.eigvalsh(together / len(sizes)).clamp_min(0)
    entropies = torch.special.entr(shares).sum(1)
    return entropies[1:].mean() - entropies[0]


def _classes_of(cloud: Cloud, classes: Tensor, min_vectors: int = 2) -> tuple[Tensor, Tensor]:
    """Return the points of the classes of :func:`_by_class`, centred, in float64, and the numbers
    of their points; raise UndefinedError for fewer than 2 classes."""
    [classes] = as_labels(cloud.x, classes=classes)
    cloud.require_defined()
    order, sizes = _by_class(classes, min_vectors)
    if len(sizes) < 2:
        raise UndefinedError(
            f"{len(sizes)} classes have at least {min_vectors} vectors, at least 2 classes needed"
        )
    # about the mean of the whole cloud, where cancellation is least; a copy, which callers change
    return cloud.frame.transform(cloud.x[order]), sizes


def _require_different(centred_means: Tensor, sizes: Tensor, cloud: Cloud) -> None:
    """Raise UndefinedError where the means of all classes are equal up to rounding: what is
    computed from their differences would describe it.
    """
    largest = torch.linalg.vector_norm(centred_means, dim=1).max()
    # the mean of k vectors is off by the square root of k less than these
    if not bool(largest > cloud.rounding / sizes.double().mean().sqrt()):
        raise UndefinedError("the means of all classes are equal up to rounding")


def _by_class(classes: Tensor, min_vectors: int) -> tuple[Tensor, Tensor]:
    """Return the rows of the classes that are large enough, class after class, and the numbers of
    their rows.
    """
    names, of_row, sizes = classes.unique(return_inverse=True, return_counts=True)
    is_used = (names >= 0) & (sizes >= min_vectors)
    by_class = of_row.argsort(stable=True)
    return by_class[is_used[of_row[by_class]]], sizes[is_used]


def reduced(rows: Tensor, how: str, sizes: Tensor) -> Tensor:
    # by segments: adding up by index is not deterministic on a GPU
    return torch.segment_reduce(rows.contiguous(), how, lengths=sizes, axis=0, unsafe=True)


def _mean_over_pairs(means: Tensor, variances: Tensor) -> Tensor:
    n = len(means)
    total = variances.new_zeros(())
    n_equal = 0
    too_close = _TOO_CLOSE * torch.linalg.vector_norm(means, dim=1).max()
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        # from differences of coordinates: products would cancel
        distances = torch.cdist(means[rows], means, compute_mode="donot_use_mm_for_euclid_dist")
        # a class and itself is no pair: its term becomes 0
        distances[:, rows].fill_diagonal_(torch.inf)
        n_equal += (distances <= too_close).sum()
        total += ((variances[rows, None] + variances) / (2 * distances.square())).sum()
    if n_equal:
        raise UndefinedError(
            f"{int(n_equal) // 2} of {n * (n - 1) // 2} pairs of classes have the same mean up to "
            "rounding"
        )
    return total / (n * (n - 1))


# elements converted to float64 at a time
CHUNK = 1 << 20


@nan_if_undefined
def self_similarity(x: Tensor | Cloud, words: Tensor, *, min_contexts: int = 5) -> Tensor:
    """Compute how similar the vectors of one word are over its contexts, beyond the similarity of
    any two vectors.

    ``mean_w(mean_(i<j in w) cos(x_i, x_j)) - mean_(i<j) cos(x_i, x_j)``: each word counts alike,
    however frequent.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them. They
            are not centred.
        words: integers, shape (n_vectors,), the word (token id) of each point; negative for none.
        min_contexts: smallest number of vectors of a word that is used, >= 2.

    Returns:
        0-d float64 tensor on the device of ``x``, in [-2, 2]: near 0 for vectors that depend on the
        context alone, near 1 minus the mean cosine of all pairs for vectors that depend on the word
        alone; NaN when undefined.

    Invariant to rotation, to positive factors of each vector, to order and to names of words; not
    to translation. Undefined when the points contain NaN, inf or a vector of zeros, or when no word
    has ``min_contexts`` vectors.

    Source: Ethayarajh, How Contextual are Contextualized Word Representations?, EMNLP 2019,
    self-similarity adjusted for anisotropy, of words in at least 5 contexts.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> round(self_similarity(points, torch.tensor([7, 7, 3, 3]), min_contexts=2).item(), 9)
        0.666666667
    """
    cloud = as_cloud(x)
    x, n = cloud.x, cloud.n_vectors
    [words] = as_labels(x, words=words)
    if not isinstance(min_contexts, int) or min_contexts < 2:
        raise ValueError(
            f"expected min_contexts >= 2, got {min_contexts}; a single vector has no pair"
        )
    order, sizes = _by_class(words, min_contexts)
    if not len(sizes):
        raise UndefinedError(f"no word has {min_contexts} of the {n} vectors")
    norms = positive_norms(x)[:, None]
    of_all = x.new_zeros((), dtype=torch.float64)
    of_word = x.new_zeros(len(sizes), dtype=torch.float64)
    # the cosines of all ordered pairs of a group sum to the square of the sum of its unit vectors
    for columns in x.split(max(1, CHUNK // n), dim=1):
        units = columns.double() / norms
        of_all += units.sum(0).square().sum()
        of_word += reduced(units[order], "sum", sizes).square().sum(1)
    within = (of_word - sizes) / (sizes * (sizes - 1))
    return within.mean() - (of_all - n) / (n * (n - 1))


def positive_norms(x: Tensor) -> Tensor:
    norms = norms_of(x)
    if n_zero := int((norms == 0).sum()):
        raise UndefinedError(f"{n_zero} of {len(x)} vectors are zero, and so have no cosine")
    return norms


def norms_of(x: Tensor) -> Tensor:
    """Return the norms, (n,) float64."""
    scale = unit_scale(x)
    norms = (
        torch.cat([rows.double().mul(scale).square().sum(1).sqrt() for rows in row_chunks(x)])
        / scale
    )
    if not norms.isfinite().all():
        raise UndefinedError(
            f"the points contain {'NaN' if x.isnan().any() else 'inf'}", "not_finite"
        )
    return norms
