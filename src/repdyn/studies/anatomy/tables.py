"""The context-free tables as they are studied: which of their rows, and what each row is called."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.studies.anatomy.lookups import Kind, LookUp, find_lookups

UNUSED = re.compile(r"\[unused\d+\]|<unused_?\d+>|<\|unused_?\d+\|>|<\|reserved_special_token_\d+\|>|madeupword\d+")
"""Names under which vocabularies keep rows for later: no text has ever been turned into them."""

NO_TOKEN, UNUSED_TOKEN, NO_POSITION = "no token has them", "unused tokens", "before position 0"

_N_TRIED = 16


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one table that mean something, with their names."""

    name: str
    """"input", "position", "segment"; with the parameter's name where a model has several of a kind."""
    kind: Kind
    parameter: str
    """Name of the whole table in the model."""
    rows: Tensor
    """(n, dim)"""
    labels: tuple[str, ...]
    """(n,) what each row is of: a token, or the number of a position or segment."""
    left_out: dict[str, int]
    """Rows of the whole table that are not among these, by why."""

    def row(self, label: str) -> Tensor:
        """The row of a token, position or segment, (dim,) float64."""
        return self.rows[self.labels.index(label)].double()

    def subset(self, numbers: np.ndarray, why: str) -> Table:
        """The table of some of its rows, and why the others are left out."""
        return replace(
            self,
            rows=self.rows[torch.from_numpy(numbers).to(self.rows.device)],
            labels=tuple(self.labels[number] for number in numbers),
            left_out={**self.left_out, why: len(self.rows) - len(numbers)},
        )


def tables_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, unused: bool = False) -> list[Table]:
    """The input, position and segment tables that a model has.

    Rows that mean nothing are left out, and counted: of the input table those beyond the vocabulary (padding to a round
    size) and those of tokens that the vocabulary names as unused (:data:`UNUSED`); of a position table those before
    position 0.

    Args:
        model: any model of transformers.
        tokenizer: its own.
        unused: keep the unused tokens.

    Raises:
        ValueError: no input table is found, or the tokenizer has too few tokens.
    """
    vocabulary = {int(number): token for token, number in tokenizer.get_vocab().items()}
    lookups = find_lookups(model, _tried(vocabulary, tokenizer))
    kinds = Counter(lookup.kind for lookup in lookups)
    return [
        _table(lookup, lookup.kind if kinds[lookup.kind] == 1 else f"{lookup.kind}: {lookup.parameter}", found, left)
        for lookup in lookups
        for found, left in [_rows(lookup, vocabulary, unused)]
    ]


def _tried(vocabulary: dict[int, str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ordinary tokens from all over the vocabulary, in no order."""
    ordinary = sorted(set(vocabulary) - set(tokenizer.all_special_ids))
    return np.random.RandomState(0).permutation(ordinary)[:_N_TRIED].tolist()


def _rows(lookup: LookUp, vocabulary: dict[int, str], unused: bool) -> tuple[dict[int, str], dict[str, int]]:
    """Names of the rows that are kept, by their numbers, and how many are left out."""
    n_rows, first = len(lookup.weight), lookup.first_row
    if lookup.kind != "input":
        return {row: str(row - first) for row in range(first, n_rows)}, {NO_POSITION: first} if first else {}
    named = {row: vocabulary[row] for row in sorted(vocabulary) if row < n_rows}
    kept = named if unused else {row: token for row, token in named.items() if not UNUSED.fullmatch(token)}
    left = {NO_TOKEN: n_rows - len(named), UNUSED_TOKEN: len(named) - len(kept)}
    return kept, {why: count for why, count in left.items() if count}


def _table(lookup: LookUp, name: str, kept: dict[int, str], left_out: dict[str, int]) -> Table:
    numbers = list(kept)
    whole = numbers == list(range(len(lookup.weight)))
    rows = lookup.weight if whole else lookup.weight[torch.tensor(numbers, device=lookup.weight.device)]
    return Table(name, lookup.kind, lookup.parameter, rows, tuple(kept.values()), left_out)
