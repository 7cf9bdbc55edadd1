"""Names that others chose never become paths outside of the store or the folder for downloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_rows import row

from repdyn import open_store
from repdyn.store import MeasurementKey

NAMES = ["../../x", "..", "/etc/x", "a\\b", "nul\0", "new\nline", "é" * 200]
NAME_IDS = [f"{name[:12]!r}" for name in NAMES]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in; what lies around it stays as it is."""
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    (tmp_path / "a" / "victim.safetensors").write_text("untouched")
    yield inside
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "family", "hub_cache"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b", "victim.safetensors"}
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["c"]
    assert (tmp_path / "a" / "victim.safetensors").read_text() == "untouched"


@pytest.mark.parametrize("field", ["run", "probe", "metrics", "checkpoint"])
@pytest.mark.parametrize("name", NAMES, ids=NAME_IDS)
def test_every_part_of_a_key_stays_in_the_store(outside, name, field):
    store = open_store(outside / "store")
    name = name if field == "run" else name[:20]  # the others are digests
    key = MeasurementKey(
        **(
            {"run": "run", "step": 8, "probe": "p", "metrics": "m", "checkpoint": "c"}
            | {field: name}
        )
    )
    written = store.write(key, [row(run=key.run)])
    assert written.resolve().parent.parent == (outside / "store").resolve()
    assert store.read(key) == [row(run=key.run, measured_at=store.read(key)[0].measured_at)]
    assert store.runs() == [key.run]
    assert store.to_pandas(key.run)["run"].tolist() == [key.run]
    assert key.failed not in store


SHARD = "model-00001-of-00001.safetensors"
