"""Read groups of paraphrases, changed sentences and collections of texts, built in or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repdyn.studies.sentences.examples import CHANGES, PARAPHRASES
from repdyn.text.source import load_corpus


def read_groups(path: Path | None) -> pd.DataFrame:
    """Read groups of paraphrases, or return the built-in ones: a row for each sentence, with columns group, sentence.

    Args:
        path: JSON ``{"group": ["sentence", ...], ...}`` or ``[["sentence", ...], ...]``, or CSV with the columns group
            and sentence; None for the built-in groups.

    Raises:
        ValueError: a file of another format.
        OSError: a file that cannot be read.
    """
    groups = PARAPHRASES if path is None else _read(path, ("group", "sentence"))
    if isinstance(groups, list):
        groups = {f"group {number}": group for number, group in enumerate(groups, start=1)}
    if not isinstance(groups, Mapping) or not all(map(_are_texts, groups.values())):
        raise ValueError(
            f'expected groups of sentences in {path}, {{"group": ["sentence", ...], ...}}, got something else; give '
            "lists of texts, none of them empty"
        )
    rows = [(str(name), text) for name, group in groups.items() for text in group]
    return pd.DataFrame(rows, columns=["group", "sentence"])


def read_changes(path: Path | None) -> pd.DataFrame:
    """Read changed sentences, or return the built-in ones: a row for each, with columns kind, before, after.

    Args:
        path: JSON ``{"kind": [["before", "after"], ...], ...}``, or CSV with the columns kind, before and after; None
            for the built-in sentences.

    Raises:
        ValueError: a file of another format.
        OSError: a file that cannot be read.
    """
    kinds = CHANGES if path is None else _read(path, ("kind", "before", "after"))
    if not isinstance(kinds, Mapping) or not all(
        isinstance(pairs, Sequence) and all(_are_texts(pair) and len(pair) == 2 for pair in pairs)
        for pairs in kinds.values()
    ):
        raise ValueError(
            f'expected changed sentences in {path}, {{"kind": [["before", "after"], ...], ...}}, got something else; '
            "give pairs of texts, none of them empty"
        )
    rows = [(str(kind), *pair) for kind, pairs in kinds.items() for pair in pairs]
    return pd.DataFrame(rows, columns=["kind", "before", "after"])


def read_collection(source: str, n_texts: int) -> tuple[str, list[str]]:
    """Read paragraphs of a text, spread evenly over it; return the name of the text and the paragraphs.

    Args:
        source: "builtin", "enwik8" or a path; see :func:`repdyn.text.source.load_corpus`.
        n_texts: number of paragraphs at most. Blank lines separate them; if there are too few, every line is one.

    Raises:
        ValueError: fewer than three different paragraphs.
        OSError: a text that cannot be read.
    """
    corpus = load_corpus(source)
    text = corpus.data.decode("utf-8", errors="ignore")
    parts = [part.split("\n\n") for part in (text, text.replace("\n", "\n\n"))]
    paragraphs = next((part for part in parts if len(part) >= n_texts), parts[-1])
    distinct = list(dict.fromkeys(stripped for part in paragraphs if any(map(str.isalnum, stripped := part.strip()))))
    if len(distinct) < 3:
        raise ValueError(f"expected at least 3 paragraphs in {source}, got {len(distinct)}; give a longer text")
    chosen = np.unique(np.linspace(0, len(distinct) - 1, min(n_texts, len(distinct))).round().astype(int))
    return corpus.name, [distinct[number] for number in chosen]


def _are_texts(values: object) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(text, str) and bool(text.strip()) for text in values)
    )


def _read(path: Path, columns: Sequence[str]) -> Any:
    """Return the content of a JSON file, or of a CSV file by its first column: lists of the others."""
    if path.suffix.lower() != ".csv":
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"expected {path} to be JSON, or CSV by a name that ends in .csv: {error}") from error
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"expected {path} to be CSV with the columns {', '.join(columns)}: {error}") from error
    if missing := [column for column in columns if column not in frame.columns]:
        raise ValueError(f"expected the columns {', '.join(columns)} in {path}, found no {', '.join(missing)}")
    key, *others = columns
    values = others[0] if len(others) == 1 else others
    return {name: rows[values].to_numpy().tolist() for name, rows in frame.groupby(key, sort=False)}
