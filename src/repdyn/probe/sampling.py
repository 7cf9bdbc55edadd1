"""The sampling of a probe: which tokens are in which batch.

Everything here is a function of lengths of windows and a seed, and gives the same sample on every
machine and with every version of the packages below.
"""

from __future__ import annotations

import numpy as np

WHOLE_WINDOWS = 16
"""How many windows of each batch are measured as a whole."""
WHOLE_WINDOW_TOKENS = 256
"""Number of tokens to which such windows are cut."""


def permutation(n: int, seed: int) -> np.ndarray:
    """Return the numbers from 0 to n in a random order, the same in all versions of numpy."""
    # the stream of RandomState is frozen by numpy's policy; Generator's and torch's may change
    # between releases
    return np.random.RandomState(seed).permutation(n)


def assign_windows(lengths: np.ndarray, n_batches: int, seed: int) -> np.ndarray:
    """Return the batch of each window, (n_windows,), such that the batches have about equally many
    tokens.

    Windows are assigned from the longest to the shortest, those of equal length in random order,
    each to the batch with the fewest tokens so far.
    """
    shuffled = permutation(len(lengths), seed)
    totals = [0 for _ in range(n_batches)]
    batch_of_window = np.empty(len(lengths), dtype=np.int64)
    for window in shuffled[np.argsort(-lengths[shuffled], kind="stable")]:
        smallest = totals.index(min(totals))
        batch_of_window[window] = smallest
        totals[smallest] += int(lengths[window])
    return batch_of_window


def interleaved(
    members: np.ndarray, windows: np.ndarray, batch_of_window: np.ndarray
) -> list[np.ndarray]:
    """Order the tokens of each batch so that its first n have about equally many of each window,
    for any n.

    They are first one of each window, then a second of each, and so on; otherwise in the random
    order of ``members``, whose windows are ``windows``.
    """
    by_window = np.argsort(windows, kind="stable")
    counts = np.bincount(windows, minlength=len(batch_of_window))
    starts = np.cumsum(counts) - counts
    # how many tokens of the same window stand before each token
    n_before = np.empty(len(members), dtype=np.int64)
    n_before[by_window] = np.arange(len(members)) - starts[windows[by_window]]
    order = np.argsort(n_before, kind="stable")
    batch_of_member = batch_of_window[windows[order]]
    n_batches = int(batch_of_window.max()) + 1
    return [members[order[np.flatnonzero(batch_of_member == batch)]] for batch in range(n_batches)]


def whole_windows(lengths: np.ndarray, n_batches: int) -> list[list[np.ndarray]]:
    """Return the token indices of whole windows; see :attr:`repdyn.Probe.whole_windows`."""
    starts = np.cumsum(lengths) - lengths
    long_enough = np.flatnonzero(lengths > 1)
    n_chosen = n_batches * min(WHOLE_WINDOWS, len(long_enough) // n_batches)
    if n_chosen == 0:
        return []
    chosen = long_enough[np.arange(n_chosen) * len(long_enough) // n_chosen]
    sizes = np.minimum(lengths, WHOLE_WINDOW_TOKENS)
    windows = [starts[window] + np.arange(int(sizes[window])) for window in chosen]
    return [windows[batch::n_batches] for batch in range(n_batches)]
