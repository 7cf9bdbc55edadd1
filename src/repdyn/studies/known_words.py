"""What the input embedding of a word says about it: noun, verb or adjective; opposite or synonym."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest, bootstrap, mannwhitneyu
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import paired_cosine_distances
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from repdyn.studies.embedding_tables import EmbeddingTable
from repdyn.studies.table_relations import WORD, WORD_MARKS

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


def word_rows(table: EmbeddingTable, kinds: pd.DataFrame) -> dict[str, int]:
    """Return the rows of an input table that stand for whole words, by the word without the mark of a beginning."""
    words = set(kinds.loc[kinds["kind"] == WORD, "token"])
    marks = "".join(WORD_MARKS)
    return {label.lstrip(marks): row for row, label in enumerate(table.labels) if label in words}


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
            interval = bootstrap((found,), np.mean, n_resamples=_N_BOOTSTRAP, rng=seed, method="percentile")
            low, high = interval.confidence_interval
            above = mannwhitneyu(found, cosines["opposites"]).statistic / (len(found) * len(cosines["opposites"]))
            values = {"cosine": found.mean(), "low": low, "high": high, "negative": (found < 0).mean()}
            records.append({"removed": name, "pairs": kind, "n": len(found), **values, "above_opposites": above})
    return {"opposites": pd.DataFrame(records)}
