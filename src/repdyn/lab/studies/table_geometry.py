"""Relate embedding tables: kinds of tokens, extreme pairs, the mean; to textbook positions, cubes,
few bits, words.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import binomtest, mannwhitneyu, ortho_group
from scipy.stats import bootstrap as bootstrapped
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import paired_cosine_distances, pairwise_distances
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerBase

from repdyn.kernels import two_nn
from repdyn.lab.studies import embedding_tables as measured
from repdyn.lab.studies.embedding_tables import EmbeddingTable, components_for, explained_variance
from repdyn.lab.studies.paths import principal
from repdyn.lab.studies.result import join_tables
from repdyn.probe.word_classes import is_function_word

BEYOND = 0.2
"""Cosine, of either sign, from which on a pair of an input and a position row is counted."""
WORD_MARKS = "Ġ▁"
"""What some vocabularies write before a token that begins a word."""
KINDS = WORD, _PIECE, _CHARACTER, _SPECIAL, _UNUSED = (
    "word",
    "piece",
    "single character",
    "special",
    "unused",
)
"""Kinds of tokens."""
BITS = (8, 4, 3, 2)
_LISTED_RANGES = 6
_LETTERS = 3
_MOST_ROWS = 2048
"""Rows of which a neighbour or the dimension is searched."""
_N_PAIRS = 100_000
CUBES, _ROOM, _N_POINTS = (7, 8, 9), 10, 1000
ALL_CUBES = "all three"
_N_PERMUTATIONS = 19
"""As many give a largest loop that chance exceeds once in twenty times."""
_DATA = json.loads(Path(__file__).with_name("wordnet.json").read_text(encoding="utf-8"))
PARTS = {part: tuple(_DATA[part].split()) for part in ("noun", "verb", "adjective")}
"""400 words of each part of speech, and of no other, equally frequent; from WordNet, whose licence
is in the file.
"""
PAIRS = {
    kind: [tuple(pair.split("/")) for pair in _DATA[kind].split()]
    for kind in ("opposites", "synonyms")
}
"""100 pairs of adjectives of each kind, from WordNet."""
ASKED = ("bear", "Bear")
FEWEST = 30
"""Words of each part of speech, or pairs of each kind, that are needed."""
_FOLDS = 5
_HIDDEN = 100
_N_BOOTSTRAP = 2000


def token_kinds(tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Return the tokens of a vocabulary in the order of their ids, with their kinds: columns id,
    token, kind.

    A piece continues a word: behind "##", or without the mark of a beginning where the vocabulary
    has one.
    """
    names = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {*tokenizer.all_special_tokens}
    hashes = any(token.startswith("##") for token, _ in names)
    marks = tuple(mark for mark in WORD_MARKS if any(token.startswith(mark) for token, _ in names))

    def kind(token: str) -> str:
        # names decide before looks: special and unused tokens may look like words
        if token in special:
            return _SPECIAL
        if measured.UNUSED.fullmatch(token):
            return _UNUSED
        if len(token.lstrip("".join(marks)) if marks else token) == 1:
            return _CHARACTER
        continues = (
            token.startswith("##") if hashes else bool(marks) and not token.startswith(marks)
        )
        return _PIECE if continues else WORD

    return pd.DataFrame(
        [(number, token, kind(token)) for token, number in names], columns=["id", "token", "kind"]
    )


def vocabulary_table(kinds: pd.DataFrame) -> pd.DataFrame:
    """Return number, share and ranges of ids of each kind of token, and how many are of letters and
    digits alone.
    """
    ranges = ranges_of_ids(kinds)
    of_kind = (
        ranges.groupby("kind")["tokens"]
        .agg(tokens="sum", ranges="size")
        .reindex(KINDS, fill_value=0)
    )
    longest = ranges.loc[ranges.groupby("kind")["tokens"].idxmax()].set_index("kind")
    table = of_kind.join(longest[["first", "last"]])
    table.loc["letters and digits alone", "tokens"] = sum(
        token.isalnum() for token in kinds["token"]
    )
    table.insert(1, "share", table["tokens"] / len(kinds))
    return table.rename_axis("kind").reset_index()


def ranges_of_ids(kinds: pd.DataFrame) -> pd.DataFrame:
    """Return every range of ids of one kind, in their order: columns kind, first, last, tokens,
    and the names of the first and the last token.
    """
    begins = kinds["kind"].ne(kinds["kind"].shift()) | kinds["id"].diff().ne(1)
    ranges = kinds.groupby(begins.cumsum(), sort=False)
    table = ranges.agg(
        kind=("kind", "first"),
        first=("id", "first"),
        last=("id", "last"),
        tokens=("id", "size"),
        first_token=("token", "first"),
        last_token=("token", "last"),
    )
    return table.reset_index(drop=True)


def listed_ranges(ranges: pd.DataFrame) -> list[str]:
    """Return a line for each kind of token, with its first ranges of ids."""
    lines = []
    for kind, of_kind in ranges.groupby("kind", sort=False):
        shown = [
            f"{first}" if first == last else f"{first} to {last}"
            for first, last in of_kind[["first", "last"]].head(_LISTED_RANGES).to_numpy()
        ]
        more = len(of_kind) - len(shown)
        rest = f", and {more:,} more ranges" if more else ""
        lines.append(f"  {kind}: {', '.join(shown)}{rest}")
    return lines


def is_latin_word(token: str) -> bool:
    """Return whether a token has at least three letters, all of them Latin, and nothing else but
    the mark of a beginning.

    >>> [is_latin_word(token) for token in ("the", "\u0120the", "of", "##ing", "1986")]
    [True, True, False, False, False]
    """
    letters = token.lstrip(WORD_MARKS)
    return len(letters) >= _LETTERS and all(
        letter.isalpha() and unicodedata.name(letter, "").startswith("LATIN") for letter in letters
    )


def shared_vocabulary(vocabularies: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return, for each two models, how many tokens both vocabularies have, and how many under the
    same id.
    """
    rows = []
    for (name, first), (other, second) in combinations(vocabularies.items(), 2):
        joined = first.merge(second, on="token", suffixes=("", "_other"))
        same = np.count_nonzero(joined["id"].eq(joined["id_other"]))
        sizes = {"tokens": len(first), "other_tokens": len(second)}
        rows.append(
            {"model": name, "other": other, **sizes, "shared": len(joined), "same_id": same}
        )
    return pd.DataFrame(rows)


def looks_of(labels: Sequence[str], kinds: pd.DataFrame) -> list[str]:
    """Return the kind of each token, with function words, numbers and other scripts apart."""
    kind_of_token = dict(zip(kinds["token"], kinds["kind"], strict=True))

    def look(token: str) -> str:
        text = token.lstrip(WORD_MARKS) or token
        if (
            kind_of_token[token] == _CHARACTER
            and not unicodedata.name(text[0], "").startswith("LATIN")
            and not text.isascii()
        ):
            return "character of another script"
        if kind_of_token[token] == WORD and any(map(str.isdigit, text)):
            return "number"
        return (
            "function word"
            if kind_of_token[token] == WORD and is_function_word(text.lower())
            else kind_of_token[token]
        )

    return [look(label) for label in labels]


def extreme_pairs(table: EmbeddingTable, pairs_by_end: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the pairs of rows with the most negative cosines and those nearest to zero, with their
    names.
    """
    ends = {
        end: measured.name_rows(pairs, table, table)
        for end, pairs in pairs_by_end.items()
        if end != measured.LARGEST
    }
    return join_tables(ends, "pairs")


def ends_about_mean(values: pd.DataFrame, k: int) -> pd.DataFrame:
    """Return the k rows with the smallest and the k with the largest value of each relation to the
    mean row, :func:`repdyn.lab.studies.embedding_tables.about_mean`, with and without its sign, and
    of the length: columns quantity, end, label, value, and all of these measures in each row.
    """
    measures: pd.DataFrame = values.loc[:, ["label", "distance", "cosine", "dot", "length"]].copy()
    measures.insert(3, "|cosine|", measures["cosine"].abs())
    measures.insert(5, "|dot|", measures["dot"].abs())
    frames = {}
    for name in (column for column in measures.columns if column != "label"):
        ordered = measures.sort_values(name).dropna(subset=name)
        ordered.insert(1, "value", ordered[name])
        frames[name, "smallest"] = ordered.head(k)
        frames[name, "largest"] = ordered.tail(k)[::-1]
    return join_tables(frames, "quantity", "end")


def across_tables(tables: Sequence[EmbeddingTable]) -> pd.DataFrame:
    """Return the distribution of the cosines between the rows of each two tables of one width, all
    pairs.

    A row is for one segment, or a whole table; ``beyond`` counts the cosines beyond :data:`BEYOND`
    of either sign.
    """
    rows = []
    for left, other in combinations(tables, 2):
        if left.rows.shape[1] != other.rows.shape[1]:
            continue
        few, many = sorted((left, other), key=lambda table: len(table.rows))
        unit = [
            normalize(table.rows.detach().cpu().double(), dim=1).float() for table in (few, many)
        ]
        cosines = unit[0] @ unit[1].T
        for label, values in (
            [(None, cosines)] if few.kind != "segment" else zip(few.labels, cosines, strict=True)
        ):
            beyond = int((values.abs() > BEYOND).sum())
            described = measured.describe(values.double().numpy().ravel())
            rows.append(
                {"table": few.name, "row": label, "other": many.name, "beyond": beyond, **described}
            )
    return pd.DataFrame(rows)


def start_of_text(
    words: EmbeddingTable, positions: EmbeddingTable, token: str | None
) -> dict[str, Any]:
    """Return how the input embedding of the token that starts a text relates to position 0; empty
    if nothing does.
    """
    if token is None or token not in words.labels or words.rows.shape[1] != positions.rows.shape[1]:
        return {}
    vector, other = (
        of.rows[of.labels.index(label)].cpu().double()
        for of, label in ((words, token), (positions, "0"))
    )
    numbers = {
        "cosine": torch.dot(vector, other) / (vector.norm() * other.norm()),
        "length": vector.norm(),
        "length_of_position": other.norm(),
        "distance": (vector - other).norm(),
        "largest_difference": (vector - other).abs().max(),
    }
    return {"token": token, **{name: float(value) for name, value in numbers.items()}}


def sinusoids(like: EmbeddingTable) -> EmbeddingTable:
    """Return the textbook table of positions of the same size as a learned one (Vaswani et al.
    2017, section 3.5).

    Row n holds ``sin(n / 10000^(2 i / dim))`` at coordinate 2 i and the cosine of the same at 2 i +
    1.
    """
    n, dim = like.rows.shape
    angles = torch.arange(n).double()[:, None] * 10000.0 ** (
        -torch.arange(0, dim, 2).double() / dim
    )
    rows = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :dim]
    return EmbeddingTable(
        name="sinusoids",
        kind="position",
        parameter="textbook",
        rows=rows,
        labels=tuple(map(str, range(n))),
        left_out={},
    )


def quantised(rows: Tensor, bits: int) -> Tensor:
    """Return rows rounded to integers of ``bits`` bits and back, with one scale for each row, which
    keeps its largest
    value: |x|_max / (2^(bits - 1) - 1)."""
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(scale > 0, (rows / scale).round() * scale, rows)


def quantisation_table(table: EmbeddingTable, seed: int) -> pd.DataFrame:
    """Return what rounding a table to few bits does to its geometry; the first row is the table
    itself.

    Returns:
        By bits: error (mean of |x - x'| / |x|), cosine (of a row with itself, smallest),
        cosine_moved and cosine_moved_most (of a cosine of two rows, mean and largest, over 100,000
        pairs), nearest (share of 2,048 drawn rows whose nearest row stays the same), components_90,
        two_nn (of the drawn rows).
    """
    rows = table.rows.detach().cpu().float()
    drawn = torch.from_numpy(np.random.RandomState(seed).permutation(len(rows))[:_MOST_ROWS])
    pairs = measured.sample_pairs(len(rows), _N_PAIRS, seed)
    cosines = measured.pair_values(rows, pairs)["cosine"]
    nearest = _nearest(rows, drawn)
    records = []
    for bits in (32, *BITS):
        held = rows if bits == 32 else quantised(rows, bits)
        moved = np.abs(measured.pair_values(held, pairs)["cosine"] - cosines)
        record = {
            "bits": bits,
            "error": float(((rows - held).norm(dim=1) / rows.norm(dim=1)).nanmean()),
            "cosine": float(torch.cosine_similarity(rows, held, dim=1).min()),
            "cosine_moved": np.nanmean(moved),
            "cosine_moved_most": np.nanmax(moved),
            "nearest": float((_nearest(held, drawn) == nearest).float().mean()),
        }
        records.append({**record, **_dimensions(held, held[drawn])})
    return pd.DataFrame(records)


def _nearest(rows: Tensor, drawn: Tensor) -> Tensor:
    unit = normalize(rows, dim=1)
    cosines = unit[drawn] @ unit.T
    return cosines.scatter(1, drawn[:, None], -torch.inf).argmax(1)


def _dimensions(rows: Tensor, drawn: Tensor) -> dict[str, float]:
    return {
        "components_90": components_for(explained_variance(rows))[0.9],
        "two_nn": float(two_nn(drawn)),
    }


def known_clouds(seed: int) -> dict[str, Tensor]:
    """Return clouds of known dimension: unit cubes of 7, 8 and 9 dimensions in ten, and all three
    together.

    The first is moved away from the origin, the second turned at random (Luisto 2024, section
    2.3.2).
    """
    random = np.random.RandomState(seed)
    cubes = [
        np.pad(random.random_sample((_N_POINTS, dim)), ((0, 0), (0, _ROOM - dim))) for dim in CUBES
    ]
    moved = [cubes[0] + 2, cubes[1] @ ortho_group.rvs(_ROOM, random_state=random), cubes[2]]
    clouds = {
        f"cube of {dim}": torch.from_numpy(cube) for dim, cube in zip(CUBES, moved, strict=True)
    }
    return {**clouds, ALL_CUBES: torch.cat([*clouds.values()])}


def dimension_table(clouds: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return components for 90% of the variance and the TwoNN dimension of each cloud."""
    return pd.DataFrame(
        [{"cloud": name, "rows": len(x), **_dimensions(x, x)} for name, x in clouds.items()]
    )


def loops_of(table: EmbeddingTable, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the loops of a path of positions, by persistent homology (Vietoris-Rips complex;
    ripser).

    A loop is there from the distance at which its points join (birth) to the one at which it is
    filled (death); the difference is its persistence. Chance is the largest of 19 tables whose
    components have permuted values.

    Returns:
        For the first 2, 3 and 6 principal components and for all, the largest two persistences; and
        each feature, the most persistent first, with its dimension: 0, a piece until it joins
        another, or 1, a loop.
    """
    from ripser import ripser

    scores, _ = principal(table.rows, min(table.rows.shape))
    random = np.random.RandomState(seed)
    columns = ["birth", "death"]

    def search(points: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame, list[float]]:
        """Return pieces and loops, the longest first, and the persistences of loops, at
        least two.
        """
        # of points ripser warns where they are as many as their components
        diagrams = ripser(pairwise_distances(points), maxdim=1, distance_matrix=True)["dgms"]
        # the one piece that all join in the end never dies
        ended = (diagram[np.isfinite(diagram[:, 1])] for diagram in diagrams)
        pieces, loops = (
            pd.DataFrame(diagram[np.argsort(diagram[:, 0] - diagram[:, 1])], columns=columns)
            for diagram in ended
        )
        return pieces, loops, [*(loops["death"] - loops["birth"]), 0.0, 0.0]

    records = []
    features = []
    for n_components in dict.fromkeys(
        min(n_components, scores.shape[1]) for n_components in (2, 3, 6, scores.shape[1])
    ):
        points = scores[:, :n_components]
        keys = {"table": table.name, "components": n_components}
        *diagrams, (longest, second, *_) = search(points)
        # the same values along each component, without the order that ties components together
        permuted = [
            np.apply_along_axis(random.permutation, 0, points) for _ in range(_N_PERMUTATIONS)
        ]
        values = {
            "longest": longest,
            "second": second,
            "chance": max(float(search(diagram)[-1][0]) for diagram in permuted),
        }
        records.append(
            {
                **keys,
                "loops": len(diagrams[1]),
                **values,
                **dict(*diagrams[1].head(1).to_dict("records")),
            }
        )
        features += [
            diagram.assign(**keys, dimension=dimension)
            for dimension, diagram in enumerate(diagrams)
        ]
    return pd.DataFrame(records), pd.concat(features, ignore_index=True)


def word_rows(table: EmbeddingTable, kinds: pd.DataFrame) -> dict[str, int]:
    """Return the rows of an input table that stand for whole words, by the word without the mark of
    a beginning.
    """
    words = set(kinds.loc[kinds["kind"] == WORD, "token"])
    return {
        label.lstrip(WORD_MARKS): row for row, label in enumerate(table.labels) if label in words
    }


def probe_words(table: EmbeddingTable, rows: dict[str, int], seed: int) -> dict[str, pd.DataFrame]:
    """Fit a linear probe, one with a hidden layer of 100 and one of boosted trees to the part of
    speech of words, as many of each part.

    Every word is held out once, in five folds of each part alike.

    Returns:
        word_probe: accuracy on held-out words (95%, Wilson), and the share of each part that was
            recognised.
        word_probe_asked: the probability of each part for the words of :data:`ASKED`. Nothing for
            too few words.
    """
    rows_by_part = {
        part_of_speech: [rows[word] for word in words if word in rows]
        for part_of_speech, words in PARTS.items()
    }
    n = min(map(len, rows_by_part.values()))
    if n < FEWEST:
        return {}
    random = np.random.RandomState(seed)
    vectors = table.rows.detach().cpu().double().numpy()
    chosen = np.concatenate([random.permutation(of_part)[:n] for of_part in rows_by_part.values()])
    x = vectors[chosen]
    y = np.repeat([*rows_by_part], n)
    accuracies = []
    probabilities = []
    classifiers = {
        "linear": LogisticRegression(max_iter=1000),
        "hidden": MLPClassifier((_HIDDEN,), alpha=1.0, max_iter=1000, random_state=seed),
        # small trees on a tenth of the coordinates each: as accurate, in a tenth of the time
        "trees": HistGradientBoostingClassifier(
            max_leaf_nodes=8, max_features=0.1, random_state=seed
        ),
    }
    for name, classifier in classifiers.items():
        model = make_pipeline(StandardScaler(), classifier)
        folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
        correct = np.asarray(cross_val_predict(model, x, y, cv=folds)) == y
        low, high = binomtest(int(correct.sum()), len(y)).proportion_ci(method="wilson")
        shares = {}
        for part_of_speech in rows_by_part:
            is_of_part = y == part_of_speech
            shares[part_of_speech] = correct[is_of_part].mean()
        interval = {"accuracy": correct.mean(), "low": low, "high": high}
        accuracies.append({"probe": name, "words": len(y), **interval, **shares})
        # the asked words are not among these, which are of one part of speech alone
        model.fit(x, y)
        for word in (word for word in ASKED if word in rows):
            probability = dict(
                zip(model.classes_, model.predict_proba(vectors[[rows[word]]])[0], strict=True)
            )
            probabilities.append({"probe": name, "word": word, **probability})
    return {"word_probe": pd.DataFrame(accuracies), "word_probe_asked": pd.DataFrame(probabilities)}


def compare_opposites(
    table: EmbeddingTable, rows: dict[str, int], seed: int
) -> dict[str, pd.DataFrame]:
    """Return cosines of opposite, synonymous and unrelated adjectives, with what they have in
    common taken away.

    Taken away is nothing, the mean of all rows, that of the adjectives, or this and their first
    principal components.

    Low and high are of a bootstrap over pairs; ``above_opposites`` is the probability of a larger
    cosine than that of an opposite pair, ties counting half. Nothing is returned for too few pairs.
    """
    pairs = {
        kind: [pair for pair in pairs_of_kind if all(word in rows for word in pair)]
        for kind, pairs_of_kind in PAIRS.items()
    }
    if min(map(len, pairs.values())) < FEWEST:
        return {}
    first, second = zip(*pairs["opposites"], strict=True)
    # the same words, each with the partner of another pair
    pairs["unrelated"] = [*zip(first, np.roll(second, 1).tolist(), strict=True)]
    x = table.rows.detach().cpu().double().numpy()
    of_adjectives = set(PARTS["adjective"])
    for pairs_of_kind in PAIRS.values():
        of_adjectives.update(*pairs_of_kind)
    adjectives = x[[rows[word] for word in sorted(of_adjectives & set(rows))]]
    taken = {
        "nothing": x,
        "mean of all rows": x - x.mean(0),
        "mean of adjectives": x - adjectives.mean(0),
    }
    for n_pairs in (2, 10, 50):
        common = PCA(min(n_pairs, *adjectives.shape), svd_solver="full").fit(adjectives)
        taken[f"mean and {n_pairs} components"] = x - common.inverse_transform(common.transform(x))
    records = []
    for name, vectors in taken.items():
        cosines = {}
        for kind, of_kind in pairs.items():
            one, other = (vectors[[rows[pair[side]] for pair in of_kind]] for side in (0, 1))
            distances = cosines[kind] = 1 - paired_cosine_distances(one, other)
            interval = bootstrapped(
                (distances,), np.mean, n_resamples=_N_BOOTSTRAP, rng=seed, method="percentile"
            )
            low, high = interval.confidence_interval
            opposites = cosines["opposites"]
            above = mannwhitneyu(distances, opposites).statistic / (len(distances) * len(opposites))
            values = {
                "cosine": distances.mean(),
                "low": low,
                "high": high,
                "negative": (distances < 0).mean(),
            }
            records.append(
                {
                    "removed": name,
                    "pairs": kind,
                    "n": len(distances),
                    **values,
                    "above_opposites": above,
                }
            )
    return {"opposites": pd.DataFrame(records)}
