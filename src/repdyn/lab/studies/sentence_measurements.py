"""Groups of paraphrases, changed sentences and collections of texts: their vectors at every layer,
measured.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import MultiLabelBinarizer
from torch import Tensor
from tqdm import tqdm

from repdyn.activations import Model, causal_stacks, layer_states
from repdyn.lab.studies.embedding_tables import (
    cosine_matrix,
    describe,
    norms,
    pair_values,
    sample_pairs,
)
from repdyn.lab.studies.generated_sentences import VOCABULARY
from repdyn.probe.corpus import load_corpus

Row: TypeAlias = dict[str, Any]
TEMPLATES = Path(__file__).with_name("templates.json")
"""The four groups of Luisto 2024, section 4.4.1: three templates of 27 sentences with synonyms in
their slots, and ten sentences of our own about a meeting."""
BUILT_IN = {"paraphrases": TEMPLATES.with_name("paraphrases.json"), "templates": TEMPLATES}
"""Groups: 12 of 5 sentences of the same meaning in words as different as possible, and
:data:`TEMPLATES`.
"""
BUILT_IN |= {
    "grammar": TEMPLATES.with_name("changes.json"),
    "concepts": TEMPLATES.with_name("concepts.json"),
}
"""Changes: 4 kinds of the same 12 sentences, so that the content of a sentence does not reveal the
kind; ten of each of six kinds, those of Luisto 2024, table 6, in sentences of our own: bright to
dim, doctor to nurse, woman to man, Finnish to Czech, funny to sad, laughing to crying."""
SENSE, CHARACTERS, WORDS = "sentences", "random characters", "random words"
FIRST = "first token"
MEAN = "mean"
LAST = "last token"
MAXIMUM = "maximum"
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    **{FIRST: lambda states: states[0], MEAN: lambda states: states.mean(0)},
    **{LAST: lambda states: states[-1], MAXIMUM: lambda states: states.amax(0)},
}
"""The ways to make one vector of a sentence's tokens, (n_tokens, dim); the maximum is that of each
coordinate.
"""
_SLOT = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_BATCH_SENTENCES = 64
SHARED_TOKENS = "tokens in common"
"""In the column vector: the baseline without a model, the share of tokens that two sentences have
in common.
"""
_ROUNDING = 1e-5
BETWEEN = "one of each"
"""The pairs of a text of the one collection and one of the other."""
N_PERMUTATIONS = 2000
ALL_KINDS = "all kinds"
N_BOOTSTRAP = 2000
N_DRAWS = 500


def fill_slots(groups: pd.DataFrame) -> pd.DataFrame:
    """Return groups with each sentence of slots, "{Hello|Hi} there!", replaced by all that it
    stands for.
    """

    def filled(sentence: str) -> list[str]:
        # every second part is the inside of a slot
        parts = enumerate(_SLOT.split(sentence))
        return [
            "".join(chosen)
            for chosen in product(*(part.split("|") if n % 2 else [part] for n, part in parts))
        ]

    return groups.assign(sentence=groups["sentence"].map(filled)).explode(
        "sentence", ignore_index=True
    )


def read_collection(source: str, n_texts: int) -> tuple[str, list[str]]:
    """Read paragraphs of a text, spread evenly over it; return the name of the text and the
    paragraphs.
    """
    corpus = load_corpus(source)
    # paragraphs end with an empty line, or else each line is one
    texts = (corpus.text, corpus.text.replace("\n", "\n\n"))
    splits = [text.split("\n\n") for text in texts]
    paragraphs = next((split for split in splits if len(split) >= n_texts), splits[-1])
    distinct = list(
        dict.fromkeys(
            stripped for text in paragraphs if any(map(str.isalnum, stripped := text.strip()))
        )
    )
    if len(distinct) < 3:
        raise ValueError(
            f"expected at least 3 paragraphs in {source}, got {len(distinct)}; give a longer text"
        )
    chosen = np.unique(
        np.linspace(0, len(distinct) - 1, min(n_texts, len(distinct))).round().astype(int)
    )
    return corpus.name, [distinct[number] for number in chosen]


SentenceVectors: TypeAlias = dict[tuple[int, str], np.ndarray]
"""By layer and pooling, of :data:`POOLINGS`: the vectors of sentences, (n_sentences, dim) float64.
"""


def over_layers(
    vectors: SentenceVectors, measure: Callable[[np.ndarray], Iterable[Row]]
) -> list[Row]:
    """Return the rows that are measured of the vectors of each layer and pooling, with these as
    their first columns.
    """
    return [
        {"layer": layer, "vector": name, **row}
        for (layer, name), x in vectors.items()
        for row in measure(x)
    ]


def sentence_vectors(
    model: Model, sequences: Sequence[Sequence[int]], title: str | None = None
) -> SentenceVectors:
    """Compute the vectors of sentences at every layer, special tokens included: the first of BERT's
    is [CLS].

    In a causal model the first token depends on nothing else in its sentence, and its vector is
    left out. The last layer is the last block's output, before a final norm.
    """
    causal = causal_stacks(model, sequences[:_BATCH_SENTENCES])
    parts: dict[tuple[int, str], list[Tensor]] = {}
    for start in tqdm(range(0, len(sequences), _BATCH_SENTENCES), desc=title, leave=False):
        batch = sequences[start : start + _BATCH_SENTENCES]
        for layer in layer_states(model, batch):
            sentences = layer.states.double().split([len(sequence) for sequence in batch])
            for name, pool in POOLINGS.items():
                if name != FIRST or not causal[layer.stack]:
                    pooled = torch.stack([pool(sentence) for sentence in sentences])
                    parts.setdefault((layer.index, name), []).append(pooled)
    return {key: torch.cat(pieces).cpu().numpy() for key, pieces in parts.items()}


def shared_token_cosines(
    sequences: Sequence[Sequence[int]], ignored: Iterable[int] = ()
) -> np.ndarray:
    """Return (n, n) cosines of sentences as sets of tokens, |A and B| / sqrt(|A| |B|): a baseline
    without a model.

    They are 0 for a sentence of ignored tokens alone.
    """
    sets = [set(sequence) - set(ignored) for sequence in sequences]
    return cosine_similarity(MultiLabelBinarizer().fit_transform(sets))


def separation_table(
    vectors: SentenceVectors, baseline: np.ndarray, groups: Sequence[str], *, seed: int
) -> pd.DataFrame:
    """Return :func:`separation` for each layer and pooling where sentences have different vectors
    (not at layer 0 of a first token that they share), and last for the baseline."""
    numbers = pd.factorize(pd.Series(list(groups)))[0].tolist()

    def separated(x: np.ndarray) -> Iterator[Row]:
        if not _is_unmoved(x[:1], x).all():
            yield separation(cosine_matrix(x), numbers, seed=seed)

    without = {"layer": None, "vector": SHARED_TOKENS, **separation(baseline, numbers, seed=seed)}
    return pd.DataFrame([*over_layers(vectors, separated), without])


def change_rows(
    before: np.ndarray, after: np.ndarray, changes: pd.DataFrame, *, seed: int
) -> list[Row]:
    """Return :func:`consistency` of the changes that move their vectors, before and after, (n,
    dim), of kinds with two such changes (layer 0 may have a token that stays the same); no row for
    fewer than two kinds."""
    moved = changes.loc[~_is_unmoved(before, after)]
    # a kind needs changes of two different sentences
    has_several = moved.groupby("kind")["before"].transform("nunique") > 1
    chosen = moved.loc[has_several]
    if chosen["kind"].nunique() < 2:
        return []
    labels = chosen["kind"].tolist(), chosen["before"].tolist()
    return consistency(before[chosen.index], after[chosen.index], *labels, seed=seed).to_dict(
        "records"
    )


def kind_matrix(
    before: np.ndarray, after: np.ndarray, kinds: Sequence[str], *, seed: int
) -> Iterator[Row]:
    """Yield the cosine of the mean differences of each two kinds of change, from vectors before and
    after, (n, dim).

    Low and high are of a bootstrap over the changes of each kind; there is no row where a kind
    moves nothing.
    """
    # the same draws at every layer, so that its intervals compare
    random = np.random.RandomState(seed)
    means = {}
    for kind in dict.fromkeys(kinds):
        is_of_kind = np.asarray(kinds) == kind
        differences = (after - before)[is_of_kind]
        n = len(differences)
        drawn = np.stack(
            [np.bincount(draw, minlength=n) for draw in random.randint(n, size=(N_DRAWS, n))]
        )
        means[kind] = np.vstack([differences.mean(0), drawn @ differences / n])
    lengths = {kind: np.linalg.norm(mean, axis=1) for kind, mean in means.items()}
    if all((length > 0).all() for length in lengths.values()):
        for a, b in combinations(means, 2):
            cosines = (means[a] * means[b]).sum(1) / (lengths[a] * lengths[b])
            low, high = np.quantile(cosines[1:], [0.025, 0.975])
            yield {"kind": a, "other": b, "cosine": cosines[0], "low": low, "high": high}


def nonsense(n: int, seed: int) -> pd.DataFrame:
    """Return n sentences of random characters and n of random words, of the same lengths: columns
    kind and sentence.
    """
    random = np.random.RandomState(seed)
    words = np.array([word for text in VOCABULARY.values() for word in text])
    lengths = random.randint(5, 13, size=n)
    texts = [(WORDS, " ".join(random.choice(words, size))) for size in lengths]
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz      "))
    texts += [
        (CHARACTERS, "".join(random.choice(letters, 6 * size)).strip() or "x") for size in lengths
    ]
    return pd.DataFrame(texts, columns=["kind", "sentence"])


def nonsense_rows(x: np.ndarray, kinds: np.ndarray) -> Iterator[Row]:
    """Yield the share of sentences whose nearest other one is of their side, sense or nonsense, and
    of the nonsense alone the share whose nearest is of their kind; from vectors (n, dim) and their
    kinds (n,)."""
    cosines = cosine_matrix(x)
    is_nonsense = kinds != SENSE
    if np.isfinite(cosines).all():
        apart = nearest_in_group(cosines[np.ix_(is_nonsense, is_nonsense)], kinds[is_nonsense])
        yield {"nonsense": nearest_in_group(cosines, is_nonsense), "kinds": apart}


def collection_values(x: np.ndarray, labels: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return lengths, distances, dot products and cosines of all pairs of texts, or of 1,000,000
    pairs, within each collection, and of all pairs between two."""
    parts = {}
    for name in dict.fromkeys(labels):
        is_member = labels == name
        parts[name] = torch.from_numpy(x[is_member])
    values = {
        name: {"length": norms(x), **pair_values(x, sample_pairs(len(x)))}
        for name, x in parts.items()
    }
    if len(parts) > 1:
        first, second = parts.values()
        all_pairs = torch.cartesian_prod(torch.arange(len(first)), torch.arange(len(second))).T
        values[BETWEEN] = pair_values(first, all_pairs, second)
    return values


def collection_rows(x: np.ndarray, labels: np.ndarray) -> Iterator[Row]:
    """Yield the distributions of :func:`collection_values`, by collection, or pairs of both, and
    quantity.

    ``nearest`` is the share of all texts whose largest cosine is with a text of their own
    collection, ``positive`` the share of values above 0.
    """
    nearest = nearest_in_group(np.nan_to_num(cosine_matrix(x)), labels)
    for texts, quantities in collection_values(x, labels).items():
        for name, values in quantities.items():
            shares = {"nearest": nearest, "positive": float((values > 0).mean())}
            yield {"texts": texts, "quantity": name, **describe(values), **shares}


def _is_unmoved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return (n,) bool, whether vectors are equal up to rounding."""
    return np.linalg.norm(after - before, axis=1) <= _ROUNDING * np.linalg.norm(before, axis=1)


def consistency(
    before: np.ndarray,
    after: np.ndarray,
    kinds: Sequence[str],
    sources: Sequence[str],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare the differences ``after - before``, (n, dim), within a kind and across kinds.

    Two differences that start from the same sentence (``sources``) share a vector, which makes them
    alike: they are not compared. The permutation test permutes the labels of the kinds; p-values
    are not corrected for their number.

    Returns:
        A row for :data:`ALL_KINDS`, then one for each kind: change (the kind), n (number of
        differences), within (mean cosine of two differences of the kind, in [-1, 1]), across (of
        one of the kind and one of another), p (share of permutations with as large a ``within -
        across``, in (0, 1]), length (mean norm of a difference, relative to the mean norm of the
        vectors before and after).
    """
    names = list(dict.fromkeys(kinds))
    labels = np.array([names.index(kind) for kind in kinds])
    lengths = [np.linalg.norm(vectors, axis=1) for vectors in (before, after, after - before)]
    relative = 2 * lengths[2] / (lengths[0] + lengths[1])
    # also false for a difference with itself
    compared = np.asarray(sources)[:, None] != np.asarray(sources)[None, :]
    cosines = np.where(compared, cosine_matrix(after - before), 0.0)
    random = np.random.RandomState(seed)
    permuted = np.stack([labels, *(random.permutation(labels) for _ in range(N_PERMUTATIONS))])
    # sums over pairs become products of these masks with the cosines, for all permutations at once
    masks = [(permuted == kind).astype(float) for kind in range(len(names))]

    def sums(values: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the sums over pairs within each kind, and across, (n_draws, n_kinds + 1), all kinds
        last.
        """
        reached = [mine @ values for mine in masks]
        for others in (masks, [1 - mine for mine in masks]):
            of_kinds = [(one * other).sum(1) for one, other in zip(reached, others, strict=True)]
            yield np.stack([*of_kinds, sum(of_kinds)], axis=1)

    with np.errstate(invalid="ignore"):
        pairs = zip(sums(cosines), sums(compared.astype(float)), strict=True)
        within, across = (of_values / counts for of_values, counts in pairs)
    gaps = within - across
    # equal up to rounding counts as large; the observed labels are one of the permutations
    p = (~(gaps < gaps[0] - 1e-12)).mean(0)
    members = np.stack(
        [*(labels == number for number in range(len(names))), np.ones(len(labels), dtype=bool)]
    )
    table = pd.DataFrame(
        {
            "change": [*names, ALL_KINDS],
            "n": members.sum(1),
            "within": within[0],
            "across": across[0],
        }
    )
    table = table.assign(p=p, length=[relative[mine].mean() for mine in members])
    return pd.concat([table.tail(1), table.head(-1)], ignore_index=True)


def separation(cosines: np.ndarray, groups: Sequence[int], *, seed: int = 0) -> dict[str, float]:
    """Measure how far apart groups are, from cosines (n, n) and the group of each sentence (n,).

    The bootstrap resamples groups, not sentences, because the sentences of a group are not
    independent; pairs between two copies of one resampled group are left out.

    Returns:
        nearest (share of sentences whose nearest other sentence is of their own group, in [0, 1]);
        within (mean cosine of two different sentences of a group), between (of different groups),
        effect (within - between over the root of the mean of the two variances: Cohen's d), and
        probability (of a pair from within to be closer than one from between, ties counted half:
        area under the ROC curve), the latter four each with the bounds NAME_low and NAME_high of a
        95% interval.
    """
    labels = np.asarray(groups)
    members = [np.flatnonzero(labels == group) for group in np.unique(labels)]
    if len(members) < 3 or min(map(len, members)) < 2:
        raise ValueError(
            f"expected at least 3 groups of two sentences or more, got {len(members)} of "
            f"{sorted(set(map(len, members)))} sentences; give more groups, or paraphrases of each "
            "sentence"
        )
    if not np.isfinite(cosines).all():
        raise ValueError(
            "expected finite cosines, got some that are not; sentence vectors are zero, inf or NaN"
        )
    of_groups = _GroupCosines.of(cosines, members)
    n_groups = len(members)
    drawn = np.random.RandomState(seed).randint(n_groups, size=(N_BOOTSTRAP, n_groups))
    # how often each group is in each draw
    weights = np.stack([(drawn == group).sum(axis=1) for group in range(n_groups)], axis=1)
    observed = of_groups.statistics(np.ones((1, n_groups)))
    quantities = {"nearest": nearest_in_group(cosines, labels)}
    for name, draws in of_groups.statistics(weights.astype(float)).items():
        # a draw of one group alone has no pair of two groups, and so no value
        low, high = np.nanquantile(draws, [0.025, 0.975])
        quantities |= {
            name: float(observed[name][0]),
            f"{name}_low": float(low),
            f"{name}_high": float(high),
        }
    return quantities


@dataclass(frozen=True)
class _GroupCosines:
    """Sums over the cosines within groups and between each two of them.

    The quantities of a bootstrap draw are sums over its groups, so that these sums are all that
    thousands of draws need.
    """

    first: np.ndarray
    """(n_pairs,): the first group of each two."""
    second: np.ndarray
    """(n_pairs,): the second group of each two."""
    within: np.ndarray
    """(n_groups, 3): number, sum and sum of squares of the cosines of two sentences of a group."""
    between: np.ndarray
    """(n_pairs, 3): the same for sentences of two different groups."""
    n_closer: np.ndarray
    """(n_groups, n_pairs): in how many comparisons a cosine within the group is larger than one
    between the two groups, ties counted half.
    """

    @classmethod
    def of(cls, cosines: np.ndarray, members: Sequence[np.ndarray]) -> "_GroupCosines":
        """Return the sums for the sentences of each group, given by their numbers."""
        within = [
            cosines[np.ix_(group, group)][np.triu_indices(len(group), 1)] for group in members
        ]
        first, second = np.triu_indices(len(members), 1)
        # sorted, for _n_larger
        between = [
            np.sort(cosines[np.ix_(members[a], members[b])].ravel())
            for a, b in zip(first.tolist(), second.tolist(), strict=True)
        ]
        return cls(
            first=first,
            second=second,
            within=np.array([_moments(group) for group in within]),
            between=np.array([_moments(pair) for pair in between]),
            n_closer=np.array([[_n_larger(group, pair) for pair in between] for group in within]),
        )

    def statistics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return within, between, effect and probability, each (n_draws,), for the number of times
        that each group is drawn, (n_draws, n_groups).
        """
        # two groups are paired as often as a draw pairs their copies
        of_pairs = weights[:, self.first] * weights[:, self.second]
        n_in, sum_in, square_in = (weights @ self.within).T
        n_out, sum_out, square_out = (of_pairs @ self.between).T
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_in = sum_in / n_in
            mean_out = sum_out / n_out
            # twice the mean of both variances
            variances = square_in / n_in - mean_in**2 + square_out / n_out - mean_out**2
            effect = np.where(
                variances > 0, (mean_in - mean_out) / np.sqrt(variances.clip(0) / 2), math.nan
            )
            n_closer = ((weights @ self.n_closer) * of_pairs).sum(axis=1)
            probability = n_closer / (n_in * n_out)
        return {
            "within": mean_in,
            "between": mean_out,
            "effect": effect,
            "probability": probability,
        }


def _moments(values: np.ndarray) -> tuple[int, float, float]:
    """Return the number, sum and sum of squares of values."""
    return len(values), values.sum(), (values**2).sum()


def _n_larger(values: np.ndarray, ascending: np.ndarray) -> float:
    """Count the pairs in which a value is larger than one of the ascending ones, ties half."""
    n_smaller = np.searchsorted(ascending, values, "left")
    n_not_larger = np.searchsorted(ascending, values, "right")
    return (n_smaller + n_not_larger).sum() / 2


def nearest_in_group(cosines: np.ndarray, groups: np.ndarray) -> float:
    """Return the share of vectors whose nearest other one is of their own group, from cosines (n,
    n).
    """
    others = cosines.copy()
    np.fill_diagonal(others, -math.inf)
    return float((groups[others.argmax(1)] == groups).mean())
