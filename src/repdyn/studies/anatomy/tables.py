"""Extract the context-free tables of a model: which of their rows are used, and what each row stands for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.studies.lookups import Lookup, TableKind, find_lookups, ordinary_tokens

UNUSED = re.compile(r"\[unused\d+\]|<unused_?\d+>|<\|unused_?\d+\|>|<\|reserved_special_token_\d+\|>|madeupword\d+")
"""Names of tokens that vocabularies reserve: no text is ever encoded as them."""

NO_TOKEN, UNUSED_TOKEN, NO_POSITION = "no token has them", "unused tokens", "before position 0"
"""Reasons for leaving rows out."""


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """The used rows of a table, with their names."""

    name: str
    """"input", "position", "segment"; with the parameter's name where a model has several of a kind."""
    kind: TableKind
    parameter: str
    """Name of the whole table in the model."""
    rows: Tensor
    """(n, dim)"""
    labels: tuple[str, ...]
    """(n,) what each row stands for: a token, or the number of a position or segment."""
    left_out: dict[str, int]
    """Number of rows of the whole table that are not used, by reason."""

    def row(self, label: str) -> Tensor:
        """Return the row of a token, position or segment, (dim,) float64."""
        return self.rows[self.labels.index(label)].double()

    def subset(self, numbers: np.ndarray, reason: str) -> EmbeddingTable:
        """Return the table of some of its rows, with the reason for leaving the others out."""
        return replace(
            self,
            rows=self.rows[torch.from_numpy(numbers).to(self.rows.device)],
            labels=tuple(self.labels[number] for number in numbers),
            left_out={**self.left_out, reason: len(self.rows) - len(numbers)},
        )


def embedding_tables(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, unused: bool = False
) -> list[EmbeddingTable]:
    """Return the input, position and segment tables of a model.

    Rows without a meaning are left out, and counted: in the input table those beyond the vocabulary (padding to a round
    size) and those of tokens that the vocabulary names as unused (:data:`UNUSED`); in a position table those before
    position 0.

    Args:
        model: any model of transformers.
        tokenizer: its own.
        unused: keep the unused tokens.

    Raises:
        ValueError: no input table is found, or the tokenizer has too few tokens.
    """
    vocabulary = {int(number): token for token, number in tokenizer.get_vocab().items()}
    lookups = find_lookups(model, ordinary_tokens(vocabulary, tokenizer))
    kinds = Counter(lookup.kind for lookup in lookups)
    return [
        _table(lookup, lookup.kind if kinds[lookup.kind] == 1 else f"{lookup.kind}: {lookup.parameter}", found, left)
        for lookup in lookups
        for found, left in [_rows(lookup, vocabulary, unused)]
    ]


def _rows(lookup: Lookup, vocabulary: dict[int, str], unused: bool) -> tuple[dict[int, str], dict[str, int]]:
    """Return names of the used rows, by their numbers, and how many others there are."""
    n_rows, first = len(lookup.weight), lookup.first_row
    if lookup.kind != "input":
        return {row: str(row - first) for row in range(first, n_rows)}, {NO_POSITION: first} if first else {}
    named = {row: vocabulary[row] for row in sorted(vocabulary) if row < n_rows}
    kept = named if unused else {row: token for row, token in named.items() if not UNUSED.fullmatch(token)}
    left = {NO_TOKEN: n_rows - len(named), UNUSED_TOKEN: len(named) - len(kept)}
    return kept, {why: count for why, count in left.items() if count}


def _table(lookup: Lookup, name: str, kept: dict[int, str], left_out: dict[str, int]) -> EmbeddingTable:
    numbers = list(kept)
    whole = numbers == list(range(len(lookup.weight)))
    rows = lookup.weight if whole else lookup.weight[torch.tensor(numbers, device=lookup.weight.device)]
    return EmbeddingTable(name, lookup.kind, lookup.parameter, rows, tuple(kept.values()), left_out)
