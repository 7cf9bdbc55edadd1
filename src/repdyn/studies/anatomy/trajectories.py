"""Follow the tokens of two sentences through the blocks: norms, steps, angles, and paths in one plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from repdyn.studies.models import LoadedModel
from repdyn.studies.states import LayerKey, token_states

MASSIVE = 10.0
"""Multiple of the median norm of all states from which on a token is left out of the common plane, which would
otherwise show that token alone: trained decoders have a first token of hundreds of times the norm of the others."""


@dataclass(frozen=True, eq=False)
class TokenTrajectory:
    """The tokens of one sentence through the layers of one stack."""

    tokens: tuple[str, ...]
    states: np.ndarray
    """(n_layers + 1, n_tokens, dim) float64, layer 0 first."""
    layers: tuple[LayerKey, ...]
    """(n_layers + 1,)"""


def sentence_trajectories(
    loaded: LoadedModel, pair: Sequence[str]
) -> dict[str | None, tuple[TokenTrajectory, TokenTrajectory]]:
    """Return two sentences' trajectories through each stack of the model's layers, by name of the stack.

    Raises:
        ValueError: a sentence without tokens, or longer than the model's context.
    """
    ids = [list(loaded.tokenizer(sentence)["input_ids"]) for sentence in pair]
    if not all(ids):
        raise ValueError(
            f"expected two sentences with tokens, got {pair[0]!r} and {pair[1]!r}; give others with --pair"
        )
    if (longest := max(map(len, ids))) > loaded.context:
        raise ValueError(
            f"expected sentences of at most {loaded.context} tokens, what fits into {loaded.name}, got one of "
            f"{longest}; give shorter ones with --pair"
        )
    names = [tuple(map(str, loaded.tokenizer.convert_ids_to_tokens(sequence))) for sequence in ids]
    stacks: dict[str | None, dict[LayerKey, np.ndarray]] = {}
    for layer, states in token_states(loaded.model, ids):
        stacks.setdefault(layer.stack, {})[layer] = states.double().cpu().numpy()
    found = {}
    for stack, states in stacks.items():
        halves = np.split(np.stack(list(states.values())), [len(ids[0])], axis=1)
        one, other = (TokenTrajectory(*half, tuple(states)) for half in zip(names, halves, strict=True))
        found[stack] = one, other
    return found


def norms(states: np.ndarray) -> np.ndarray:
    """Return |h_l| of states (n_layers + 1, n_tokens, dim), (n_layers + 1, n_tokens)."""
    return np.linalg.norm(states, axis=-1)


def step_norms(states: np.ndarray) -> np.ndarray:
    """Return |h_{l+1} - h_l|, (n_layers, n_tokens)."""
    return np.linalg.norm(np.diff(states, axis=0), axis=-1)


def step_cosines(states: np.ndarray) -> np.ndarray:
    """Return cos(h_l, h_{l+1}), (n_layers, n_tokens); NaN where a state is zero."""
    return _cosines(states[:-1], states[1:])


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return ((x * y).sum(-1) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1))).clip(-1, 1)


def match_tokens(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int, bool]]:
    """Match the tokens of two sentences: (place in one, place in the other, whether they are equal).

    A run of tokens that is replaced by as many others is matched one by one; tokens of one sentence alone are left out.

    >>> match_tokens(["the", "river", "bank"], ["the", "savings", "bank"])
    [(0, 0, True), (1, 1, False), (2, 2, True)]
    """
    pairs = []
    for tag, a, a_end, b, b_end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and a_end - a == b_end - b):
            pairs += [(a + place, b + place, tag == "equal") for place in range(a_end - a)]
    return pairs


def cross_sentence_cosine(one: TokenTrajectory, other: TokenTrajectory) -> np.ndarray:
    """Return the cosine of matched tokens of two sentences, (n_layers + 1, n_matched); see :func:`match_tokens`."""
    pairs = match_tokens(one.tokens, other.tokens)
    return _cosines(one.states[:, [a for a, *_ in pairs]], other.states[:, [b for _, b, _ in pairs]])


def trajectory_table(trajectory: TokenTrajectory) -> pd.DataFrame:
    """Return a row for each layer and token: its norm, and step and cosine to the next layer (NaN at the last)."""
    last = np.full((1, len(trajectory.tokens)), np.nan)
    columns = {
        "norm": norms(trajectory.states),
        "step": np.concatenate([step_norms(trajectory.states), last]),
        "cosine": np.concatenate([step_cosines(trajectory.states), last]),
    }
    keys = [(layer.index, *token) for layer in trajectory.layers for token in enumerate(trajectory.tokens)]
    frame = pd.DataFrame(keys, columns=["layer", "place", "token"])
    return frame.assign(**{name: values.ravel() for name, values in columns.items()})


def cross_sentence_table(one: TokenTrajectory, other: TokenTrajectory) -> pd.DataFrame:
    """Return the cosine of matched tokens of two sentences, a row for each layer and pair; empty without a pair."""
    parts = [
        pd.DataFrame(
            {"layer": [layer.index for layer in one.layers], "first": one.tokens[a], "second": other.tokens[b]}
            | {"place_in_first": a, "place_in_second": b, "cosine": cosines}
        )
        for cosines, (a, b, _) in zip(
            cross_sentence_cosine(one, other).T, match_tokens(one.tokens, other.tokens), strict=True
        )
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


@dataclass(frozen=True, eq=False)
class TrajectoryPlane:
    """The paths of two sentences' tokens in the plane of most variance of all their states together."""

    paths: tuple[np.ndarray, np.ndarray]
    """Of each sentence: (n_layers + 1, n_tokens, 2); NaN for a token that is left out."""
    shares: tuple[float, float]
    """Share of the variance along either axis."""
    left_out: tuple[tuple[int, ...], tuple[int, ...]]
    """Places of the tokens with massive states, of each sentence."""


def fit_plane(one: np.ndarray, other: np.ndarray) -> TrajectoryPlane:
    """Project both sentences on the first two principal components of all states of all their tokens, at all layers.

    Args:
        one, other: states, (n_layers + 1, n_tokens, dim); tokens that reach :data:`MASSIVE` times the median norm at
            any layer are left out.
    """
    both = (one, other)
    limit = MASSIVE * np.median(np.concatenate([norms(states).ravel() for states in both]))
    is_kept = [norms(states).max(0) <= limit for states in both]
    points = np.concatenate(
        [states[:, kept].reshape(-1, states.shape[-1]) for states, kept in zip(both, is_kept, strict=True)]
    )
    mean = points.mean(0)
    _, values, axes = np.linalg.svd(points - mean, full_matrices=False)
    first, second = (values[:2] ** 2 / (values**2).sum()).tolist()
    paths = [
        np.where(kept[:, None], (states - mean) @ axes[:2].T, np.nan)
        for states, kept in zip(both, is_kept, strict=True)
    ]
    left_out = [tuple(np.flatnonzero(~kept).tolist()) for kept in is_kept]
    return TrajectoryPlane((paths[0], paths[1]), (first, second), (left_out[0], left_out[1]))
