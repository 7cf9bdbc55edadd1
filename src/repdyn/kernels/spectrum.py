"""The spectrum of a cloud's covariance, and what is read off it.

:func:`spectrum_of` computes the eigenvalues once for a cloud. The kernels describe how they are
spread: over how many directions (:func:`participation_ratio`, :func:`effective_rank`,
:func:`components`), how evenly (:func:`isoscore`), and how they decay (:func:`alpha_req`).
"""

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, as_cloud, row_chunks
from repdyn.kernels.kernel import UndefinedError, in_full_precision, nan_if_undefined


@in_full_precision
def spectrum_of(cloud: Cloud, *, centred: bool = True) -> Tensor:
    """Compute the squared singular values of the points, centred or not, up to a common factor:
    (min(n_vectors, dim),) float64, descending, none negative, off by 1e-13 of the largest or so.
    Use as ``cloud.once(spectrum_of)``."""
    cloud.require_defined()
    return torch.linalg.eigvalsh(gram_matrix(cloud, centred=centred)).flip(0).clamp_min(0)


@nan_if_undefined
def participation_ratio(x: Tensor | Cloud) -> Tensor:
    """Compute the number of directions that the variance is spread over: ``sum(l_i)**2 /
    sum(l_i**2)``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, in [1, min(n_vectors - 1, dim)]; NaN when
        undefined.

    Invariant to translation, rotation, uniform scaling, order of the points and columns of zeros;
    repeated points count as often as they occur. Undefined when the points contain NaN or inf, or
    fewer than 3 of them differ.

    Source: Gao et al., A theory of multineuronal dimensionality, dynamics and measurement, bioRxiv
    214262, 2017.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> participation_ratio(square).item()
        2.0
    """
    cloud = as_cloud(x)
    values = cloud.once(spectrum_of)
    return values.sum().square() / values.square().sum()


# share of the terms of a difference that has to be left of them: rounding makes up some 1e-13
_LEFT = 1e-7


@nan_if_undefined
def unbiased_participation_ratio(x: Tensor | Cloud) -> Tensor:
    """Estimate the participation ratio of the distribution that the points are drawn from, free of
    the bias by which :func:`participation_ratio` falls short where there are few points for the
    directions.

    ``B / A``, with unbiased estimates of the squared trace of the covariance and of the trace of
    its square: with S the covariance (divisor n - 1), ``Q = sum(|x_i - mean|**4) / (n - 1)`` and
    ``f = (n - 1) / (n (n - 2) (n - 3))``, ``A = f ((n - 1) (n - 2) tr(S**2) + tr(S)**2 - n Q)`` and
    ``B = f (2 tr(S**2) + (n**2 - 3 n + 1) tr(S)**2 - n Q)``. It supposes independent points:
    vectors of one window of text are not, so that a design with few of them from each window is
    called for.

    Args: as for :func:`participation_ratio`.

    Returns:
        0-d float64 tensor on the device of ``x``, > 0, at times above dim; NaN when undefined.

    Invariant and undefined as :func:`participation_ratio`; undefined too for fewer than 4 points,
    and where A <= 0 up to rounding, as of orthogonal points of one length.

    Source: arXiv 2509.26560, ICLR 2026, the correction for samples; A and B are those of Himeno,
    Yamada, Estimations for some functions of covariance matrix in high dimension, Journal of
    Multivariate Analysis 130, 2014.

    Example:
        >>> cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
        >>> unbiased_participation_ratio(cross).item() > participation_ratio(cross).item()
        True
    """
    cloud = as_cloud(x)
    values, n = cloud.once(spectrum_of), cloud.n_vectors
    if n < 4:
        raise UndefinedError(f"{n} points, at least 4 needed")
    # tr(S)**2, tr(S**2) and n Q of the docstring; f and the unit of the eigenvalues cancel
    trace_squared = values.sum().square() / (n - 1) ** 2
    of_square = values.square().sum() / (n - 1) ** 2
    fourth = torch.stack(
        [cloud.frame.transform(rows).square().sum(1).square().sum() for rows in row_chunks(cloud.x)]
    )
    correction = n / (n - 1) * fourth.sum()
    purity = (n - 1) * (n - 2) * of_square + trace_squared - correction
    if purity <= _LEFT * correction:
        raise UndefinedError(
            f"of {n} points the estimated sum of squared eigenvalues is not positive; take more"
        )
    return (2 * of_square + (n * n - 3 * n + 1) * trace_squared - correction) / purity


@nan_if_undefined
def effective_rank(x: Tensor | Cloud, *, centred: bool = True) -> Tensor:
    """Compute the exponential of the entropy of the normalised singular values.

    ``exp(-sum(p_i log p_i))`` with ``p_i = s_i / sum(s)``. RankMe is ``effective_rank(x,
    centred=False)``, up to the epsilon of 1e-7 that its authors add to each ``p_i``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        centred: whether the mean is subtracted first. Without that its direction is often the
            largest.

    Returns:
        0-d float64 tensor on the device of ``x``, in [1, min(n_vectors, dim)]; NaN when undefined.
        Directions without variance count as rounding leaves them, which adds a relative 1e-4 or so
        where there are many.

    Invariant and undefined as :func:`participation_ratio`; not centred, not invariant to
    translation.

    Source: Roy, Vetterli, The effective rank, EUSIPCO 2007; not centred, as RankMe, Garrido,
    Balestriero, Najman, LeCun, ICML 2023.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(effective_rank(square).item(), 9)
        2.0
    """
    return _exponential_of_entropy(_spectrum(x, centred).sqrt())


@nan_if_undefined
def effective_rank_of_variance(x: Tensor | Cloud, *, centred: bool = True) -> Tensor:
    """Compute the exponential of the entropy of the eigenvalues' shares of the variance.

    ``exp(-sum(p_i log p_i))`` with ``p_i = l_i / sum(l)``: :func:`effective_rank` with eigenvalues
    for singular values, and so never above it.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        centred: whether the mean is subtracted first; if not, the eigenvalues are those of the
            second moments, of which the mean's direction is often the largest.

    Returns:
        0-d float64 tensor on the device of ``x``, in [1, min(n_vectors, dim)]; NaN when undefined.
        Without the epsilon of 1e-7 that the source has in its shares, which adds a relative 2e-6
        per direction at most.

    Invariant and undefined as :func:`participation_ratio`; not centred, not invariant to
    translation.

    Source: arXiv 2509.23024. It calls this RankMe, which in Garrido et al., ICML 2023, is the
    quantity of singular values: :func:`effective_rank`.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(effective_rank_of_variance(square).item(), 9)
        2.0
    """
    return _exponential_of_entropy(_spectrum(x, centred))


def _spectrum(x: Tensor | Cloud, centred: bool) -> Tensor:
    cloud = as_cloud(x)
    # the centred one is shared with other metrics
    return cloud.once(spectrum_of) if centred else spectrum_of(cloud, centred=False)


def _exponential_of_entropy(weights: Tensor) -> Tensor:
    # entr(p) is -p log(p), and 0 for p = 0
    return torch.special.entr(weights / weights.sum()).sum().exp()


def gram_matrix(cloud: Cloud, *, centred: bool = True) -> Tensor:
    """Return the products of the rows or the columns, whichever are fewer, in float64, times a
    power of two.
    """
    x, (n, dim) = cloud.x, cloud.x.shape
    frame = cloud.frame if centred else Frame(cloud.scale, torch.zeros_like(cloud.frame.mean))
    # X.T @ X and X @ X.T have the same eigenvalues, but for zeros
    gram = torch.zeros(min(n, dim), min(n, dim), dtype=torch.float64, device=x.device)
    if n >= dim:
        for rows in row_chunks(x):
            wide = frame.transform(rows)
            gram.addmm_(wide.mT, wide)
    else:
        for columns, mean in zip(
            row_chunks(x.mT), frame.mean.split(len(row_chunks(x.mT)[0])), strict=True
        ):
            wide = columns.double().mul(frame.scale).sub_(mean[:, None])
            gram.addmm_(wide.mT, wide)
    return gram


# eigenvalues that a slope is fitted to, at least
_LEAST = 10
# Share of the largest eigenvalue down to which one is variance. Rounding makes up some 1e-14 of it,
# whether the points are float32 or float64, and moves what is kept by less than a thousandth.
_NO_VARIANCE = 1e-12


@nan_if_undefined
def alpha_req(x: Tensor | Cloud, *, first: int = 11, last: int = 100) -> Tensor:
    """Compute the exponent of the power law ``l_i ~ i**-alpha`` by which a covariance's eigenvalues
    decay.

    Minus the slope of the least-squares line of ``log(l_i)`` on ``log(i)`` over the ranks i from
    ``first`` to ``last``, each weighted by ``1 / i`` because ranks crowd along a logarithmic axis.
    The largest eigenvalues, which seldom follow the law of the rest, are left out by ``first``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        first: rank of the first of at least 10 eigenvalues of the fit, the largest being 1.
        last: rank of the last one. Where fewer than that stand above rounding (1e-12 of the
            largest), the fit ends with them: compare clouds of at least ``last`` directions, or of
            one width.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number >= 0; NaN when undefined.

    Invariant and undefined as :func:`participation_ratio`; undefined too when fewer than 10
    eigenvalues from ``first`` on stand above rounding.

    Source: Agrawal, Mondal, Ghosh, Richards, alpha-ReQ: Assessing Representation Quality in
    Self-Supervised Learning by measuring eigenspectrum decay, NeurIPS 35, 2022. Ranks and weights
    are the defaults of its authors' package, reptrix 0.1.0; the code of its experiments, fastssl,
    took ranks 4 to 100. The fit is that of Stringer et al., Nature 571:361, 2019.

    Example:
        >>> spokes = torch.arange(1.0, 65.0).rsqrt().diag()
        >>> round(alpha_req(torch.cat([spokes, -spokes])).item(), 6)
        1.0
    """
    cloud = as_cloud(x)
    if not (isinstance(first, int) and isinstance(last, int) and 1 <= first <= last + 1 - _LEAST):
        raise ValueError(
            f"expected ranks first >= 1 and last >= first + {_LEAST - 1}, got first = {first} and "
            f"last = {last}; a slope is fitted to {_LEAST} eigenvalues or more"
        )
    values = cloud.once(spectrum_of)
    n_above = int((values > _NO_VARIANCE * values[0]).sum())
    if n_above < first + _LEAST - 1:
        raise UndefinedError(
            f"{n_above} eigenvalues stand above rounding, at least {first + _LEAST - 1} needed"
        )
    return -_slope(values[first - 1 : min(last, n_above)].log(), first)


def _slope(heights: Tensor, first: int) -> Tensor:
    """Return the slope of the weighted least-squares line through the heights over the logarithms
    of their ranks.
    """
    ranks = torch.arange(first, first + len(heights), dtype=heights.dtype, device=heights.device)
    # 1 / i, made to sum to 1
    weights = 1 / (ranks * (1 / ranks).sum())
    # distances from the weighted mean of the logarithms
    steps = ranks.log() - weights @ ranks.log()
    return (weights * steps) @ (heights - weights @ heights) / (weights @ steps.square())


# tolerance on the share: sums of equal eigenvalues are rounded
_ROUNDING = 1e-10


@nan_if_undefined
def components(x: Tensor | Cloud, *, share: float = 0.5) -> Tensor:
    """Compute the smallest number of principal directions that together hold a share of the
    variance of a cloud.

    The smallest m with ``l_1 + ... + l_m >= share * sum(l_i)``, over the eigenvalues of the
    covariance in descending order. A whole number: its mean over batches need not be one.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        share: of the variance, in (0, 1).

    Returns:
        0-d float64 tensor on the device of ``x``, in [1, min(n_vectors - 1, dim)] directions; NaN
        when undefined.

    Invariant and undefined as :func:`participation_ratio`.

    Source: Jolliffe, Principal Component Analysis, 2nd edition, 2002, section 6.1.1.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> components(square, share=0.5).item(), components(square, share=0.9).item()
        (1.0, 2.0)
    """
    cloud = as_cloud(x)
    if not 0 < share < 1:
        raise ValueError(
            f"expected a share 0 < share < 1, got {share}; 90% of the variance is share=0.9"
        )
    cumulative = cloud.once(spectrum_of).cumsum(0)
    # all together are always enough
    n_short = (cumulative[:-1] < (share - _ROUNDING) * cumulative[-1]).sum()
    return (n_short + 1).to(torch.float64)


@nan_if_undefined
def isoscore(x: Tensor | Cloud) -> Tensor:
    """Compute the evenness of the variance over all directions of the space: 0 on a line, 1 where
    it is even.

    ``((dim - |u - 1|**2 / 2)**2 - dim) / (dim**2 - dim)``, where u are the dim eigenvalues of the
    covariance (zeros included) divided by their root mean square. That equals ``(p - 1) / (dim -
    1)``, p being the participation ratio, since ``|u - 1|**2 = 2 * dim - 2 * sqrt(dim * p)``; so it
    is computed. It orders clouds of one width as p does.

    Args: as for :func:`participation_ratio`.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1], and no larger than
        (n_vectors - 2) / (dim - 1); NaN when undefined.

    Invariant and undefined as :func:`participation_ratio`, but that columns of zeros lower it, for
    they are directions that are not used, and that it is undefined when dim is 1.

    Source: Rudman, Gillman, Rayne, Eickhoff, IsoScore: Measuring the Uniformity of Embedding Space
    Utilization, Findings of ACL 2022, algorithm 1.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> isoscore(square).item()
        1.0
        >>> isoscore(torch.nn.functional.pad(square, (0, 1))).item()
        0.5
    """
    cloud = as_cloud(x)
    ratio = participation_ratio.or_raise(cloud)
    dim = cloud.x.shape[1]
    if dim == 1:
        raise UndefinedError("the points have 1 dimension, at least 2 needed to compare directions")
    return (ratio - 1) / (dim - 1)
