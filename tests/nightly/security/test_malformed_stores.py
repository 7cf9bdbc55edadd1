"""Stores and probes that are damaged or made by somebody else: a clear error that names the file, or what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from stored_rows import KEY, row
from sweeping import attempt

from repdyn import Probe, open_store
from repdyn.probe.design import DENSE

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
