"""Audit a history by its input embeddings, of which a few rows are read from each checkpoint without downloading it.

Files tell copies by their checksums. Weights that were saved again, in another format or precision, have other
checksums; their embeddings are still those of another step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from repdyn.hub.client import Hub
from repdyn.hub.errors import CheckpointError
from repdyn.hub.remote_tensors import read_embeddings
from repdyn.hub.transfer import map_concurrently
from repdyn.sweep.audit import CheckpointFiles, Finding, History, find_copies
from repdyn.sweep.targets import Selection, Target
from repdyn.tables.continuity import losses_out_of_line
from repdyn.tables.numbers import number_text
from repdyn.utils.names import shorten_list


@dataclass(frozen=True)
class EmbeddingStatistics:
    """Some input embeddings of a checkpoint, in numbers."""

    step: int
    revision: str
    median_norm: float
    """Median Euclidean norm."""
    cosine_to_first: float
    """Median cosine to the same embeddings of the first checkpoint that could be read."""
    digest: str
    """Checksum of their values in float32; equal for equal embeddings."""


def read_statistics(
    selection: Selection, history: History, hub: Hub, *, done: Callable[[], None] = lambda: None
) -> tuple[list[EmbeddingStatistics], dict[str, str]]:
    """Read some input embeddings of each checkpoint whose files are not those of another one.

    Args:
        selection: the checkpoints.
        history: their files, from :func:`repdyn.sweep.histories.list_histories`.
        hub: the hub that has them.
        done: called after each checkpoint.

    Returns:
        The statistics by ascending step, and by revision why others could not be read.

    Raises:
        SweepStoppedError: no connection.
    """
    targets = {target.revision: target for target in selection.targets}

    def read(checkpoint: CheckpointFiles) -> Tensor | str:
        try:
            return _embeddings(checkpoint, targets[checkpoint.revision], hub)
        except CheckpointError as error:
            return str(error)
        finally:
            done()

    checkpoints = checkpoints_to_read(history)
    found = map_concurrently(read, checkpoints)
    first = next((each for each in found if isinstance(each, Tensor)), None)
    statistics, problems = [], {}
    for checkpoint, embeddings in zip(checkpoints, found, strict=True):
        if isinstance(embeddings, Tensor) and first is not None and embeddings.shape == first.shape:
            statistics.append(_statistics(checkpoint, embeddings, first))
        else:
            other = "its input embeddings have another shape than those of the first checkpoint"
            problems[checkpoint.revision] = embeddings if isinstance(embeddings, str) else other
    return statistics, problems


def checkpoints_to_read(history: History) -> list[CheckpointFiles]:
    """Return the checkpoints with weights of their own, by ascending step."""
    copies = {copy.revision for group in find_copies(history) for copy in group.copies}
    return [each for each in history.checkpoints if each.weights and each.revision not in copies]


def embedding_findings(statistics: Sequence[EmbeddingStatistics], problems: dict[str, str]) -> Iterator[Finding]:
    """Yield equal embeddings in different files, steps out of line with both neighbours, and what could not be read."""
    groups: dict[str, list[EmbeddingStatistics]] = {}
    for each in statistics:
        groups.setdefault(each.digest, []).append(each)
    for members in groups.values():
        names = tuple(each.revision for each in members)
        if len(groups) == 1 and len(members) > 1:
            yield Finding("remark", "embeddings", "the input embeddings are the same in all checkpoints, not trained")
        elif len(members) > 1 and tuple(each.step for each in members) != (0, 1):
            sentence = f"the same input embeddings in different files, saved again or mixed: {shorten_list(names)}"
            steps = tuple(each.step for each in members)
            yield Finding("fault", "embeddings", sentence, names, steps, same_as=names[0])
    yield from _out_of_line(statistics)
    for reason in dict.fromkeys(problems.values()):
        names = tuple(name for name, other in problems.items() if other == reason)
        yield Finding("remark", "embeddings", f"embeddings not read: {shorten_list(names)}: {reason}", names)


def statistics_fields(statistics: Sequence[EmbeddingStatistics]) -> list[dict[str, Any]]:
    """Return the statistics as values of JSON."""
    return [
        {
            "revision": each.revision,
            "step": each.step,
            "median_norm": each.median_norm,
            "cosine_to_first": each.cosine_to_first,
        }
        for each in statistics
    ]


def _out_of_line(statistics: Sequence[EmbeddingStatistics]) -> Iterator[Finding]:
    names = {each.step: each.revision for each in statistics}
    seen: set[int] = set()
    for what, values, may_turn in (
        (
            f"cosine to those of {statistics[0].revision}" if statistics else "",
            [each.cosine_to_first for each in statistics],
            False,
        ),
        ("median norm", [each.median_norm for each in statistics], True),
    ):
        series = pd.Series(values, index=[each.step for each in statistics], dtype=float)
        judged = losses_out_of_line(series, may_turn=may_turn)
        if judged.are_too_many:
            sentence = f"the {what} of the input embeddings would be out of line in more than a sixth: not judged"
            yield Finding("remark", "embeddings", sentence)
        for jump in judged.found:
            if jump.step in seen:
                continue
            seen.add(jump.step)
            (before, value_before), (after, value_after) = jump.neighbours
            sentence = (
                f"the input embeddings of {names[jump.step]} are out of line: {what} {number_text(jump.loss)}, "
                f"{number_text(value_before)} at step {before:,} and {number_text(value_after)} at step {after:,}"
            )
            yield Finding("fault", "embeddings", sentence, (names[jump.step],), (jump.step,))


def _embeddings(checkpoint: CheckpointFiles, target: Target, hub: Hub) -> Tensor:
    prefix = f"{target.subfolder}/" if target.subfolder else ""
    for name, file in sorted(checkpoint.weights.items()):

        def fetch(start: int, stop: int, path: str = f"{prefix}{name}") -> bytes:
            return hub.read_range(target.repository, target.commit, path, start, stop)

        found = read_embeddings(name, fetch, file.n_bytes)
        if found is not None:
            return found
    raise CheckpointError("none of its files has input embeddings of a known name")


def _statistics(checkpoint: CheckpointFiles, embeddings: Tensor, first: Tensor) -> EmbeddingStatistics:
    return EmbeddingStatistics(
        checkpoint.step,
        checkpoint.revision,
        float(torch.linalg.vector_norm(embeddings, dim=1).median()),
        float(cosine_similarity(embeddings.double(), first.double(), dim=1).median()),
        sha256(embeddings.numpy().tobytes()).hexdigest(),
    )
