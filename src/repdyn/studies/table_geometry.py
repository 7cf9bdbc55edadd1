"""Hold embedding tables against what is known: textbook positions, cubes, weights of few bits, loops, words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binomtest, ortho_group
from scipy.stats import bootstrap as bootstrapped
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import paired_cosine_distances
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from repdyn.figures.drawing import entitle
from repdyn.kernels import two_nn
from repdyn.studies.bootstrap import higher_share
from repdyn.studies.embedding_tables import (
    EmbeddingTable,
    components_for,
    explained_variance,
    pair_values,
    sample_pairs,
)
from repdyn.studies.panels import series_colour
from repdyn.studies.paths import principal
from repdyn.studies.table_relations import WORD, WORD_MARKS
from repdyn.tables.style import styled

BITS = (8, 4, 3, 2)
_MOST_ROWS = 2048
"""Rows of which a neighbour or the dimension is searched."""
_N_PAIRS = 100_000
CUBES, _ROOM, _N_POINTS = (7, 8, 9), 10, 1000
ALL_CUBES = "all three"
_N_PERMUTATIONS = 19
"""As many give a largest loop that chance exceeds once in twenty times."""
_DATA = json.loads(Path(__file__).with_name("wordnet.json").read_text(encoding="utf-8"))
PARTS = {part: tuple(_DATA[part].split()) for part in ("noun", "verb", "adjective")}
"""400 words of each part of speech, and of no other, equally frequent; from WordNet, whose licence is in the file."""
PAIRS = {kind: [tuple(pair.split("/")) for pair in _DATA[kind].split()] for kind in ("opposites", "synonyms")}
"""100 pairs of adjectives of each kind, from WordNet."""
ASKED = ("bear", "Bear")
FEWEST = 30
"""Words of each part of speech, or pairs of each kind, that are needed."""
_FOLDS = 5
_HIDDEN = 100
_N_BOOTSTRAP = 2000


def sinusoids(like: EmbeddingTable) -> EmbeddingTable:
    """Return the textbook table of positions of the same size as a learned one.

    Row n holds ``sin(n / 10000^(2 i / dim))`` at coordinate 2 i and the cosine of the same at 2 i + 1 (Vaswani et al.
    2017, section 3.5).
    """
    n, dim = like.rows.shape
    angles = torch.arange(n).double()[:, None] * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    rows = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :dim]
    return EmbeddingTable("sinusoids", "position", "textbook", rows, tuple(map(str, range(n))), {})


def quantised(rows: Tensor, bits: int) -> Tensor:
    """Return rows rounded to integers of ``bits`` bits and back, with one scale for each row, which keeps its largest
    value: |x|_max / (2^(bits - 1) - 1)."""
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(scale > 0, (rows / scale).round() * scale, rows)


def quantisation_table(table: EmbeddingTable, seed: int) -> pd.DataFrame:
    """Return what rounding a table to few bits does to its geometry; the first row is the table itself.

    Returns:
        By bits: error (mean of |x - x'| / |x|), cosine (of a row with itself, smallest over the rows), cosine_moved and
        cosine_moved_most (of a cosine of two rows, mean and largest, over 100,000 pairs), nearest (share of 2,048 drawn
        rows whose largest cosine is still with the same row), components_90, two_nn (of the drawn rows).
    """
    rows = table.rows.detach().cpu().float()
    drawn = torch.from_numpy(np.random.RandomState(seed).permutation(len(rows))[:_MOST_ROWS])
    pairs = sample_pairs(len(rows), _N_PAIRS, seed)
    cosines, nearest = pair_values(rows, pairs)["cosine"], _nearest(rows, drawn)
    records = []
    for bits in (32, *BITS):
        held = rows if bits == 32 else quantised(rows, bits)
        moved = np.abs(pair_values(held, pairs)["cosine"] - cosines)
        records.append(
            {
                "bits": bits,
                "error": float(((rows - held).norm(dim=1) / rows.norm(dim=1)).nanmean()),
                "cosine": float(torch.cosine_similarity(rows, held, dim=1).min()),
                "cosine_moved": np.nanmean(moved),
                "cosine_moved_most": np.nanmax(moved),
                "nearest": float((_nearest(held, drawn) == nearest).float().mean()),
                **_dimensions(held, held[drawn]),
            }
        )
    return pd.DataFrame(records)


def _nearest(rows: Tensor, drawn: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(rows, dim=1)
    cosines = unit[drawn] @ unit.T
    return cosines.scatter(1, drawn[:, None], -torch.inf).argmax(1)


def _dimensions(rows: Tensor, drawn: Tensor) -> dict[str, float]:
    return {"components_90": components_for(explained_variance(rows))[0.9], "two_nn": float(two_nn(drawn))}


def known_clouds(seed: int) -> dict[str, Tensor]:
    """Return clouds of known dimension: unit cubes of 7, 8 and 9 dimensions in ten, and all three together.

    The first is moved away from the origin, the second turned at random (Luisto 2024, section 2.3.2).
    """
    random = np.random.RandomState(seed)
    cubes = [np.pad(random.random_sample((_N_POINTS, dim)), ((0, 0), (0, _ROOM - dim))) for dim in CUBES]
    moved = [cubes[0] + 2, cubes[1] @ ortho_group.rvs(_ROOM, random_state=random), cubes[2]]
    clouds = {f"cube of {dim}": torch.from_numpy(cube) for dim, cube in zip(CUBES, moved, strict=True)}
    return {**clouds, ALL_CUBES: torch.cat([*clouds.values()])}


def dimension_table(clouds: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return components for 90 % of the variance and the TwoNN dimension of each cloud."""
    return pd.DataFrame([{"cloud": name, "rows": len(x), **_dimensions(x, x)} for name, x in clouds.items()])


def loops_table(table: EmbeddingTable, seed: int) -> pd.DataFrame:
    """Return the loops of a path of positions, by persistent homology (Vietoris-Rips complex, dimension 1; ripser).

    A loop is there from the distance at which its points join (birth) to the one at which it is filled (death); the
    difference is its persistence.

    Returns:
        For the first 2, 3 and 6 principal components and for all: loops (their number), longest and second (largest
        persistences), birth and death of the longest, chance (largest persistence of 19 tables in each of which the
        values of every component are permuted).
    """
    from ripser import ripser

    scores, random = principal(table.rows, min(table.rows.shape)).scores, np.random.RandomState(seed)

    def bars(points: np.ndarray) -> np.ndarray:
        found = ripser(points, maxdim=1)["dgms"][1]
        return found[np.argsort(found[:, 0] - found[:, 1])]

    records = []
    for kept in dict.fromkeys(min(kept, scores.shape[1]) for kept in (2, 3, 6, scores.shape[1])):
        found = bars(scores[:, :kept])
        lengths = [*(found[:, 1] - found[:, 0]), 0.0, 0.0]
        by_chance = [bars(np.apply_along_axis(random.permutation, 0, scores[:, :kept])) for _ in range(_N_PERMUTATIONS)]
        ends = {"birth": found[0, 0], "death": found[0, 1]} if len(found) else {}
        chance = max(float((bars_[:, 1] - bars_[:, 0]).max(initial=0)) for bars_ in by_chance)
        values = {"longest": lengths[0], "second": lengths[1], "chance": chance, **ends}
        records.append({"table": table.name, "components": kept, "loops": len(found), **values})
    return pd.DataFrame(records)


def word_rows(table: EmbeddingTable, kinds: pd.DataFrame) -> dict[str, int]:
    """Return the rows of an input table that stand for whole words, by the word without the mark of a beginning."""
    words = set(kinds.loc[kinds["kind"] == WORD, "token"])
    return {label.lstrip(WORD_MARKS): row for row, label in enumerate(table.labels) if label in words}


def probe_words(table: EmbeddingTable, rows: dict[str, int], seed: int) -> dict[str, pd.DataFrame]:
    """Fit a linear probe and one with a hidden layer of 100 to the part of speech of words.

    Every word is held out once, in five folds of each part alike. As many words of each part are used as there are of
    the rarest in the vocabulary.

    Returns:
        word_probe: for each probe, words, accuracy on words that it was not fitted to, low and high (95 %, Wilson), and
        the share of each part that it recognised. word_probe_asked: the probability of each part for the words of
        :data:`ASKED` that the vocabulary has. Nothing for too few words.
    """
    known = {part: [rows[word] for word in words if word in rows] for part, words in PARTS.items()}
    n = min(map(len, known.values()))
    if n < FEWEST:
        return {}
    random = np.random.RandomState(seed)
    chosen = np.concatenate([random.permutation(of_part)[:n] for of_part in known.values()])
    x, y = table.rows[chosen.tolist()].detach().cpu().double().numpy(), np.repeat([*known], n)
    asked = {word: table.rows[rows[word]].detach().cpu().double().numpy() for word in ASKED if word in rows}
    accuracies, probabilities = [], []
    hidden = MLPClassifier((_HIDDEN,), alpha=1.0, max_iter=1000, random_state=seed)
    for name, classifier in (("linear", LogisticRegression(max_iter=1000)), ("hidden", hidden)):
        model = make_pipeline(StandardScaler(), classifier)
        folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
        correct = np.asarray(cross_val_predict(model, x, y, cv=folds)) == y
        low, high = binomtest(int(correct.sum()), len(y)).proportion_ci(method="wilson")
        shares = {part: correct[y == part].mean() for part in known}
        accuracies.append(
            {"probe": name, "words": len(y), "accuracy": correct.mean(), "low": low, "high": high} | shares
        )
        model.fit(x, y)
        for word, vector in asked.items():
            found = dict(zip(model.classes_, model.predict_proba(vector[None])[0], strict=True))
            probabilities.append({"probe": name, "word": word, **found})
    return {"word_probe": pd.DataFrame(accuracies), "word_probe_asked": pd.DataFrame(probabilities)}


def compare_opposites(table: EmbeddingTable, rows: dict[str, int], seed: int) -> dict[str, pd.DataFrame]:
    """Return cosines of opposite, of synonymous and of unrelated adjectives, with what they have in common taken away.

    Taken away is nothing, the mean of all rows, the mean of the adjectives, or this and the first principal components
    of the adjectives.

    Returns:
        opposites: for each of these and kind of pair, mean cosine with low and high (95 %, bootstrap over pairs),
        negative (share of negative cosines), and above_opposites (probability of a larger cosine than that of an
        opposite pair, ties counting half). Nothing for too few pairs.
    """
    pairs = {kind: [pair for pair in known if all(word in rows for word in pair)] for kind, known in PAIRS.items()}
    if min(map(len, pairs.values())) < FEWEST:
        return {}
    first, second = zip(*pairs["opposites"], strict=True)
    pairs["unrelated"] = [*zip(first, np.roll(second, 1).tolist(), strict=True)]
    x = table.rows.detach().cpu().double().numpy()
    of_adjectives = {*PARTS["adjective"], *(word for known in PAIRS.values() for pair in known for word in pair)}
    adjectives = x[[rows[word] for word in sorted(of_adjectives & set(rows))]]
    taken = {"nothing": x, "mean of all rows": x - x.mean(0), "mean of adjectives": x - adjectives.mean(0)}
    for kept in (2, 10, 50):
        common = PCA(min(kept, *adjectives.shape), svd_solver="full").fit(adjectives)
        taken[f"mean and {kept} components"] = x - common.inverse_transform(common.transform(x))
    records = []
    for name, vectors in taken.items():
        cosines = {}
        for kind, of_kind in pairs.items():
            one, other = (vectors[[rows[pair[side]] for pair in of_kind]] for side in (0, 1))
            found = cosines[kind] = 1 - paired_cosine_distances(one, other)
            interval = bootstrapped((found,), np.mean, n_resamples=_N_BOOTSTRAP, rng=seed, method="percentile")
            low, high = interval.confidence_interval
            above = higher_share(found, cosines["opposites"])
            values = {"cosine": found.mean(), "low": low, "high": high, "negative": (found < 0).mean()}
            records.append({"removed": name, "pairs": kind, "n": len(found), **values, "above_opposites": above})
    return {"opposites": pd.DataFrame(records)}


@styled
def dimension_figure(name: str, curves: Mapping[str, np.ndarray], seed: int) -> Figure:
    """Draw the cumulative share of variance by number of components, of clouds of known dimension and of a model."""
    figure = Figure(figsize=(10, 4.2))
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_curves(left, {of: explained_variance(rows) for of, rows in known_clouds(seed).items()})
    left.set_title("unit cubes in 10 dimensions")
    _draw_curves(right, curves)
    right.set(title="tables of the model, and sinusoids", xscale="log")
    left.set(ylabel="share of variance", ylim=(0, 1.03))
    entitle(figure, f"{name}: dimension curves", "share of variance along the first components")
    return figure


def _draw_curves(axes: Axes, curves: Mapping[str, np.ndarray]) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(
            np.arange(1, len(curve) + 1), curve, color=series_colour(number), marker=".", markersize=3, label=name
        )
    axes.set_xlabel("components")
    axes.legend(loc="lower right")
