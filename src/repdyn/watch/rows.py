"""The rows of one run in memory, compressed: most columns are the same in all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from repdyn.store.files import is_failure
from repdyn.store.frame import BY_LAYER, as_frame, encoded
from repdyn.store.schema import FINISHED, LOSS, PROBE_LOSS

_FILE = "file"
_MERGED_AT = 32
"""Number of files whose tables are merged: a table of a few rows takes many times the memory of its values."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The fields of one file that the table of runs shows."""

    step: int
    measured_at: str
    loss: float
    """Training loss; NaN if it is not stored."""
    probe_loss: float
    """Loss on the probe; NaN if it is not stored."""
    failed: bool
    finished: bool
    """Whether it is that of a finished model, whose step is none of a training."""


class RunRows:
    """The rows of one run, by the name of the file that they were read from."""

    def __init__(self) -> None:
        self.run = ""
        """Name of the run."""
        self.model = ""
        self.checkpoints: dict[str, Checkpoint] = {}
        """By the name of the file."""
        self._chunks: list[pa.Buffer] = []
        self._places: dict[str, tuple[int, int]] = {}
        """Chunk and number in it, by the name of the file."""
        self._apart: dict[str, pa.Table] = {}
        self._failed: dict[str, pa.Table] = {}

    def put(self, name: str, table: pa.Table) -> None:
        """Take the rows of a file in place of those it had before."""
        self.drop(name)
        failed = is_failure(name)
        self.run, self.model = table["run"][0].as_py(), table["model"][0].as_py()
        self.checkpoints[name] = _checkpoint(table, failed)
        (self._failed if failed else self._apart)[name] = table
        if len(self._apart) >= _MERGED_AT:
            self._merge()

    def drop(self, name: str) -> None:
        """Forget the rows of a file, if there are any."""
        if self.checkpoints.pop(name, None) is None:
            return
        for apart in (self._apart, self._failed):
            apart.pop(name, None)
        if place := self._places.pop(name, None):
            chunk, number = place
            self._chunks[chunk] = _packed(_unpacked(self._chunks[chunk]).filter(pc.field(_FILE) != number))

    def frame(self) -> pd.DataFrame:
        """Return all rows as :meth:`repdyn.store.Store.to_pandas` does."""
        merged = [_unpacked(chunk).drop_columns(_FILE) for chunk in self._chunks]
        tables = [*merged, *self._apart.values(), *self._failed.values()]
        return as_frame(encoded(pa.concat_tables(tables)), order=BY_LAYER)

    @property
    def nbytes(self) -> int:
        """Return the memory that the rows take."""
        tables = [*self._apart.values(), *self._failed.values()]
        return sum(chunk.size for chunk in self._chunks) + sum(table.nbytes for table in tables)

    def _merge(self) -> None:
        tables = []
        for number, (name, table) in enumerate(self._apart.items()):
            self._places[name] = len(self._chunks), number
            tables.append(table.append_column(_FILE, pa.repeat(pa.scalar(number, pa.int32()), len(table))))
        self._chunks.append(_packed(pa.concat_tables(tables)))
        self._apart.clear()


def _packed(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def _unpacked(packed: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all()


def _checkpoint(table: pa.Table, failed: bool) -> Checkpoint:
    return Checkpoint(
        step=table["step"][0].as_py(),
        measured_at=max(table["measured_at"].unique().to_pylist()),
        loss=_scalar(table, LOSS),
        probe_loss=_scalar(table, PROBE_LOSS),
        failed=failed,
        finished=table["stage"][0].as_py() == FINISHED,
    )


def _scalar(table: pa.Table, name: str) -> float:
    at = pc.index(table["metric"], name).as_py()
    return table["value"][at].as_py() if at >= 0 else math.nan
