"""What a probe reads at most, however much it was given: 512 windows and 65,536 tokens.

The cost of a measurement follows the number of vectors, 4,096 by default, and not the amount of
text that was handed over. More vectors (``max_vectors``) or more windows (``n_windows``) raise the
bound, and nothing else does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from repdyn.probe.design import INDEPENDENT, MAX_VECTORS, TOKENS_PER_VECTOR, Design

VECTORS_PER_WINDOW = INDEPENDENT.vectors_per_window or 1
"""Number of vectors of each window, 8, where there are enough windows."""
MAX_WINDOWS = MAX_VECTORS // VECTORS_PER_WINDOW
"""Number of windows, 512, that are read by default."""
WINDOW_TOKENS = 128
"""Length to which longer rows are cut."""
MAX_TOKENS = MAX_WINDOWS * WINDOW_TOKENS
"""Number of tokens, 65,536, that are read at most by default."""


class Windows(NamedTuple):
    """Names the parts of rows that are windows of a probe."""

    starts: np.ndarray
    """(n_windows,) index of the first token of each, in the concatenated rows."""
    lengths: np.ndarray
    """(n_windows,) number of tokens of each."""
    cut_to: int | None = None
    """Largest number of tokens of a window where longer rows were cut; None where none was."""

    @property
    def tokens(self) -> np.ndarray:
        """Return (n_tokens,): index of each token of the windows, in the concatenated rows."""
        ends = np.cumsum(self.lengths)
        offsets = np.repeat(self.starts - (ends - self.lengths), self.lengths)
        return offsets + np.arange(int(ends[-1]) if len(ends) else 0)


def evenly(n: int, count: int) -> np.ndarray:
    """Return the indices of at most ``count`` of n things, from the first to the last.

    >>> evenly(10, 4), evenly(2, 4)
    (array([0, 3, 6, 9]), array([0, 1]))
    """
    return np.unique(np.linspace(0, n - 1, min(n, count)).round().astype(np.int64))


def most_windows(max_vectors: int, design: Design = INDEPENDENT) -> int:
    """Return how many windows of :data:`WINDOW_TOKENS` tokens a probe of so many vectors reads at
    most.

    >>> most_windows(64), most_windows(4096), most_windows(65536)
    (512, 512, 8192)
    """
    return max(MAX_WINDOWS, -(-max_vectors // (design.vectors_per_window or VECTORS_PER_WINDOW)))


def bounded_windows(
    lengths: np.ndarray,
    design: Design,
    *,
    max_vectors: int = MAX_VECTORS,
    n_windows: int | None = None,
    window_tokens: int | None = None,
    fills: bool = False,
    has_equal_lengths: bool = False,
) -> Windows:
    """Return the windows of rows that a probe reads, evenly spread over them.

    Args:
        lengths: (n_rows,) number of tokens of each row, at least 1.
        design: those that take a few vectors of each window have rows cut where the bound needs
            it; of the others, which take all of a window's tokens, whole rows are left out.
        max_vectors: number of vectors of the probe.
        n_windows: number of rows to read, whole, whatever the bound; None for the bound.
        window_tokens: length to which rows are cut in any case; None for
            :data:`WINDOW_TOKENS`, and where it is needed alone.
        fills: whether long rows are also cut where there are fewer of them than windows.
        has_equal_lengths: whether all windows are to have one length: ``window_tokens``, or the
            median of those that would be read else.

    Raises:
        ValueError: ``n_windows`` or ``window_tokens`` below 1; windows of one length that no row
            has.
    """
    windows = _bounded(lengths, design, max_vectors, n_windows, window_tokens, fills=fills)
    # rows of one length are cut into windows of one length, but perhaps not of that one
    is_as_asked = (
        window_tokens is None
        or window_tokens in windows.lengths
        or int(lengths.max()) < window_tokens
    )
    if not has_equal_lengths or (is_as_asked and len(np.unique(windows.lengths)) == 1):
        return windows
    pieces = _pieces(lengths, window_tokens or int(np.median(windows.lengths)))
    count = n_windows or max(len(windows.lengths), most_windows(max_vectors, design))
    return _chosen(pieces, evenly(len(pieces.lengths), count))


def _bounded(
    lengths: np.ndarray,
    design: Design,
    max_vectors: int,
    n_windows: int | None,
    window_tokens: int | None,
    *,
    fills: bool,
) -> Windows:
    """Return the windows of rows, whose lengths may differ, by :func:`bounded_windows`."""
    for name, value in (("n_windows", n_windows), ("sequence_length", window_tokens)):
        if value is not None and value < 1:
            raise ValueError(f"expected {name} >= 1, got {value}; leave it out for the default")
    rows = Windows(np.cumsum(lengths) - lengths, lengths)
    if window_tokens is not None:
        rows = _cut(rows, window_tokens)
    if n_windows is not None:
        return _chosen(rows, evenly(len(rows.lengths), n_windows))
    count = most_windows(max_vectors, design)
    length = window_tokens or WINDOW_TOKENS
    most_tokens = count * length
    if design.vectors_per_window is None:
        return _within(rows, most_tokens)
    windows = _chosen(rows, _long_enough(rows.lengths, count, max_vectors))
    is_too_long = int(windows.lengths.sum()) > most_tokens
    is_to_fill = fills and len(rows.lengths) < count and int(lengths.max()) > WINDOW_TOKENS
    if window_tokens is None and (is_too_long or is_to_fill):
        rows = _cut(rows, WINDOW_TOKENS)
        windows = _chosen(rows, _long_enough(rows.lengths, count, max_vectors))
    return windows


def _long_enough(lengths: np.ndarray, count: int, max_vectors: int) -> np.ndarray:
    """Return the indices of so many evenly spaced rows; more, where they have too few tokens for
    the vectors. Rows that have fewer vectors than are taken of each are left out if others
    suffice.
    """
    if len(lengths) <= count:
        return np.arange(len(lengths))
    candidates = np.flatnonzero(lengths > VECTORS_PER_WINDOW)
    if len(candidates) < count:
        candidates = np.arange(len(lengths))
    # without the first position of each, which no_sink leaves out
    mean_length = max(1e-9, float((lengths[candidates] - 1).mean()))
    least = int(np.ceil(TOKENS_PER_VECTOR * max_vectors / mean_length))
    return candidates[evenly(len(candidates), max(count, least))]


def _within(rows: Windows, most_tokens: int) -> Windows:
    """Return evenly spaced whole rows of at most so many tokens together, but one row at least."""
    count = len(rows.lengths)
    windows = rows
    # in proportion to what is too much: rows of other lengths may be chosen then, so try again
    while count > 1 and (total := int(windows.lengths.sum())) > most_tokens:
        count = max(1, min(count - 1, count * most_tokens // total))
        windows = _chosen(rows, evenly(len(rows.lengths), count))
    return windows


def _cut(rows: Windows, size: int) -> Windows:
    """Cut rows into windows of at most ``size`` tokens, those of one row equally long; what
    remains at a row's end is left out.

    Models without an attention mask take no windows of several lengths, which rows of one length
    would else become.
    """
    n_pieces = -(-rows.lengths // size)
    if int(n_pieces.max()) < 2:
        return rows
    # by piece: the row that it is of, and its number within that row
    row = np.repeat(np.arange(len(n_pieces)), n_pieces)
    number = np.arange(len(row)) - (np.cumsum(n_pieces) - n_pieces)[row]
    lengths = (rows.lengths // n_pieces)[row]
    return Windows(rows.starts[row] + number * lengths, lengths, size)


def _pieces(lengths: np.ndarray, size: int) -> Windows:
    """Return the windows of exactly ``size`` tokens that rows have from their beginning on; what
    remains, and rows that are shorter, are left out.
    """
    n_pieces = lengths // size
    if not n_pieces.any():
        raise ValueError(
            f"expected rows of at least {size} tokens for windows of one length, got at most "
            f"{int(lengths.max())}; pass a smaller sequence_length="
        )
    row = np.repeat(np.arange(len(n_pieces)), n_pieces)
    number = np.arange(len(row)) - (np.cumsum(n_pieces) - n_pieces)[row]
    starts = (np.cumsum(lengths) - lengths)[row] + number * size
    return Windows(starts, np.full(len(row), size), size)


def _chosen(rows: Windows, indices: np.ndarray) -> Windows:
    return Windows(rows.starts[indices], rows.lengths[indices], rows.cut_to)
