"""Draw clouds in which no input, or no token, occurs twice.

The nearest neighbour of a vector is often another occurrence of the same input: the same token, at
the same position, in another window. A dimension of such neighbours says how much one token's
vector varies with its context, not how many directions the layer uses. Two clouds leave repeats
out: *distinct inputs* have one vector of each token at a position, *types* one of each token.

Both are drawn among the tokens that the sample of all tokens reads anyway, so that the passes
through the model, and with them every other value, are the same with and without them.
"""

from collections.abc import Iterator

import numpy as np

from repdyn.probe.design import TYPES

MOST_VECTORS = 2048
"""Largest number of vectors in either cloud. 2,048 distinct inputs are within reach of a text of
bytes, so that models of all vocabularies are measured at one number; and a search among them takes
a quarter of that among the 4,096 of all tokens, which is measured beside it."""
FEWEST_VECTORS = 512
"""Least number of vectors in either cloud: below, estimates vary too much with the draw of the
occurrences. Where a cloud of all tokens is small itself, half as many as it has are enough."""


def input_numbers(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return a number for each token at a position, (n_tokens,) int64; equal inputs share it."""
    return tokens * (int(positions.max(initial=0)) + 1) + positions


def draw(
    candidates: np.ndarray,
    windows: np.ndarray,
    labels: np.ndarray,
    n_vectors: int,
    per_window: int,
) -> np.ndarray:
    """Return candidates of which no two have one label, in the order in which they are given.

    Args:
        candidates: (n,) indices of tokens, in random order.
        windows: (n,) the window of each.
        labels: (n,) what may occur once.
        n_vectors: largest number of tokens to return.
        per_window: largest number of tokens of one window: they share their context.
    """
    return candidates[list(_drawn(windows, labels, n_vectors, per_window))]


def _drawn(
    windows: np.ndarray, labels: np.ndarray, n_vectors: int, per_window: int
) -> Iterator[int]:
    # one by one, since each choice decides about the next: it is a loop over numbers alone
    seen: set[int] = set()
    n_of_window: dict[int, int] = {}
    pairs = zip(windows.tolist(), labels.tolist(), strict=True)
    for index, (window, label) in enumerate(pairs):
        if len(seen) == n_vectors:
            return
        n_taken = n_of_window.get(window, 0)
        if label not in seen and n_taken < per_window:
            seen.add(label)
            n_of_window[window] = n_taken + 1
            yield index


def evenly(drawn: np.ndarray, n_vectors: int, seed: int) -> np.ndarray:
    """Return at most so many of the drawn tokens, each of them as likely as any other, in the order
    in which they were drawn.

    The first of them would be those of the most frequent tokens, whose vectors have another
    dimension than those of all.
    """
    # the stream of RandomState is frozen by numpy's policy; Generator's may change between releases
    chosen = np.random.RandomState(seed).permutation(len(drawn))[:n_vectors]
    return drawn[np.sort(chosen)]


def too_few(subset: str, n_vectors: int, batch_vectors: int) -> str | None:
    """Return why a cloud of distinct inputs or types is too small to be measured, or None.

    Args:
        subset: one of the two.
        n_vectors: number of its vectors.
        batch_vectors: number of vectors of a cloud of all tokens.

    >>> too_few("types", n_vectors=81, batch_vectors=4096)
    'the text has 81 distinct tokens, at least 512 needed'
    >>> too_few("types", n_vectors=81, batch_vectors=100)
    """
    least = min(FEWEST_VECTORS, batch_vectors // 2)
    if n_vectors >= least:
        return None
    what = "distinct tokens" if subset == TYPES else "distinct tokens at a position"
    return f"the text has {n_vectors} {what}, at least {least} needed"
