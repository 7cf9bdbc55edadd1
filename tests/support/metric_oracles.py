"""What each metric is, written out in float64 with numpy, too naive to be wrong.

An oracle takes the arrays of a case of ``metric_cases.py`` and the metric's settings, and returns
its value, or one for each attention head.
"""

import itertools
import math

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes, subspace_angles
from scipy.optimize import minimize_scalar
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.stats import rankdata

# ---- dimensions from nearest neighbours and trees


def distances(x):
    """Distances between all rows, infinite of a row and itself."""
    between = np.stack([np.linalg.norm(x - row, axis=1) for row in x])
    np.fill_diagonal(between, np.inf)
    return between


def nearest(x, k):
    return np.sort(distances(x), axis=1)[:, :k]


def slope(ratios, discard):
    """The slope of -log(1 - i / n) on the i-th smallest logarithm of the ratios."""
    n = len(ratios)
    # in whole per mille, because 5 * (1 - 0.8) is less than 1
    n_kept = n * (1000 - round(1000 * discard)) // 1000
    logs = np.sort(np.log(ratios))[:n_kept]
    y = -np.log(1 - np.arange(1, n_kept + 1) / n)
    return np.linalg.lstsq(logs[:, None], y, rcond=None)[0][0]


def two_nn(x, discard, duplicates="collapse", estimator="regression"):
    first, second = nearest(np.unique(x, axis=0), 2).T
    if estimator == "maximum_likelihood":
        return (len(first) - 1) / np.log(second / first).sum()
    return slope(second / first, discard)


def gride(x, k):
    """The likeliest dimension by the density of Denti et al. 2022, but for its constant."""
    radii = nearest(x, k)
    logs = np.log(radii[:, -1] / radii[:, k // 2 - 1])

    def unlikelihood(dimension):
        terms = np.log(dimension) - ((k - 1) * dimension + 1) * logs
        return -(terms + (k // 2 - 1) * np.log(np.expm1(dimension * logs))).sum()

    bounds = {"bounds": (0.05, 200), "method": "bounded", "options": {"xatol": 1e-9}}
    return minimize_scalar(unlikelihood, **bounds).x


def levina_bickel(x, k):
    radii = nearest(x, k)
    return 1 / np.log(radii[:, -1:] / radii[:, :-1]).mean()


def local_dimension(x, k, points):
    between = distances(x)
    n_chosen = min(points, len(x))
    slopes = []
    for number in range(n_chosen):
        near = np.argsort(between[number * len(x) // n_chosen], kind="stable")[:k]
        first, second = np.sort(between[np.ix_(near, near)], axis=1)[:, :2].T
        slopes.append(slope(second / first, 0.1))
    return np.mean(slopes)


def local_anisotropy(x, k, points):
    between = distances(x)
    n_chosen = min(points, len(x))
    chosen = (number * len(x) // n_chosen for number in range(n_chosen))
    return np.mean([anisotropy(x[np.argsort(between[at], kind="stable")[:k]]) for at in chosen])


def ph_dimension(x, points, alpha):
    x = x[: min(points, len(x)) // 8 * 8]
    sums = []
    for division in (1, 2, 4, 8):
        trees = [minimum_spanning_tree(nearest_matrix(x[at::division])) for at in range(division)]
        sums.append(np.mean([(tree.data**alpha).sum() for tree in trees]))
    sizes = [len(x) // division for division in (1, 2, 4, 8)]
    return alpha / (1 - np.polyfit(np.log(sizes), np.log(sums), 1)[0])


def nearest_matrix(x):
    between = distances(x)
    np.fill_diagonal(between, 0)
    return between


# ---- spectra


def eigenvalues(x, centred=True):
    return np.linalg.svd(x - x.mean(0) if centred else x, compute_uv=False) ** 2


def entropy(shares):
    shares = np.extract(shares > 0, shares)
    return -(shares * np.log(shares)).sum()


def entropy_rank(weights):
    return np.exp(entropy(weights / weights.sum()))


def anisotropy(x):
    values = eigenvalues(x)
    return values[0] / values.sum()


def participation_ratio(x):
    values = eigenvalues(x)
    return values.sum() ** 2 / (values**2).sum()


def unbiased_participation_ratio(x):
    """By the formulas of Himeno and Yamada, on matrices."""
    n = len(x)
    centred = x - x.mean(0)
    covariance = centred.T @ centred / (n - 1)
    square = (covariance**2).sum()
    trace = np.trace(covariance)
    q = ((centred**2).sum(1) ** 2).sum() / (n - 1)
    a = (n - 1) * (n - 2) * square + trace**2 - n * q
    return (2 * square + (n * n - 3 * n + 1) * trace**2 - n * q) / a


def effective_rank(x, centred):
    return entropy_rank(np.sqrt(eigenvalues(x, centred)))


def effective_rank_of_variance(x, centred):
    return entropy_rank(eigenvalues(x, centred))


def components(x, share):
    values = eigenvalues(x)
    return int((np.cumsum(values) < share * values.sum() * (1 - 1e-10)).sum()) + 1


def alpha_req(x, first=11, last=100):
    """NaN where too few directions have variance."""
    values = eigenvalues(x)
    values = np.extract(values > 1e-12 * values[0], values)
    if len(values) < first + 9:
        return np.nan
    ranks = np.arange(first, min(last, len(values)) + 1)
    # polyfit squares its weights
    return -np.polyfit(np.log(ranks), np.log(values[ranks - 1]), 1, w=ranks**-0.5)[0]


def isoscore(x):
    """By algorithm 1 of the paper, step by step; NaN in one dimension, where there is nothing to
    compare.
    """
    dim = x.shape[1]
    if dim == 1:
        return np.nan
    variances = np.linalg.eigvalsh(np.cov(x - x.mean(0), rowvar=False))
    normalised = np.sqrt(dim) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - np.ones(dim)) / np.sqrt(2 * (dim - np.sqrt(dim)))
    used = (dim - defect**2 * (dim - np.sqrt(dim))) ** 2 / dim**2
    return (dim * used - 1) / (dim - 1)


# ---- cosines, lengths and outliers


def units(x):
    """NaN for a row of zeros, which has no direction."""
    with np.errstate(invalid="ignore"):
        return x / np.linalg.norm(x, axis=1, keepdims=True)


def cosines(x, y):
    x, y = (points.astype(np.longdouble) for points in (x, y))
    with np.errstate(invalid="ignore"):
        return (x * y).sum(1) / np.sqrt((x**2).sum(1)) / np.sqrt((y**2).sum(1))


def mean_cosine(x):
    return np.extract(~np.eye(len(x), dtype=bool), units(x) @ units(x).T).mean()


def norm(x):
    return np.sqrt((x.astype(np.longdouble) ** 2).sum(1)).mean()


def step_length(x, following):
    return norm(following.astype(np.longdouble) - x)


def alignment(x, last):
    return cosines(x, last).mean()


def alignment_gradient(x, following, last):
    return alignment(following, last) - alignment(x, last)


def alignment_falls(x, following, last, more_than):
    return (cosines(x, last) - cosines(following, last) > more_than).mean()


def of_heads(n_heads, of_head):
    """Return a function that gives each head an equal part of the rows."""
    return lambda x: [of_head(rows) for rows in np.split(x, n_heads)]


def outlier_kurtosis(x):
    squares = (x**2).mean(0)
    return (squares**2).mean() / squares.mean() ** 2


def massive_activation_share(x, magnitude=100, ratio=1000):
    """Of two medians the lower one counts."""
    sizes = np.sort(np.abs(x).flatten())
    median = sizes[(len(sizes) - 1) // 2]
    is_massive = (sizes > magnitude) & (sizes >= ratio * median)
    return math.fsum(sizes[is_massive] ** 2) / math.fsum(sizes**2)


def top_norm_variance_share(x, share=0.01):
    """NaN where the first direction is not told from the second; points of equal length count in
    part.
    """
    centred = x / np.abs(x).max()
    left, values, _ = np.linalg.svd(centred - centred.mean(0), full_matrices=False)
    if len(values) > 1 and values[1] ** 2 >= values[0] ** 2 * (1 - 1e-6):
        return np.nan
    carried = left[:, 0] ** 2
    lengths = np.linalg.norm(x, axis=1)
    n_longest = -(-len(x) * round(1000 * share) // 1000)
    limit = np.sort(lengths)[-n_longest]
    is_longer = lengths > limit
    of_equal = (n_longest - is_longer.sum()) * np.extract(lengths == limit, carried).mean()
    return carried[is_longer].sum() + of_equal


# ---- two clouds


def linear_cka(x, y, debiased=True):
    """Song et al. 2012, equation 5, and Kornblith et al. 2019, equation 3, as they are printed."""

    def hsic(k, l):  # noqa: E741
        n = len(k)
        if not debiased:
            return (k * l).sum() / (n - 1) ** 2
        k = k - np.diag(np.diag(k))
        l = l - np.diag(np.diag(l))  # noqa: E741
        of_sums = k.sum() * l.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * k.sum(0) @ l.sum(0)
        return ((k * l).sum() + of_sums) / (n * (n - 3))

    x, y = (centred_and_scaled(points) for points in (x, y))
    k = x @ x.T
    l = y @ y.T  # noqa: E741
    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))


def centred_and_scaled(x):
    x = x - x.mean(0)
    return x / np.abs(x).max()


def procrustes_distance(x, y):
    """The distance itself, after the rotation that scipy finds."""
    x, y = (centred_and_scaled(points) for points in (x, y))
    width = max(x.shape[1], y.shape[1])
    x, y = (np.pad(of / np.linalg.norm(of), ((0, 0), (0, width - of.shape[1]))) for of in (x, y))
    return ((x - y @ orthogonal_procrustes(y, x)[0]) ** 2).sum()


def svcca(x, y, variance):
    """By the cosines of the principal angles between the two spaces of kept directions."""
    bases = []
    for points in (x, y):
        vectors, values, _ = np.linalg.svd(centred_and_scaled(points), full_matrices=False)
        shares = np.cumsum(values**2) / (values**2).sum()
        bases.append(vectors[:, : np.argmax(shares >= variance) + 1])
    return np.cos(subspace_angles(*bases)).mean()


def mutual_knn(x, y, k, calibrated):
    near = [distances(points).argsort(1)[:, :k] for points in (x, y)]
    overlap = np.mean([len({*own} & {*other}) / k for own, other in zip(*near, strict=True)])
    chance = k / (len(x) - 1)
    return (overlap - chance) / (1 - chance) if calibrated else overlap


def information_imbalance(x, y, reverse, points):
    """By ranks from sorting all distances."""
    first, second = (distances(each) for each in ((y, x) if reverse else (x, y)))
    ranks = second.argsort(1).argsort(1) + 1
    return 2 / len(x) ** 2 * ranks[np.arange(len(x)), first.argmin(1)].sum()


def linearity(x, y, of, adjusted):
    """By the singular vectors of the layer."""
    y = y - x if of == "step" else y
    x, y = (points - points.mean(0) for points in (x, y))
    vectors, values, _ = np.linalg.svd(x, full_matrices=False)
    vectors = np.compress(values > 1e-6 * values[0], vectors, axis=1)
    unexplained = (np.linalg.norm(y - vectors @ (vectors.T @ y)) / np.linalg.norm(y)) ** 2
    n = len(x)
    return 1 - (unexplained * (n - 1) / (n - 1 - vectors.shape[1]) if adjusted else unexplained)


# ---- vectors in classes


def members(classes, at_least):
    names = [name for name in np.unique(classes) if name >= 0]
    rows = [np.flatnonzero(classes == name) for name in names]
    return [of_class for of_class in rows if len(of_class) >= at_least]


def class_variance(x, classes, min_vectors=2):
    # the ratio does not depend on the scale, squares of 1e-300 do
    x = x / np.abs(x).max()
    means = []
    variances = []
    for rows in members(classes, min_vectors):
        means.append(x[rows].mean(0))
        variances.append(((x[rows] - means[-1]) ** 2).sum(1).mean())
    pairs = itertools.combinations(range(len(means)), 2)
    return np.mean(
        [(variances[a] + variances[b]) / (2 * ((means[a] - means[b]) ** 2).sum()) for a, b in pairs]
    )


def lidar(x, classes, delta):
    rows = members(classes, 2)
    means = np.stack([x[of_class].mean(0) for of_class in rows])
    within = np.concatenate([x[of_class] - x[of_class].mean(0) for of_class in rows])
    spread = within.T @ within / len(within)
    spread += delta * np.trace(spread) / len(spread) * np.eye(len(spread))
    between = (means - means.mean(0)).T @ (means - means.mean(0))
    return entropy_rank(np.linalg.eigvals(np.linalg.solve(spread, between)).real.clip(0))


def dime(x, classes, pairs, permutations):
    rows = members(classes, 2)[:pairs]
    n = len(rows)
    views = [np.stack([x[of_class[turn::2]].mean(0) for of_class in rows]) for turn in (0, 1)]
    first, second = (units(view - view.mean(0)) @ units(view - view.mean(0)).T for view in views)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator).numpy() for _ in range(permutations)]

    def together(order):
        return entropy(np.linalg.eigvalsh(first * second[np.ix_(order, order)] / n).clip(0))

    return np.mean([together(order) for order in orders]) - together(np.arange(n))


def self_similarity(x, words, min_contexts):
    return np.mean([mean_cosine(x[rows]) for rows in members(words, min_contexts)]) - mean_cosine(x)


def topic_means(x, ids, topics, product="cosine"):
    """Mean products of pairs of different words of one topic, and of different topics."""
    x = units(x) if product == "cosine" else x
    return _means_of_pairs(x @ x.T, ids, topics, itertools.combinations(range(len(x)), 2))


def _means_of_pairs(products, ids, topics, pairs):
    same = []
    different = []
    for i, j in pairs:
        if topics[i] >= 0 and topics[j] >= 0 and ids[i] != ids[j]:
            (same if topics[i] == topics[j] else different).append(products[i, j])
    return math.fsum(same) / len(same), math.fsum(different) / len(different)


def topic_gap(x, ids, topics, product="cosine"):
    same, different = topic_means(x, ids, topics, product)
    return same - different


def topic_mean(x, ids, topics, product, pairs):
    return dict(zip(("same", "different"), topic_means(x, ids, topics, product), strict=True))[
        pairs
    ]


def token_imbalance(x, ids):
    """By the ranks of distances of labels, of which equal ones share theirs."""
    near = distances(x).argmin(1)
    imbalances = []
    for row, nearest_row in enumerate(near):
        others = np.delete(np.arange(len(x)), row)
        ranks = rankdata(ids[others] != ids[row])
        imbalances.append(2 * np.extract(others == nearest_row, ranks).item() / len(x))
    return np.mean(imbalances)


# ---- tokens against the vocabulary, and through the output head


def token_cosine(x, ids, table):
    return cosines(x, table[ids]).mean()


def token_distance(x, ids, table):
    return norm(x - table[ids])


def _closer(x, ids, table, by_distance=False):
    """How many rows of the table are closer to each vector than its own."""
    closeness = units(x) @ units(table).T
    if by_distance:
        closeness = -np.linalg.norm(x[:, None] - table, axis=2)
    own = closeness[np.arange(len(x)), ids]
    return (closeness > own[:, None]).sum(1)


def token_rank(x, ids, table):
    return np.median(_closer(x, ids, table))


def token_rank_distance(x, ids, table):
    return np.median(_closer(x, ids, table, by_distance=True))


def token_top1_match(x, ids, table):
    return (_closer(x, ids, table) == 0).mean()


def predictions(x, head):
    logits = x @ head
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def lens_kl(x, last, head):
    here = predictions(x, head)
    final = predictions(last, head)
    return (np.exp(final) * (final - here)).sum(1).mean()


def lens_agreement(x, last, head):
    return (predictions(x, head).argmax(1) == predictions(last, head).argmax(1)).mean()


# ---- whole sequences and attention


def mean_over(lengths, of_sequence):
    """Return the mean of a function over the sequences that the rows are split into."""

    def of_rows(x, **settings):
        parts = np.split(x, np.cumsum(lengths)[:-1])
        return np.mean([of_sequence(part, **settings) for part in parts])

    return of_rows


def sequence_entropy(z, normalised):
    values = np.linalg.eigvalsh(z @ z.T)
    shares = values / np.trace(z @ z.T)
    found = entropy(np.extract(shares > 1e-18, shares))
    return found / np.log(min(z.shape)) if normalised else found


def prompt_entropy(z, order):
    """The convention of the published code: the smaller of both products, its negative entries 0,
    the positive eigenvalues as shares of their sum.
    """
    z = units(z - z.mean(0))
    values = np.linalg.eigvalsh(np.maximum(z.T @ z if len(z) > z.shape[1] else z @ z.T, 0))
    values = np.extract(values > 0, values)
    shares = values / values.sum()
    return (-np.log((shares**2).sum()) if order == 2 else entropy(shares)) / np.log(min(z.shape))


def curvature(z):
    steps = np.diff(z, axis=0)
    return np.arccos(cosines(steps[1:], steps[:-1])).mean() - 2 * np.pi / 3


def largest_activation(z):
    return np.abs(z).max()


def sink_rate(weights, threshold):
    return (weights[:, 1:, 0].mean(1) > threshold).astype(float)


def attention_evenness(weights):
    """Of the positions that see several."""
    seen = (weights != 0).any(0).sum(1)
    rows = [
        [entropy(row / row.sum()) / math.log(n) for row, n in zip(head, seen, strict=True) if n > 1]
        for head in weights
    ]
    return np.mean(rows, axis=1)


def attention_topic_means(weights, ids, topics):
    seen = (weights != 0).any(0)
    pairs = [pair for pair in itertools.permutations(range(len(ids)), 2) if seen[pair]]
    return np.array([_means_of_pairs(head, ids, topics, pairs) for head in weights]).T


def attention_topic_gap(weights, ids, topics):
    same, different = attention_topic_means(weights, ids, topics)
    return same - different


def attention_topic_mean(weights, ids, topics, pairs):
    means = attention_topic_means(weights, ids, topics)
    return dict(zip(("same", "different"), means, strict=True))[pairs]


# ---- weights


def weight_norm(x):
    return math.sqrt(math.fsum((x**2).flatten()))


def update_ratio(x, before):
    return weight_norm(x - before) / weight_norm(before)


def weight_stable_rank(*matrices):
    values = [np.linalg.svd(matrix, compute_uv=False) ** 2 for matrix in matrices]
    return np.mean([squares.sum() / squares[0] for squares in values])
