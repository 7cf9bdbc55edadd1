"""Damage to the file of a checkpoint: every changed byte is found, so that the checkpoint is measured again."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from stored_rows import KEY, row

from repdyn import Store, open_store
from repdyn.store import content_digest, parquet_files
from repdyn.store.content_digest import content_with_digest, is_intact
from repdyn.store.schema import to_table

ROWS = [row(layer=layer, value=1.5 * layer) for layer in range(4)]


@pytest.fixture
def store(tmp_path) -> Store:
    store = open_store(tmp_path)
    store.write(KEY, ROWS)
    return store


def put(store: Store, content: bytes) -> None:
    (store.path / KEY.filename).write_bytes(content)


def with_flip(content: bytes, place: int, mask: int) -> bytes:
    return content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]


def test_every_changed_byte_is_found():
    whole = content_with_digest(to_table(ROWS))
    assert is_intact(whole) is True
    missed = [place for place in range(len(whole)) if is_intact(with_flip(whole, place, 1 << place % 8)) is not False]
    assert missed == []


def test_a_store_does_not_contain_what_is_damaged(store):
    whole = (store.path / KEY.filename).read_bytes()
    assert KEY in store
    size = len(whole)
    damaged = [with_flip(whole, place, 255) for place in range(0, size, 101)]
    damaged += [whole[:end] for end in (*range(0, size, 499), *range(size - 12, size))]
    damaged += [whole[:start] + bytes(512) + whole[start + 512 :] for start in range(0, size, 512)]  # a lost sector
    damaged += [whole + b"\0", whole[1:], whole + whole]
    for content in damaged:
        put(store, content)
        assert KEY not in store
    put(store, whole)
    assert KEY in store


def test_a_file_with_a_digest_is_not_decoded(store, monkeypatch):
    monkeypatch.setattr(parquet_files, "read_table", lambda *given, **options: pytest.fail("decoded"))
    assert KEY in store


@pytest.mark.parametrize("writer", ["without a digest", "with other columns"])
def test_files_of_other_versions_are_decoded(store, monkeypatch, writer):
    path = store.path / KEY.filename
    if writer == "without a digest":
        pq.write_table(to_table(ROWS), path, write_page_checksum=True)
    else:
        with monkeypatch.context() as other:
            other.setattr(content_digest, "_KEY", "repdyn.sha256.01234567")
            store.write(KEY, ROWS)
    whole = path.read_bytes()
    assert is_intact(whole) is None
    assert KEY in store
    assert store.read(KEY) == ROWS
    for place in (8, len(whole) // 4, len(whole) - 6):
        put(store, with_flip(whole, place, 255))
        assert KEY not in store


def test_the_digest_is_kept_where_files_are_joined_and_divided_again(store):
    other = replace(KEY, step=16)
    store.write(other, ROWS)
    store.compact("run")
    store.split("run")
    assert is_intact((store.path / KEY.filename).read_bytes()) is True
    assert store.read(KEY) == store.read(other) == ROWS
