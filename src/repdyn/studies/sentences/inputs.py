"""Groups of paraphrases, changed sentences and collections of texts, built in or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from repdyn.text.source import load_corpus
from repdyn.studies.sentences.examples import CHANGES, PARAPHRASES


class Groups(NamedTuple):
    """Sentences that say the same as the others of their group."""

    sentences: tuple[str, ...]
    groups: tuple[str, ...]
    """Name of each sentence's group."""


class Changes(NamedTuple):
    """Sentences with one thing changed."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    kinds: tuple[str, ...]
    """What is changed in each."""


class Collection(NamedTuple):
    """Texts of one source."""

    name: str
    texts: tuple[str, ...]


def read_groups(path: Path | None) -> Groups:
    """The built-in paraphrases, or those of a file.

    Args:
        path: JSON ``{"group": ["sentence", ...], ...}`` or ``[["sentence", ...], ...]``, or CSV with the columns group
            and sentence.

    Raises:
        ValueError: the file says something else.
        OSError: it cannot be read.
    """
    if path is None:
        of_groups: Any = PARAPHRASES
    elif path.suffix.lower() == ".csv":
        frame = _csv(path, ("group", "sentence"))
        of_groups = {name: group["sentence"].tolist() for name, group in frame.groupby("group", sort=False)}
    else:
        of_groups = _json(path)
    if isinstance(of_groups, list):
        of_groups = {f"group {number}": group for number, group in enumerate(of_groups, start=1)}
    if not isinstance(of_groups, Mapping) or not all(map(_are_texts, of_groups.values())):
        raise ValueError(
            f'expected groups of sentences in {path}, {{"group": ["sentence", ...], ...}}, got something else; give '
            "lists of texts, none of them empty"
        )
    lines = [(text, str(name)) for name, group in of_groups.items() for text in group]
    return Groups(tuple(text for text, _ in lines), tuple(name for _, name in lines))


def read_changes(path: Path | None) -> Changes:
    """The built-in changed sentences, or those of a file.

    Args:
        path: JSON ``{"kind": [["before", "after"], ...], ...}``, or CSV with the columns kind, before and after.

    Raises:
        ValueError: the file says something else.
        OSError: it cannot be read.
    """
    if path is None:
        of_kinds: Any = CHANGES
    elif path.suffix.lower() == ".csv":
        frame = _csv(path, ("kind", "before", "after"))
        by_kind = frame.groupby("kind", sort=False)
        of_kinds = {kind: part[["before", "after"]].to_numpy().tolist() for kind, part in by_kind}
    else:
        of_kinds = _json(path)
    if not isinstance(of_kinds, Mapping) or not all(
        isinstance(pairs, Sequence) and all(_are_texts(pair) and len(pair) == 2 for pair in pairs)
        for pairs in of_kinds.values()
    ):
        raise ValueError(
            f'expected changed sentences in {path}, {{"kind": [["before", "after"], ...], ...}}, got something else; '
            "give pairs of texts, none of them empty"
        )
    lines = [(*pair, str(kind)) for kind, pairs in of_kinds.items() for pair in pairs]
    before, after, kinds = zip(*lines, strict=True) if lines else ((), (), ())
    return Changes(before, after, kinds)


def read_collection(source: str, n_texts: int) -> Collection:
    """Paragraphs of a text, spread evenly over it.

    Args:
        source: "builtin", "enwik8" or a path; see :func:`repdyn.text.source.load_corpus`.
        n_texts: how many at most. Paragraphs end at blank lines; lines are taken where no blank line parts them.

    Raises:
        ValueError: fewer than three different paragraphs.
        OSError: the text cannot be read.
    """
    corpus = load_corpus(source)
    text = corpus.data.decode("utf-8", errors="ignore")
    parts = [part.split("\n\n") for part in (text, text.replace("\n", "\n\n"))]
    paragraphs = next((part for part in parts if len(part) >= n_texts), parts[-1])
    distinct = list(dict.fromkeys(stripped for part in paragraphs if any(map(str.isalnum, stripped := part.strip()))))
    if len(distinct) < 3:
        raise ValueError(f"expected at least 3 paragraphs in {source}, got {len(distinct)}; give a longer text")
    chosen = np.unique(np.linspace(0, len(distinct) - 1, min(n_texts, len(distinct))).round().astype(int))
    return Collection(corpus.name, tuple(distinct[number] for number in chosen))


def _are_texts(values: object) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(text, str) and bool(text.strip()) for text in values)
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected {path} to be JSON, or CSV by a name that ends in .csv: {error}") from error


def _csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"expected {path} to be CSV with the columns {', '.join(columns)}: {error}") from error
    if missing := [column for column in columns if column not in frame.columns]:
        raise ValueError(f"expected the columns {', '.join(columns)} in {path}, found no {', '.join(missing)}")
    return frame
