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
from small import random_tokens
from stored_rows import KEY, row
from sweeping import attempt

from repdyn import Probe, open_store
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.plan import partition_tasks
from repdyn.probe.design import DENSE
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
        with pytest.raises(ValueError, match="expected"):
            store.to_pandas()


@pytest.mark.slow
@FUZZ
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3))
def test_a_store_with_flipped_bits_never_gives_other_numbers(whole, tmp_path, flips):
    damaged = bytearray(whole)
    for where, mask in flips:
        damaged[int(where * len(damaged))] ^= mask
    put(tmp_path, bytes(damaged))
    assert_refused_or_right(tmp_path)


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.7, 0.99, 0.9999])
def test_a_store_that_is_cut_short(whole, tmp_path, share):
    put(tmp_path, whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read .*step000000008"):
        open_store(tmp_path).read(KEY)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1" * 3, b"\xff" * 100, b"x" * 1000, "text".encode("utf-16")], ids=len
)
def test_a_store_of_something_else(tmp_path, content):
    put(tmp_path, content)
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read "):
        open_store(tmp_path).to_pandas()


def test_a_folder_in_the_place_of_a_file(tmp_path, whole):
    folder = tmp_path / KEY.filename
    folder.mkdir(parents=True)
    (folder / "part.parquet").write_bytes(whole)
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read "):
        open_store(tmp_path).to_pandas()


def test_folders_named_as_partitions_add_no_columns(tmp_path):
    store = open_store(tmp_path / "step=5" / "run=other")
    store.write(KEY, ROWS)
    assert store.read(KEY) == ROWS


def test_names_that_are_no_utf_8_are_no_measurements(tmp_path, whole):
    put(tmp_path, whole)
    (tmp_path / "run" / "more\udcff.parquet").write_bytes(b"x")
    assert open_store(tmp_path).read(KEY) == ROWS


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
        open_store(tmp_path).to_pandas()


@pytest.mark.parametrize("name", ["run", "reason", "settings"])
def test_text_that_is_no_utf_8(tmp_path, name):
    binary = pa.array([b"\xff\xfe"] * 4).buffers()
    bad = pa.Array.from_buffers(pa.string(), 4, binary)
    table = to_table(ROWS)
    pq.write_table(table.set_column(table.column_names.index(name), SCHEMA.field(name), bad), put(tmp_path, b""))
    with pytest.raises(ValueError, match="expected a Parquet file of measurements, cannot read "):
        open_store(tmp_path).read(KEY)


def test_what_other_programs_make_of_the_same_rows_reads(tmp_path):
    table = with_column("run", ["run"] * 4, pa.large_string())
    table = table.set_column(table.column_names.index("dim"), "dim", pa.array([64] * 4, pa.int32()))
    table = table.append_column("mine", pa.array([1] * 4))
    pq.write_table(table, put(tmp_path, b""))
    assert open_store(tmp_path).read(KEY) == ROWS


def test_a_sweep_measures_again_what_does_not_read(tmp_path, whole, small_probe):
    from repdyn.checkpoints.plan import Task
    from repdyn.checkpoints.targets import Target

    task, store = Task(Target("run", 8, "step8", path=tmp_path), small_probe), open_store(tmp_path)
    path = tmp_path / task.key(SweepOptions()).filename
    path.parent.mkdir()
    for content in (whole[:-9], b"", bytes(1000)):
        path.write_bytes(content)
        assert partition_tasks([task], store, SweepOptions()).waiting == [task]


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
        read("reading", store.to_pandas)
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


@pytest.mark.slow
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
        ({"tokens": TOKENS.int()}, "expected tokens of one dimension and of torch.int64"),
        ({"tokens": TOKENS.view(4, 12)}, r"expected tokens of one dimension and of torch.int64, got \(4, 12\)"),
        ({"tokens": TOKENS - 5}, "expected token ids >= 0, got -5"),
        ({"tokens": TOKENS[:0]}, "expected lengths of at least 1 that add up to 0 tokens"),
        ({"lengths": LENGTHS.bool()}, "expected lengths of one dimension and of torch.int64"),
        ({"lengths": LENGTHS + 1}, "expected lengths of at least 1 that add up to 48 tokens, got 4 that add up to 52"),
        ({"lengths": torch.tensor([49, -1])}, "expected lengths of at least 1 that add up to 48 tokens"),
        ({"lengths": torch.tensor([0, 48])}, "expected lengths of at least 1 that add up to 48 tokens"),
        ({"lengths": torch.tensor([(1 << 63) - 1, (1 << 63) - 1, 50])}, "expected lengths of at least 1 that add up"),
        ({"plan": "{"}, "its plan is not valid JSON"),
        ({"plan": "[" * 100_000}, "its plan is not valid JSON"),
        ({"plan": []}, "expected a plan of batch_vectors, bytes_per_token, design, mask_id, n_batches, "),
        ({"plan": {}}, "expected a plan of batch_vectors, bytes_per_token, design, mask_id, n_batches, "),
        (
            {"plan": PLAN | {"more": 1}},
            "expected a plan of batch_vectors, bytes_per_token, design, mask_id, n_batches, ",
        ),
        ({"plan": PLAN | {"seed": -1}}, "expected a whole number from 0 to 4294967295 as seed, got -1"),
        ({"plan": PLAN | {"seed": 1 << 40}}, "expected a whole number from 0 to 4294967295 as seed"),
        ({"plan": PLAN | {"batch_vectors": "8"}}, "as batch_vectors, got '8'"),
        ({"plan": PLAN | {"batch_vectors": True}}, "as batch_vectors, got True"),
        ({"plan": PLAN | {"n_batches": 10**9}}, "the probe is too small"),
        ({"plan": PLAN | {"n_batches": 0}}, "at least one batch"),
        ({"plan": PLAN | {"special_ids": [[3]]}}, "expected token ids as pad_id and in special_ids"),
        ({"plan": PLAN | {"special_ids": 3}}, "expected token ids as pad_id and in special_ids"),
        ({"plan": PLAN | {"pad_id": None}}, "expected token ids as pad_id and in special_ids"),
        ({"plan": PLAN | {"name": 5}}, "expected a string as name, got 5"),
        ({"more": {"class.rare": MEMBERS}}, "expected content with the hash 0000000000000000 in "),
        (
            {"more": {"class.rare": MEMBERS.bool()}},
            "expected zeros and ones of torch.uint8 in 'class.rare', got other torch.bool",
        ),
        ({"more": {"class.rare": MEMBERS * 3}}, "expected zeros and ones of torch.uint8 in 'class.rare'"),
        ({"more": {"class.rare": MEMBERS.long()}}, "in 'class.rare', got other torch.int64"),
        (
            {"more": {"class.rare": MEMBERS[:-1]}},
            r"expected the class 'rare' as torch.bool of shape \(48,\), got \(47,\)",
        ),
        ({"more": {"class.rare": MEMBERS.view(4, 12)}}, r"expected the class 'rare' .* got \(4, 12\)"),
        ({"more": {"class.rare": MEMBERS[:0]}}, r"expected the class 'rare' .* got \(0,\)"),
        ({"more": {"class.rare": MEMBERS * 0}}, "the class 'rare' is too small"),
        ({"more": {"class.": MEMBERS}}, "expected a class named in lower case, .* got ''"),
        ({"more": {"class.all": MEMBERS}}, "expected a class named in lower case, .* got 'all'"),
        ({"more": {"class.../../x": MEMBERS}}, r"expected a class named in lower case, .* got '../../x'"),
        ({"more": {"topics": TOKENS.clone()}}, "expected content with the hash 0000000000000000 in "),
        (
            {"more": {"topics": TOKENS.int()}},
            r"expected topics as torch.int64 of shape \(48,\), got \(48,\) of torch.int32",
        ),
        ({"more": {"topics": TOKENS[:5].clone()}}, r"expected topics as torch.int64 of shape \(48,\), got \(5,\)"),
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
    "short": b"\x01\x02",
    "huge": header(b"{}", (1 << 64) - 1),
    "large": header(b"{}", 1 << 40),
    "no JSON": header(b"{not json}"),
    "a list": header(b"[]"),
    "no UTF-8": header(b'{"\xff": 1}'),
    "nested": header(b"[" * 50_000),
    "overlapping": header(json.dumps({name: {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]} for name in ("tokens", "lengths")}).encode()) + bytes(16),
    "backwards": header(b'{"tokens":{"dtype":"I64","shape":[2],"data_offsets":[16,0]}}') + bytes(16),
    "negative": header(b'{"tokens":{"dtype":"I64","shape":[-2],"data_offsets":[0,16]}}') + bytes(16),
    "overflowing": header(b'{"tokens":{"dtype":"I64","shape":[4611686018427387904,4],"data_offsets":[0,16]}}') + bytes(16),
    "unknown type": header(b'{"tokens":{"dtype":"Q8","shape":[2],"data_offsets":[0,16]}}') + bytes(16),
    "beyond the end": header(b'{"tokens":{"dtype":"I64","shape":[20],"data_offsets":[0,160]}}') + bytes(16),
    "numbers as metadata": header(b'{"__metadata__":{"repdyn_probe":5}}'),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_probe_whose_header_lies(tmp_path, content):
    path = tmp_path / "probe.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"expected a probe written by Probe.save, got {path}"):
        Probe.load(path)


def test_a_probe_that_is_a_folder_or_missing(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"expected a probe written by Probe.save, got no file at {path}"):
            Probe.load(path)


@pytest.mark.slow
@FUZZ
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=2))
def test_a_probe_with_flipped_bits_is_refused_or_the_same(tmp_path, flips):
    probe = Probe.from_tokens(random_tokens(8, 6), special_ids=[7], max_vectors=24, batch_vectors=12)
    probe = probe.with_classes({"rare": probe.tokens > 20}).with_topics(probe.tokens % 3)
    path = tmp_path / "probe.safetensors"
    probe.save(path)
    damaged = bytearray(path.read_bytes())
    for where, mask in flips:
        damaged[int(where * len(damaged))] ^= mask
    path.write_bytes(damaged)
    loaded, refusal = attempt(lambda: Probe.load(path))
    assert loaded.hash == probe.hash if refusal is None else str(path) in refusal


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "\ud800"], r"expected texts that UTF-8 can encode, got '\\ud800' at index 1; decode files with"),
        ([b"bytes"], "expected texts, got bytes at index 0; decode bytes first"),
        ([None], "expected texts, got NoneType at index 0"),
        ("a text", r"expected texts to be an iterable of strings, got a single string; pass \[text\]"),
        ([], "the probe is too small"),
    ],
)
def test_texts_that_are_none(texts, message):
    from repdyn.data.byte_tokenizer import byte_tokenizer

    with pytest.raises(ValueError, match=message):
        Probe.from_texts(texts, byte_tokenizer(), max_vectors=12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_any_text_makes_a_probe_or_is_too_short(texts):
    from repdyn.data.byte_tokenizer import byte_tokenizer

    data = [text.encode() for text in texts]
    probe, refusal = attempt(
        lambda: Probe.from_texts(texts, byte_tokenizer(), sequence_length=6, max_vectors=6, batch_vectors=3)
    )
    if refusal is None:
        assert set(probe.tokens.tolist()) <= {byte for text in data for byte in text}
    else:
        assert "the probe is too small" in refusal
