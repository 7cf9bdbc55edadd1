"""Input embeddings tell weights of another step: they change smoothly in a training.

An audit reads a few rows of each checkpoint from the hub without downloading it: files tell copies by their checksums,
but weights that were saved again, in another format or precision, have other checksums. A sweep compares those of each
checkpoint with those of the first.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from repdyn.checkpoints.audit import CheckpointFiles, Finding, History, find_copies
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub, map_concurrently
from repdyn.checkpoints.targets import Selection, Target
from repdyn.tables.continuity import losses_out_of_line
from repdyn.tables.numbers import number_text
from repdyn.utils.files import write_atomically
from repdyn.utils.names import shorten_list

MAX_ROWS = 256
"""Number of successive embeddings that an audit reads, from the middle of the vocabulary: 1 MB in width 1024."""
N_COMPARED = 1024
"""Number of embeddings that are kept of the first checkpoint, evenly spaced over the vocabulary: 4 MB in width 1024."""
_NAME, _TENSOR = "input_embeddings.safetensors", "embeddings"
_EMBEDDINGS = re.compile(r"(.*\.)?(embed_in|wte|embed_tokens|word_embeddings|tok_embeddings|shared)\.weight")
_MAX_BYTES = 1 << 25
"""Most bytes that are read of one file: headers are far smaller."""
_PIECE = 1 << 16
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    OverflowError,
    RuntimeError,
)

log = logging.getLogger(__name__)


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
        history: their files, from :func:`repdyn.checkpoints.audit.list_histories`.
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
    return [{name: value for name, value in asdict(each).items() if name != "digest"} for each in statistics]


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


class RemoteContent(io.RawIOBase):
    """The content of a remote file, read by ranges.

    Args:
        fetch: returns the bytes from one position to another.
        n_bytes: size of the file.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], n_bytes: int) -> None:
        self._fetch, self._n_bytes = fetch, n_bytes
        self._position, self._n_read = 0, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._n_bytes}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        stop = min(self._n_bytes, self._position + len(buffer))
        self._n_read += max(0, stop - self._position)
        if self._n_read > _MAX_BYTES:
            raise CheckpointError(
                f"expected a description of tensors of at most {_MAX_BYTES:,} bytes, got a longer one"
            )
        content = self._fetch(self._position, stop) if stop > self._position else b""
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


class _Place(NamedTuple):
    """The position of a matrix in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def read_embeddings(name: str, fetch: Callable[[int, int], bytes], n_bytes: int) -> Tensor | None:
    """Return some input embeddings of a model, (n_rows, dim) in float32; None if the file has none.

    Args:
        name: of the file, which tells its format.
        fetch: returns the bytes from one position of the file to another.
        n_bytes: size of the file.

    Raises:
        CheckpointError: the file is damaged, or in a format whose parts cannot be read.
    """
    file = cast(BinaryIO, io.BufferedReader(RemoteContent(fetch, n_bytes), _PIECE))
    try:
        places = _in_safetensors(file) if name.endswith(".safetensors") else _in_archive(file)
    except (*_UNREADABLE, zipfile.BadZipFile, pickle.UnpicklingError, NotImplementedError) as error:
        raise CheckpointError(f"the places of the tensors in {name} cannot be read: {error}") from error
    found = [key for key, place in places.items() if _EMBEDDINGS.fullmatch(key) and len(place.shape) == 2]
    if not found:
        return None
    place = places[min(found, key=len)]
    rows, dim = place.shape
    n_rows = min(MAX_ROWS, rows)
    row_bytes = dim * place.dtype.itemsize
    start = place.start + (rows - n_rows) // 2 * row_bytes
    if min(place.shape) < 1 or place.start < 0 or place.start + rows * row_bytes > n_bytes:
        raise CheckpointError(f"{name} describes embeddings of {rows} x {dim} that it does not hold")
    content = fetch(start, start + n_rows * row_bytes)
    return torch.frombuffer(bytearray(content), dtype=place.dtype).view(n_rows, dim).float()


def _in_safetensors(file: BinaryIO) -> dict[str, _Place]:
    size = int.from_bytes(file.read(8), "little")
    if size > _MAX_BYTES:
        raise ValueError(f"a header of {size:,} bytes")
    header: Mapping[str, Any] = json.loads(file.read(size))
    return {
        name: _Place(_DTYPES[entry["dtype"]], tuple(map(int, entry["shape"])), 8 + size + int(entry["data_offsets"][0]))
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] in _DTYPES
    }


def _in_archive(file: BinaryIO) -> dict[str, _Place]:
    """Return the places of the embeddings in an archive of torch, of which no values and no code are loaded."""
    if not zipfile.is_zipfile(file):
        raise ValueError("no zip archive")
    file.seek(0)
    with FakeTensorMode():  # says where the values lie instead of reading them
        content = torch.load(file, weights_only=True)
    tensors = content.items() if isinstance(content, dict) else ()
    return {
        name: _Place(tensor.dtype, tuple(tensor.shape), _offset(tensor))
        for name, tensor in tensors
        if isinstance(tensor, Tensor) and _EMBEDDINGS.fullmatch(str(name)) and tensor.dtype in _DTYPES.values()
    }


def _offset(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise ValueError("a tensor in another order")
    start: Any = tensor.untyped_storage()
    return start._checkpoint_offset + tensor.storage_offset() * tensor.dtype.itemsize


def input_embeddings(model: nn.Module) -> Tensor | None:
    """Return the input embeddings, (n_tokens, dim); None for a model that has none in its memory."""
    try:
        embeddings = model.get_input_embeddings() if isinstance(model, PreTrainedModel) else None
    except NotImplementedError:  # a model of sounds, or of two towers
        return None
    weight = getattr(embeddings, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.device.type == "meta":
        return None
    return weight.detach()


def median_norm(embeddings: Tensor) -> float:
    """Return the median Euclidean norm."""
    return float(torch.linalg.vector_norm(embeddings, dim=1, dtype=torch.float32).median())


def cosine_to_first(embeddings: Tensor, folder: Path, step: int, *, is_first: bool) -> tuple[int, float] | None:
    """Compare input embeddings with those of the checkpoint of the run that was measured first.

    Args:
        embeddings: shape (n_tokens, dim).
        folder: where those of the first checkpoint are kept, :data:`N_COMPARED` of them.
        step: of the embeddings.
        is_first: whether to keep these if there are none, or none that can be read.

    Returns:
        The step of the first checkpoint, and the median cosine, in [-1, 1]; None if there is nothing to compare with,
        or embeddings of another shape.
    """
    places = torch.linspace(0, len(embeddings) - 1, min(N_COMPARED, len(embeddings))).long()
    own = embeddings.detach()[places.to(embeddings.device)].float().cpu()
    path = folder / _NAME
    try:
        with safe_open(path, framework="pt") as file:
            first, first_step = file.get_tensor(_TENSOR), int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if not is_first:
            return None
        if not isinstance(error, FileNotFoundError):
            log.warning("The input embeddings in %s cannot be read and are replaced by those of step %d", path, step)
        try:
            kept = {_TENSOR: own.contiguous()}
            write_atomically(path, lambda partial: save_file(kept, partial, metadata={"step": str(step)}))
        except (OSError, SafetensorError) as failure:
            log.warning("The input embeddings of step %d could not be kept for comparison: %s", step, failure)
            return None
        first, first_step = own, step
    if first.shape != own.shape:
        return None
    return first_step, float(cosine_similarity(own.double(), first.double(), dim=1).median())
