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
from repdyn.store.schema import SCHEMA, to_table
from repdyn.utils.attempts import TimeoutRunner

FUZZ = settings(
    deadline=None, max_examples=120, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ROWS = [row(layer=layer, value=1.5 * layer) for layer in range(4)]
TOKENS, LENGTHS = torch.arange(48), torch.full((4,), 12)
MEMBERS = (TOKENS % 2).to(torch.uint8)
PLAN = {"special_ids": [3], "batch_vectors": 8, "n_batches": 2, "seed": 0, "pad_id": 0, "name": "tokens"}


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


@pytest.mark.parametrize("name", ["run", "reason", "settings"])
def test_text_that_is_no_utf_8(tmp_path, name):
    binary = pa.array([b"\xff\xfe"] * 4).buffers()
    bad = pa.Array.from_buffers(pa.string(), 4, binary)
    table = to_table(ROWS)
    pq.write_table(table.set_column(table.column_names.index(name), SCHEMA.field(name), bad), put(tmp_path, b""))
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read "):
        open_store(tmp_path).read(KEY)


def test_a_named_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, whole, small_probe):
    from repdyn.checkpoints.plan import Task
    from repdyn.checkpoints.targets import Target

    task, store = Task(Target("run", 8, "step8", path=tmp_path), small_probe), open_store(tmp_path)
    path = tmp_path / task.key(SweepOptions()).filename
    path.parent.mkdir()
    os.mkfifo(path)
    read = TimeoutRunner(20)
    assert read("reading", lambda: partition_tasks([task], store, SweepOptions()).waiting) == [task]
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read .* not a file"):
        read("reading", lambda: read_rows(path))
    written = store.write(task.key(SweepOptions()), [row()])
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
    ("changes", "message"),
    [
        ({}, "expected content with the hash 0000000000000000 in "),
        ({"hash": None}, "without its header"),
        ({"tokens": None}, "expected a probe written by Probe.save, got "),
        (
            {"tokens": TOKENS.float()},
            r"expected tokens of one dimension and of torch.int64, got \(48,\) of torch.float32",
        ),
        ({"tokens": TOKENS.view(4, 12)}, r"expected tokens of one dimension and of torch.int64, got \(4, 12\)"),
        ({"tokens": TOKENS - 5}, "expected token ids >= 0, got -5"),
        ({"lengths": LENGTHS + 1}, "expected lengths of at least 1 that add up to 48 tokens, got 4 that add up to 52"),
        ({"lengths": torch.tensor([(1 << 63) - 1, (1 << 63) - 1, 50])}, "expected lengths of at least 1 that add up"),
        ({"plan": "{"}, "its plan is not valid JSON"),
        ({"plan": "[" * 100_000}, "its plan is not valid JSON"),
        ({"plan": {}}, "expected a plan of batch_vectors, bytes_per_token, design, mask_id, n_batches, "),
        (
            {"plan": PLAN | {"more": 1}},
            "expected a plan of batch_vectors, bytes_per_token, design, mask_id, n_batches, ",
        ),
        ({"plan": PLAN | {"seed": -1}}, "expected a whole number from 0 to 4294967295 as seed, got -1"),
        ({"plan": PLAN | {"batch_vectors": "8"}}, "as batch_vectors, got '8'"),
        ({"plan": PLAN | {"n_batches": 10**9}}, "the probe is too small"),
        ({"plan": PLAN | {"special_ids": [[3]]}}, "expected token ids as pad_id and in special_ids"),
        ({"plan": PLAN | {"name": 5}}, "expected a string as name, got 5"),
        ({"more": {"class.rare": MEMBERS}}, "expected content with the hash 0000000000000000 in "),
        (
            {"more": {"class.rare": MEMBERS.bool()}},
            "expected zeros and ones of torch.uint8 in 'class.rare', got other torch.bool",
        ),
        (
            {"more": {"class.rare": MEMBERS[:-1]}},
            r"expected the class 'rare' as torch.bool of shape \(48,\), got \(47,\)",
        ),
        ({"more": {"class.rare": MEMBERS * 0}}, "the class 'rare' is too small"),
        ({"more": {"class.../../x": MEMBERS}}, r"expected a class named in lower case, .* got '../../x'"),
        ({"more": {"topics": TOKENS.clone()}}, "expected content with the hash 0000000000000000 in "),
        (
            {"more": {"topics": TOKENS.int()}},
            r"expected topics as torch.int64 of shape \(48,\), got \(48,\) of torch.int32",
        ),
        ({"more": {"topics": TOKENS - 5}}, "expected topics >= -1, got -5"),
        ({"more": {"topics": TOKENS * 0 - 1}}, "expected topics of some tokens, got -1 for all of them"),
    ],
)
def test_a_probe_that_is_not_what_it_should_be(tmp_path, changes, message):
    path = probe_file(tmp_path / "probe.safetensors", **changes)
    with pytest.raises(ValueError, match=message) as refusal:
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
