"""What the blocks do to the tokens of two sentences: steps, turns, lengths, and paths in one plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from repdyn.studies.anatomy.states import Layer

MASSIVE = 10.0
"""Times the median length of all states from which on a token is left out of the common plane, which would else show
that token alone: trained decoders have a first token of hundreds of times the others' length."""


@dataclass(frozen=True, eq=False)
class TokenTrajectory:
    """The tokens of one sentence through the layers of one stack."""

    tokens: tuple[str, ...]
    states: np.ndarray
    """(n_layers + 1, n_tokens, dim) float64: layer 0 first."""
    layers: tuple[Layer, ...]
    """(n_layers + 1,)"""


def lengths(states: np.ndarray) -> np.ndarray:
    """|h_l| of states (n_layers + 1, n_tokens, dim), (n_layers + 1, n_tokens)."""
    return np.linalg.norm(states, axis=-1)


def steps(states: np.ndarray) -> np.ndarray:
    """|h_{l+1} - h_l|, (n_layers, n_tokens)."""
    return np.linalg.norm(np.diff(states, axis=0), axis=-1)


def step_cosines(states: np.ndarray) -> np.ndarray:
    """cos(h_l, h_{l+1}), (n_layers, n_tokens); NaN where a state is zero."""
    return _cosines(states[:-1], states[1:])


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return ((x * y).sum(-1) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1))).clip(-1, 1)


def matched(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int, bool]]:
    """Which tokens of two sentences stand for each other: (place in one, place in the other, whether they are equal).

    A run of tokens that is replaced by as many others is matched one by one; what is only in one is left out.

    >>> matched(["the", "river", "bank"], ["the", "savings", "bank"])
    [(0, 0, True), (1, 1, False), (2, 2, True)]
    """
    pairs = []
    for tag, a, a_end, b, b_end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and a_end - a == b_end - b):
            pairs += [(a + place, b + place, tag == "equal") for place in range(a_end - a)]
    return pairs


def cross_sentence_cosine(one: TokenTrajectory, other: TokenTrajectory) -> np.ndarray:
    """cos of matched tokens of two sentences, layer by layer, (n_layers + 1, n_matched) as :func:`matched` has them."""
    pairs = matched(one.tokens, other.tokens)
    return _cosines(one.states[:, [a for a, *_ in pairs]], other.states[:, [b for _, b, _ in pairs]])


def evolution(journey: TokenTrajectory) -> pd.DataFrame:
    """One line for each layer and token: its length, and step and cosine to the next layer (NaN at the last)."""
    nothing = np.full((1, len(journey.tokens)), np.nan)
    columns = {
        "norm": lengths(journey.states),
        "step": np.concatenate([steps(journey.states), nothing]),
        "cosine": np.concatenate([step_cosines(journey.states), nothing]),
    }
    places = [(layer.index, place) for layer in journey.layers for place in range(len(journey.tokens))]
    frame = pd.DataFrame(places, columns=["layer", "place"])
    frame["token"] = [journey.tokens[place] for _, place in places]
    return frame.assign(**{name: values.ravel() for name, values in columns.items()})


@dataclass(frozen=True, eq=False)
class Plane:
    """The paths of two sentences' tokens in the plane of most variance of all their states together."""

    paths: tuple[np.ndarray, np.ndarray]
    """Of each sentence: (n_layers + 1, n_tokens, 2); NaN for a token that is left out."""
    shares: tuple[float, float]
    """Of the variance, along either axis."""
    left_out: tuple[tuple[int, ...], tuple[int, ...]]
    """Places of the tokens with massive states, of each sentence."""


def plane(one: np.ndarray, other: np.ndarray) -> Plane:
    """The first two principal components of all states of all tokens of both sentences, at all layers.

    Args:
        one, other: states, (n_layers + 1, n_tokens, dim); tokens that reach :data:`MASSIVE` times the median length
            at any layer are left out.
    """
    both = (one, other)
    limit = MASSIVE * np.median(np.concatenate([lengths(states).ravel() for states in both]))
    kept = [lengths(states).max(0) <= limit for states in both]
    points = np.concatenate(
        [states[:, keep].reshape(-1, states.shape[-1]) for states, keep in zip(both, kept, strict=True)]
    )
    mean = points.mean(0)
    _, values, axes = np.linalg.svd(points - mean, full_matrices=False)
    squares = values**2 / (values**2).sum()
    paths = [
        np.where(keep[:, None], (states - mean) @ axes[:2].T, np.nan) for states, keep in zip(both, kept, strict=True)
    ]
    left_out = [tuple(np.flatnonzero(~keep).tolist()) for keep in kept]
    return Plane((paths[0], paths[1]), (float(squares[0]), float(squares[1])), (left_out[0], left_out[1]))
