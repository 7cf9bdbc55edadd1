"""Read a few rows of a model's input embeddings from a file on the hub, without downloading the file.

Both formats of weights say where each tensor lies: safetensors in a header at the beginning, PyTorch's zip archives in
a directory at the end and a pickle, of which only the placement of tensors is read and nothing is executed.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor

from repdyn.hub.errors import CheckpointError

MAX_ROWS = 256
"""Number of successive embeddings that are read, from the middle of the vocabulary: 1 MB in width 1024."""
_EMBEDDINGS = re.compile(r"(.*\.)?(embed_in|wte|embed_tokens|word_embeddings|tok_embeddings|shared)\.weight")
_MAX_BYTES = 1 << 25
"""Most bytes that are read of one file: headers are far smaller."""
_PIECE = 1 << 16
_LOCAL_HEADER = 30
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
}
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, EOFError, RecursionError, OverflowError)


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
        places = _in_safetensors(file) if name.endswith(".safetensors") else _in_zip(file)
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


def _in_zip(file: BinaryIO) -> dict[str, _Place]:
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if entries["data.pkl"].file_size > _MAX_BYTES:
            raise ValueError(f"a pickle of {entries['data.pkl'].file_size:,} bytes")
        content = _PlacesUnpickler(io.BytesIO(archive.read(entries["data.pkl"]))).load()
        tensors = {
            name: value
            for name, value in (content.items() if isinstance(content, dict) else ())
            if isinstance(name, str) and isinstance(value, _Pickled) and _EMBEDDINGS.fullmatch(name)
        }
        return {name: value.place(file, entries[f"data/{value.storage.key}"]) for name, value in tensors.items()}


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype | None
    key: str


@dataclass(frozen=True)
class _Pickled:
    """The description of a tensor in a pickle."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def place(self, file: BinaryIO, entry: zipfile.ZipInfo) -> _Place:
        expected = tuple(math.prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        if self.storage.dtype is None or self.stride != expected or entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError("a tensor of another type, in another order, or compressed")
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER)
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        begin = entry.header_offset + _LOCAL_HEADER + names
        return _Place(self.storage.dtype, self.shape, begin + self.offset * self.storage.dtype.itemsize)


class _PlacesUnpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """An unpickler that builds dictionaries and the places of tensors; any other object becomes None.

    It is the one in Python: that in C reserves as much memory as the largest number in the file asks for.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, stride, *_: _Pickled(storage, offset, tuple(shape), tuple(stride))
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if module == "torch" and name.endswith("Storage"):
            return name
        return lambda *_: None

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key = pid[0], pid[1], pid[2]
        if kind != "storage":
            raise pickle.UnpicklingError(f"a reference to {kind!r:.40}")
        return _Storage(_STORAGES.get(storage), str(key))
