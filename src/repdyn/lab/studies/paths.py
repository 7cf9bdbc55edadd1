"""Paths of positions through a table, and of the tokens of two sentences through the layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations

import numpy as np
import pandas as pd
from torch import Tensor

from repdyn.activations import LoadedModel, layer_states
from repdyn.lab.studies.embedding_tables import cosine_matrix
from repdyn.lab.studies.token_measurements import encode_sentence

SINGLE = 10
"""Positions whose cosines with those after them are given one by one."""
FOLLOWING = 128
N_COMPONENTS = 6
"""Principal components among which a rotation is searched."""
MIN_TURNS = N_COMPONENTS
"""A slow drift bends through its first k principal components at most k / 2 times: fewer turns
would prove nothing.
"""

ORDERED = 0.5
"""Share of the steps that must follow the turn for a stretch of positions to count as turning."""
CLEAR = 0.6
"""Purity from which on a plane counts as rotating: the largest of 1,200 random walks of various
memory was 0.50.
"""

_FASTEST = 0.45  # turns per position: at one half, the direction is ambiguous
_PADDED = 256
_WINDOW_TURNS = 3
_MIN_WINDOW = 16
_N_OFFSETS = 8
_MIN_POSITIONS = 2 * (_MIN_WINDOW + _N_OFFSETS)
_NULL_DRAWS = 2000
_NULL_QUANTILE = 0.99


def by_offset(matrix: np.ndarray) -> pd.DataFrame:
    """Summarise cosines by the distance of two positions: columns offset, n, mean, std,
    q05, q95.
    """
    diagonals = [np.diagonal(matrix, offset) for offset in range(len(matrix))]
    records = [
        (len(x), np.nanmean(x), np.nanstd(x), *np.nanquantile(x, [0.05, 0.95])) for x in diagonals
    ]
    return (
        pd.DataFrame(records, columns=["n", "mean", "std", "q05", "q95"])
        .rename_axis("offset")
        .reset_index()
    )


def following_cosines(matrix: np.ndarray) -> pd.DataFrame:
    """Return the cosines of single positions, 1 to :data:`SINGLE`, with the :data:`FOLLOWING` after
    each: columns position, offset, cosine.

    Position 0 is left out: a token of the text's beginning always stands there.
    """
    tables = []
    for position in range(1, min(SINGLE, len(matrix) - 2) + 1):
        cosines = matrix[position, position + 1 : position + 1 + FOLLOWING]
        offsets = np.arange(1, len(cosines) + 1)
        tables.append(pd.DataFrame({"position": position, "offset": offsets, "cosine": cosines}))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def principal(rows: Tensor, k: int = N_COMPONENTS) -> tuple[np.ndarray, np.ndarray]:
    """Return the first ``k`` principal components, or all if there are fewer, of rows (n, dim), in
    float64.

    Returns:
        (n, k) coordinates, the component with most variance first, and (k,) the share of the
        variance along each.
    """
    x = rows.detach().cpu().double().numpy()
    left, values, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    squares = values**2
    return (left * values)[:, :k], squares[:k] / squares.sum()


@dataclass(frozen=True, eq=False)
class Rotation:
    """A pair of principal components in which the positions rotate."""

    components: tuple[int, int]
    """Numbers of the two, from 0."""
    period: float
    """Positions per turn, at the peak of the spectrum."""
    share: float
    """Share of the whole table's variance that rotates in this plane: net rotary power, in [0, 1].
    """
    purity: float
    """The same as a share of the variance in the plane alone: 1 for a circle, about 0 for noise."""
    windows: pd.DataFrame
    """Half-overlapping stretches of positions: start, stop, period, ordered (the share of steps
    that follow the rotation, 1 for a circle, about 0 for noise), radius."""

    @property
    def is_clear(self) -> bool:
        return self.purity >= CLEAR

    @property
    def ends(self) -> int:
        """Return the last position of the first run of rotating stretches; 0 if the first stretch
        does not rotate.
        """
        turning = (self.windows["ordered"] >= ORDERED).to_numpy()
        n_turning = len(turning) if turning.all() else int(turning.argmin())
        return int(self.windows["stop"].iloc[n_turning - 1]) if n_turning else 0


def find_rotation(scores: np.ndarray, shares: np.ndarray) -> Rotation | None:
    """Find the plane of two principal components, as of :func:`principal`, that rotates most; None
    for too few of them.

    With z = x_a + i x_b the plane's path as complex numbers and Z its windowed Fourier transform,
    the net rotation is ``|Z(f)|^2 - |Z(-f)|^2`` (rotary spectrum: Gonella, Deep-Sea Research 19,
    1972). The plane with the largest sum of it over f from ``MIN_TURNS / n`` to 0.45 is taken, and
    the period from its peak.
    """
    n, k = scores.shape
    if n < 8 * MIN_TURNS or k < 2:
        return None
    # without the zeros at its ends, so that the first and the last position count
    taper = np.hanning(n + 2)[1:-1]
    # padding makes the frequencies dense enough to read a period off the peak
    n_padded = 1 << math.ceil(math.log2(_PADDED * n))
    spectra = np.fft.fft((scores - scores.mean(0)) * taper[:, None], n_padded, axis=0)
    frequencies = np.arange(n_padded // 2 + 1) / n_padded
    searched = (frequencies >= MIN_TURNS / n) & (frequencies <= _FASTEST)
    planes = {}
    for a, b in combinations(range(k), 2):
        power = np.abs(spectra[:, a] + 1j * spectra[:, b]) ** 2
        # reversed and rolled, the power at f stands at -f
        planes[a, b] = (power - np.roll(power[::-1], 1))[: len(frequencies)], float(power.sum())
    (a, b), (net, whole) = max(planes.items(), key=lambda plane: abs(plane[1][0][searched].sum()))
    net_power = float(net[searched].sum())
    frequency = frequencies[np.argmax(np.where(searched, net * np.sign(net_power), -math.inf))]
    purity = abs(net_power) / whole
    path = scores[:, a] + 1j * scores[:, b]
    # mirrored where it turns clockwise, so that turning is positive
    windows = _windows(path if net_power > 0 else path.conj(), frequency)
    return Rotation(
        components=(a, b),
        period=float(1 / frequency),
        share=purity * float(shares[a] + shares[b]),
        purity=purity,
        windows=windows,
    )


def _windows(path: np.ndarray, frequency: float) -> pd.DataFrame:
    """Measure the rotation in stretches of three turns, at least 16 positions, each centred and
    compared with itself one position later (the pulse-pair estimate of a frequency)."""
    length = min(len(path), max(_MIN_WINDOW, round(_WINDOW_TURNS / frequency)))
    # the last stretch ends at the last position, whatever the overlap
    starts = [*range(0, len(path) - length, max(1, length // 2)), len(path) - length]
    records = []
    for start in dict.fromkeys(starts):
        stretch = path[start : start + length]
        stretch = stretch - stretch.mean()
        steps = (stretch[1:] * stretch[:-1].conj()).sum()
        weight = 0.5 * float((np.abs(stretch[1:]) ** 2 + np.abs(stretch[:-1]) ** 2).sum())
        angle = math.atan2(steps.imag, steps.real) % (2 * math.pi)
        ordered = (
            float((steps * np.exp(-2j * math.pi * frequency)).real) / weight if weight else 0.0
        )
        radius = float(np.sqrt(np.mean(np.abs(stretch) ** 2)))
        records.append(
            (start, start + length, 2 * math.pi / angle if angle else math.inf, ordered, radius)
        )
    return pd.DataFrame(records, columns=["start", "stop", "period", "ordered", "radius"])


def find_order_end(rows: Tensor) -> int | None:
    """Return the number of positions (n, dim) before the first stretch that looks like those in
    random order, 0 to n; None for too few positions.

    A stretch is 16 positions with those up to 8 further on; its order is the largest, over the
    offsets 1 to 8, of the mean cosine of the centred positions that far apart, in absolute value.
    It counts as ordered if that is above the 99% quantile for as many pairs of different positions
    drawn at random from the same table.
    """
    n = len(rows)
    if n < _MIN_POSITIONS:
        return None
    x = rows.detach().cpu().double()
    cosines = np.nan_to_num(cosine_matrix(x - x.mean(0)))
    random = np.random.RandomState(0)
    draws = (_NULL_DRAWS, _N_OFFSETS, _MIN_WINDOW)
    first = random.randint(n, size=draws)
    other = random.randint(n - 1, size=draws)
    # two different positions: one of the n - 1 others, those from the first on moved up by one
    by_chance = np.abs(cosines[first, other + (other >= first)].mean(2)).max(1)
    highest = np.zeros(n - _MIN_WINDOW - _N_OFFSETS + 1)
    for offset in range(1, _N_OFFSETS + 1):
        means = np.convolve(
            np.diagonal(cosines, offset), np.full(_MIN_WINDOW, 1 / _MIN_WINDOW), mode="valid"
        )
        highest = np.maximum(highest, np.abs(means[: len(highest)]))
    unordered = np.flatnonzero(highest <= np.quantile(by_chance, _NULL_QUANTILE))
    if not len(unordered):
        return n
    return int(unordered[0]) + (_MIN_WINDOW if unordered[0] else 0)


@dataclass(frozen=True, eq=False)
class TokenTrajectory:
    """The tokens of one sentence through the layers of one stack."""

    tokens: tuple[str, ...]
    states: np.ndarray
    """(n_layers + 1, n_tokens, dim) float64, layer 0 first."""


def sentence_trajectories(loaded: LoadedModel, pair: Sequence[str]) -> list[TokenTrajectory]:
    """Return two sentences' trajectories through the layers of a model, or of one stack of its
    blocks.
    """
    ids = [encode_sentence(loaded, sentence) for sentence in pair]
    names = [_tokens_of(loaded, sequence) for sequence in ids]
    states = np.stack([layer.states.double().cpu().numpy() for layer in layer_states(loaded, ids)])
    return [*map(TokenTrajectory, names, np.split(states, [len(ids[0])], axis=1))]


def sentence_tokens(loaded: LoadedModel, pair: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the tokens of two sentences as the vocabulary writes them."""
    return [_tokens_of(loaded, encode_sentence(loaded, sentence)) for sentence in pair]


def _tokens_of(loaded: LoadedModel, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, loaded.tokenizer.convert_ids_to_tokens(list(ids))))


def movements(states: np.ndarray) -> dict[str, np.ndarray]:
    """Return norm |h_l|, step |h_{l+1} - h_l| and cosine cos(h_l, h_{l+1}) of tokens, from their
    states, (n_layers + 1, n_tokens, dim)."""
    steps = np.linalg.norm(np.diff(states, axis=0), axis=-1)
    return {
        "norm": np.linalg.norm(states, axis=-1),
        "step": steps,
        "cosine": _cosines(states[:-1], states[1:]),
    }


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return ((x * y).sum(-1) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1))).clip(
            -1, 1
        )


def match_tokens(tokens: Sequence[str], other: Sequence[str]) -> list[tuple[int, int, bool]]:
    """Match the tokens of two sentences: (place in one, place in the other, whether they are
    equal).

    A run of tokens that is replaced by as many others is matched one by one; tokens of one sentence
    alone are left out.

    >>> match_tokens(["the", "river", "bank"], ["the", "savings", "bank"])
    [(0, 0, True), (1, 1, False), (2, 2, True)]
    """
    pairs = []
    for tag, a, a_end, b, b_end in SequenceMatcher(
        None, tokens, other, autojunk=False
    ).get_opcodes():
        if tag == "equal" or (tag == "replace" and a_end - a == b_end - b):
            pairs += [(a + place, b + place, tag == "equal") for place in range(a_end - a)]
    return pairs


def trajectory_table(trajectory: TokenTrajectory) -> pd.DataFrame:
    """Return a row for each layer and token: its norm, and step and cosine to the next layer (NaN
    at the last).
    """
    keys = [
        (layer, *token)
        for layer in range(len(trajectory.states))
        for token in enumerate(trajectory.tokens)
    ]
    columns = {
        name: pd.Series(values.ravel()) for name, values in movements(trajectory.states).items()
    }
    return pd.DataFrame(keys, columns=["layer", "place", "token"]).assign(**columns)


def cross_sentence_table(first: TokenTrajectory, other: TokenTrajectory) -> pd.DataFrame:
    """Return the cosine of matched tokens of two sentences, a row for each layer and pair; empty
    without a pair.
    """
    pairs = match_tokens(first.tokens, other.tokens)
    keys = [
        (layer, first.tokens[a], other.tokens[b], a, b)
        for a, b, _ in pairs
        for layer in range(len(first.states))
    ]
    columns = ["layer", "first", "second", "place_in_first", "place_in_second"]
    cosines = _cosines(
        first.states[:, [a for a, *_ in pairs]], other.states[:, [b for _, b, _ in pairs]]
    )
    return pd.DataFrame(keys, columns=columns).assign(cosine=cosines.T.ravel())
