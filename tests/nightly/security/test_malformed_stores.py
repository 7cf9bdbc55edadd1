"""Stores and probes that are damaged or made by somebody else: a clear error that names the file, or what was written."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from stored_rows import KEY, row
from sweeping import attempt

from repdyn import Probe, open_store
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.plan import partition_tasks
from repdyn.probe.design import DENSE
from repdyn.store import read_rows
from repdyn.store.schema import to_table
from repdyn.utils.attempts import TimeoutRunner

FUZZ = settings(
    deadline=None, max_examples=120, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ROWS = [row(layer=layer, value=1.5 * layer) for layer in range(4)]
TOKENS, LENGTHS = torch.arange(48), torch.full((4,), 12)
MEMBERS = (TOKENS % 2).to(torch.uint8)
PLAN = {"special_ids": [3], "batch_vectors": 8, "n_batches": 2, "seed": 0, "pad_id": 0, "name": "tokens"}
PLAN |= {"mask_id": None, "bytes_per_token": None, "design": DENSE.rule}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """A file of a store."""
    return open_store(tmp_path_factory.mktemp("store")).write(KEY, ROWS).read_bytes()


def put(folder: Path, content: bytes) -> Path:
    path = folder / KEY.filename
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def assert_refused_or_right(folder: Path) -> None:
    store = open_store(folder)
    rows, refusal = attempt(lambda: store.read(KEY))
    if refusal is None:
        assert rows == ROWS
    else:
        assert str(folder) in refusal
        assert KEY not in store  # it is measured again
        with pytest.raises(ValueError, match="found none"):
            store.to_pandas()


@FUZZ
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3))
def test_a_store_with_flipped_bits_never_gives_other_numbers(whole, tmp_path, flips):
    damaged = bytearray(whole)
    for where, mask in flips:
        damaged[int(where * len(damaged))] ^= mask
    put(tmp_path, bytes(damaged))
    assert_refused_or_right(tmp_path)


def with_column(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    table = to_table(ROWS)
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind))


@pytest.mark.parametrize(
    "table",
    [
        with_column("value", [None, 1.0, 2.0, 3.0]),
        with_column("run", [None] * 4),
        with_column("layer", [[1]] * 4),
        with_column("step", ["eight"] * 4),
        with_column("step", [1 << 63] * 4, pa.uint64()),
        to_table(ROWS).slice(0, 0),
        pa.table({"a": [1]}),
    ],
    ids=["null", "nulls", "list", "text", "too large", "empty", "others"],
)
def test_a_store_with_columns_of_other_kinds(tmp_path, table):
    path = put(tmp_path, b"")
    pq.write_table(table, path)
    with pytest.raises(ValueError, match=str(path)):
        open_store(tmp_path).read(KEY)


def test_a_named_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, whole, small_probe):
    from repdyn.checkpoints.plan import Task
    from repdyn.checkpoints.revisions import Target

    task, store = Task(Target("run", 8, "step8", path=tmp_path), small_probe), open_store(tmp_path)
    path = tmp_path / task.key(SweepOptions(metrics=("anisotropy",))).filename
    path.parent.mkdir()
    os.mkfifo(path)
    read = TimeoutRunner(20)
    assert read("reading", lambda: partition_tasks([task], store, SweepOptions(metrics=("anisotropy",))).waiting) == [
        task
    ]
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read .* not a file"):
        read("reading", lambda: read_rows(path))
    written = store.write(task.key(SweepOptions(metrics=("anisotropy",))), [row()])
    assert written.is_file()


def probe_file(path: Path, plan: object = None, **changes: Any) -> Path:
    given = {"tokens": TOKENS, "lengths": LENGTHS, "hash": "0" * 16} | changes
    given |= given.pop("more", {})
    metadata = {"repdyn_probe": plan if isinstance(plan, str) else json.dumps(PLAN if plan is None else plan)}
    metadata |= {"hash": given.pop("hash")} if given["hash"] is not None else {}
    given.pop("hash", None)
    save_file({name: tensor for name, tensor in given.items() if tensor is not None}, path, metadata=metadata)
    return path


def test_a_probe_of_another_program_reads(tmp_path):
    probe = Probe(TOKENS, LENGTHS, special_ids=(3,), batch_vectors=8, n_batches=2, design=DENSE)
    assert Probe.load(probe_file(tmp_path / "p", hash=probe.hash)).hash == probe.hash
    probe = probe.with_classes({"rare": MEMBERS.bool()}).with_topics(TOKENS)
    more = {"class.rare": MEMBERS, "topics": TOKENS.clone(), "somebody's own": TOKENS.clone()}
    assert Probe.load(probe_file(tmp_path / "p", hash=probe.hash, more=more)).hash == probe.hash


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "hash"),
        ({"hash": None}, "header"),
        ({"tokens": TOKENS.float()}, "torch.float32"),
        ({"tokens": TOKENS - 5}, "got -5"),
        ({"lengths": LENGTHS + 1}, "lengths"),
        ({"lengths": torch.tensor([(1 << 63) - 1, (1 << 63) - 1, 50])}, "lengths"),
        ({"plan": "[" * 100_000}, "JSON"),
        ({"plan": PLAN | {"more": 1}}, "plan"),
        ({"plan": PLAN | {"seed": -1}}, "Seed"),
        ({"plan": PLAN | {"n_batches": 10**9}}, "too small"),
        ({"plan": PLAN | {"special_ids": [[3]]}}, "hash"),
        ({"more": {"class.rare": MEMBERS.bool()}}, "uint8"),
        ({"more": {"class.rare": MEMBERS[:-1]}}, "rare"),
        ({"more": {"class.../../x": MEMBERS}}, "'../../x'"),
        ({"more": {"topics": TOKENS.int()}}, "topics"),
        ({"more": {"topics": TOKENS - 5}}, "topics"),
    ],
)
def test_a_probe_that_is_not_what_it_should_be(tmp_path, changes, word):
    path = probe_file(tmp_path / "probe.safetensors", **changes)
    with pytest.raises(ValueError, match=word) as refusal:
        Probe.load(path)
    assert str(path) in str(refusal.value)


def header(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


HEADERS = {
    "empty": b"",
    "huge": header(b"{}", (1 << 64) - 1),
    "no JSON": header(b"{not json}"),
    "nested": header(b"[" * 50_000),
    "overlapping": header(json.dumps({name: {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]} for name in ("tokens", "lengths")}).encode()) + bytes(16),
    "negative": header(b'{"tokens":{"dtype":"I64","shape":[-2],"data_offsets":[0,16]}}') + bytes(16),
    "overflowing": header(b'{"tokens":{"dtype":"I64","shape":[4611686018427387904,4],"data_offsets":[0,16]}}') + bytes(16),
    "beyond the end": header(b'{"tokens":{"dtype":"I64","shape":[20],"data_offsets":[0,160]}}') + bytes(16),
    "numbers as metadata": header(b'{"__metadata__":{"repdyn_probe":5}}'),
}  # fmt: skip


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_probe_whose_header_lies(tmp_path, content):
    path = tmp_path / "probe.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"expected a probe written by Probe.save, got {path}"):
        Probe.load(path)
