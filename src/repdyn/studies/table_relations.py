"""Relate a model's embedding tables: the vocabulary, extreme pairs, tokens about the mean, where a text begins."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerBase

from repdyn.figures.drawing import entitle
from repdyn.probe.word_classes import is_function_word
from repdyn.studies.anatomy_figures import plain
from repdyn.studies.embedding_tables import UNUSED, EmbeddingTable, closest_pairs, describe, name_rows
from repdyn.studies.study import join_tables
from repdyn.tables.style import styled

BEYOND = 0.2
"""Cosine, of either sign, from which on a pair of an input and a position row is counted."""
WORD_MARKS = "Ġ▁"
"""What some vocabularies write before a token that begins a word."""
KINDS = WORD, _PIECE, _CHARACTER, _SPECIAL, _UNUSED = "word", "piece", "single character", "special", "unused"
"""Kinds of tokens."""


def token_kinds(tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Return the tokens of a vocabulary in the order of their ids, with their kinds: columns id, token, kind.

    A piece continues a word: behind "##", or without the mark of a beginning where the vocabulary has one.
    """
    names = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {*tokenizer.all_special_tokens}
    hashes = any(token.startswith("##") for token, _ in names)
    marks = tuple(mark for mark in WORD_MARKS if any(token.startswith(mark) for token, _ in names))

    def kind(token: str) -> str:
        if token in special:
            return _SPECIAL
        if UNUSED.fullmatch(token):
            return _UNUSED
        if len(token.lstrip("".join(marks)) if marks else token) == 1:
            return _CHARACTER
        continues = token.startswith("##") if hashes else bool(marks) and not token.startswith(marks)
        return _PIECE if continues else WORD

    return pd.DataFrame([(number, token, kind(token)) for token, number in names], columns=["id", "token", "kind"])


def vocabulary_table(kinds: pd.DataFrame) -> pd.DataFrame:
    """Return number, share and ranges of ids of each kind of token, and how many are of letters and digits alone."""
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        ids = kinds.loc[kinds["kind"] == kind, "id"].to_numpy()
        row = {"kind": kind, "tokens": len(ids), "share": len(ids) / len(kinds), "ranges": 0}
        if len(ids):
            runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
            longest = max(runs, key=len)
            row |= {"ranges": len(runs), "first": longest[0], "last": longest[-1]}
        rows.append(row)
    alphanumeric = sum(token.isalnum() for token in kinds["token"])
    rows.append({"kind": "letters and digits alone", "tokens": alphanumeric, "share": alphanumeric / len(kinds)})
    return pd.DataFrame(rows)


def shared_vocabulary(vocabularies: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return, for each two models, how many tokens both vocabularies have, and how many under the same id."""
    rows = []
    for (one, first), (other, second) in combinations(vocabularies.items(), 2):
        joined = first.merge(second, on="token", suffixes=("", "_other"))
        same = np.count_nonzero(joined["id"].eq(joined["id_other"]))
        sizes = {"tokens": len(first), "other_tokens": len(second)}
        rows.append({"model": one, "other": other, **sizes, "shared": len(joined), "same_id": same})
    return pd.DataFrame(rows)


def looks_of(labels: Sequence[str], kinds: pd.DataFrame) -> list[str]:
    """Return the kind of each token, with function words, numbers and other scripts apart."""
    known = dict(zip(kinds["token"], kinds["kind"], strict=True))

    def look(token: str) -> str:
        text = token.lstrip(WORD_MARKS) or token
        if known[token] == _CHARACTER and not unicodedata.name(text[0], "").startswith("LATIN") and not text.isascii():
            return "character of another script"
        if known[token] == WORD and any(map(str.isdigit, text)):
            return "number"
        return "function word" if known[token] == WORD and is_function_word(text.lower()) else known[token]

    return [look(label) for label in labels]


def looks_table(looks: Sequence[str], about: pd.DataFrame, lengths: np.ndarray) -> pd.DataFrame:
    """Return number, mean length and mean relation to the mean row (``about`` it) of each kind of token."""
    values = about[["distance", "cosine"]].assign(kind=looks, rows=1, length=lengths)
    columns = {"rows": "sum", "length": "mean", "distance": "mean", "cosine": "mean"}
    return values.groupby("kind", sort=False).agg(columns).reset_index()


def extreme_pairs(table: EmbeddingTable, k: int) -> pd.DataFrame:
    """Return the k pairs of rows with the most negative cosines and the k nearest to zero, measured in float64."""
    scores = {"most negative": lambda cosines: -cosines, "nearest to zero": lambda cosines: -abs(cosines)}
    pairs = {kind: closest_pairs(table.rows, k=k, score=score).pairs for kind, score in scores.items()}
    return join_tables({kind: name_rows(found, table, table) for kind, found in pairs.items()}, "pairs")


def ends_about_mean(values: pd.DataFrame, k: int) -> pd.DataFrame:
    """Return the labels of the k rows with the smallest and the k with the largest value of each relation to the mean
    row, :func:`repdyn.studies.embedding_tables.about_mean`, and of the inner product without its sign."""
    values = values.assign(**{"|dot|": values["dot"].abs()})
    frames = {}
    for name in ("distance", "cosine", "dot", "|dot|"):
        ordered = pd.DataFrame({"label": values["label"], "value": values[name]}).sort_values("value")
        frames[name, "smallest"], frames[name, "largest"] = ordered.head(k), ordered.tail(k)[::-1]
    return join_tables(frames, "quantity", "end")


def across_tables(tables: Sequence[EmbeddingTable]) -> pd.DataFrame:
    """Return the distribution of the cosines between the rows of each two tables of one width, all pairs.

    A row of the result is for a single row of a table of few (segments), or for a whole table; ``beyond`` is the number
    of pairs with a cosine beyond :data:`BEYOND` of either sign.
    """
    rows = []
    for one, other in combinations(tables, 2):
        if one.rows.shape[1] != other.rows.shape[1]:
            continue
        few, many = sorted((one, other), key=lambda table: len(table.rows))
        unit = [normalize(table.rows.detach().cpu().double(), dim=1).float() for table in (few, many)]
        cosines = unit[0] @ unit[1].T
        for label, values in [(None, cosines)] if few.kind != "segment" else zip(few.labels, cosines, strict=True):
            beyond = int((values.abs() > BEYOND).sum())
            described = describe(values.double().numpy().ravel())
            rows.append({"table": few.name, "row": label, "other": many.name, "beyond": beyond, **described})
    return pd.DataFrame(rows)


def start_of_text(words: EmbeddingTable, positions: EmbeddingTable, token: str | None) -> dict[str, Any]:
    """Return how the input embedding of the token that starts a text relates to position 0.

    Their cosine, lengths, distance and largest difference of a coordinate; empty if there is no such token, or the
    tables are of different widths.
    """
    if token is None or token not in words.labels or words.rows.shape[1] != positions.rows.shape[1]:
        return {}
    one, other = words.row(token).cpu(), positions.row("0").cpu()
    found = {
        "cosine": torch.dot(one, other) / (one.norm() * other.norm()),
        "length": one.norm(),
        "length_of_position": other.norm(),
        "distance": (one - other).norm(),
        "largest_difference": (one - other).abs().max(),
    }
    return {"token": token, **{name: float(value) for name, value in found.items()}}


@styled
def about_mean_figure(name: str, values: pd.DataFrame) -> Figure:
    """Draw histograms of the rows' distance to the mean row, cosine with it, and inner product."""
    figure = Figure(figsize=(10.5, 3.1))
    titles = {"distance": "distance to the mean", "cosine": "cosine with the mean", "dot": "product with the mean"}
    for axes, (quantity, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        of_rows = values[quantity]
        axes.hist(of_rows[np.isfinite(of_rows)], bins=100, color="#0072B2")
        axes.set_title(title)
        look = {"fontsize": 8, "textcoords": "offset points", "arrowprops": {"arrowstyle": "-", "color": "0.4"}}
        for row, side in ((of_rows.idxmin(), "left"), (of_rows.idxmax(), "right")):
            axes.annotate(plain(str(values.loc[row, "label"])), (of_rows[row], 0), (0, 22), ha=side, **look)
    figure.axes[0].set_ylabel("rows")
    caption = f"{len(values):,} rows; the rows at the ends are named"
    entitle(figure, f"{name}: rows of the input table about their mean", caption)
    return figure
