"""Stores sent to places that others read, without secrets and local paths, and fetched from there."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from repdyn.probe import Probe
from repdyn.publish.card import write_card
from repdyn.store import Store
from repdyn.store.mirror import Mirror, is_shared
from repdyn.store.parquet_files import read_table
from repdyn.store.remote import RemoteStore
from repdyn.utils.atomic_files import write_atomically
from repdyn.utils.redaction import redacted

_PUBLISHED = re.compile(r"[\w.-]+(/[\w.-]+)?(@[0-9a-f]{7,64}(/.*)?)?")
# at least two folders: "/" alone also separates words
_LOCAL_PATH = re.compile(r"(?<![\w:/.@])(?:~|/[\w.@+-]+)(?:/[\w.@+ -]*[\w.@+-])+/?")
_VERSIONS = ("repdyn_version", "torch_version", "transformers_version")


@dataclass
class Pushed:
    """What a push has sent, or would send."""

    url: str
    files: list[str] = field(default_factory=list)
    n_current: int = 0
    """Files that are there already."""
    n_bytes: int = 0
    paths: list[str] = field(default_factory=list)
    """Local paths that are shortened to their last component."""


def push(
    store: Store,
    url: str,
    *,
    author: str | None = None,
    dry_run: bool = False,
    licence: str | None = None,
    card: bool | None = None,
) -> Pushed:
    """Upload the rows, probes and certificates of a store; what is there already is not sent again.

    Local paths are replaced by their last component and secrets by a word. Alert rules, logs, states, figures and locks
    stay here. What was sent when a push was interrupted is not sent again.

    Args:
        store: any; one that is the local copy of ``url`` is uploaded as it is.
        url: of the folder, which is created; files in it that the store lacks are kept.
        author: who measured, for the certificate; nobody is named unless given.
        dry_run: send nothing.
        licence: identifier for the card, such as "cc-by-4.0".
        card: write the card README.md with a figure; None to do so on the Hugging Face hub.

    Raises:
        ValueError: the store has no measurements, or a file cannot be read.
        OSError: the remote store cannot be read or written; the same call continues.
    """
    target = RemoteStore(url)
    mirror = target.mirror
    mirror.refresh()
    pushed = Pushed(target.location)
    if store.path.resolve() != target.path.resolve():
        _fill(store, mirror, pushed, author, dry_run)
    elif mirror.waiting():
        pushed.files = [one.name for one in mirror.waiting() if not one.is_deleted]
        pushed.n_bytes = sum((mirror.path / name).stat().st_size for name in pushed.files)
    if not dry_run:
        mirror.upload_all()
    if card is True or (card is None and target.remote.protocol == "hf"):
        _send_card(target, pushed, licence, dry_run)
    return pushed


def _send_card(target: RemoteStore, pushed: Pushed, licence: str | None, dry_run: bool) -> None:
    if dry_run:
        pushed.files.append("README.md")
        return
    with TemporaryDirectory(prefix="repdyn-card-") as folder:
        files = {path.name: path for path in write_card(target, Path(folder), target.location, licence)}
        target.remote.upload_many(files)
        pushed.files += files
        pushed.n_bytes += sum(path.stat().st_size for path in files.values())


def pull(url: str, folder: Path) -> list[str]:
    """Copy a remote store to a folder, and return the names of the new and changed files.

    Files of the folder that the remote store lacks are kept.

    Raises:
        ValueError: there are no measurements.
        OSError: the remote store cannot be read, or the folder cannot be written.
    """
    source = RemoteStore(url)
    source.refresh()
    names = sorted(source.mirror.local_files())
    if not names:
        raise ValueError(f"expected a store with measurements, found none at {source.location}; check the URL")
    copied = [name for name in names if not _same(source.path / name, folder / name)]
    for name in copied:
        _copy(source.path / name, folder / name)
    return copied


def _fill(store: Store, mirror: Mirror, pushed: Pushed, author: str | None, dry_run: bool) -> None:
    """Put the shared files of a store into the copy of a remote one, to be uploaded."""
    names = sorted(path.relative_to(store.path).as_posix() for path in store.path.rglob("*") if path.is_file())
    names = [name for name in names if is_shared(name)]
    rows = [name for name in names if name.endswith(".parquet")]
    if not rows:
        raise ValueError(f"expected a store with measurements, found none in {store.location}")
    staged = mirror.path.parent / "push"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        paths: set[str] = set()
        for name in names:
            _prepare(store.path / name, staged / name, paths)
        _write_certificate(staged, rows, author)
        pushed.paths = sorted(paths)
        for path in sorted(path for path in staged.rglob("*") if path.is_file()):
            name = path.relative_to(staged).as_posix()
            # a probe is named after its content
            is_known_probe = path.suffix == ".safetensors" and (mirror.path / name).exists()
            if is_known_probe or _same(path, mirror.path / name):
                pushed.n_current += 1
                continue
            pushed.files.append(name)
            pushed.n_bytes += path.stat().st_size
            if not dry_run:
                mirror.mark(name)
                _copy(path, mirror.path / name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _prepare(source: Path, target: Path, paths: set[str]) -> None:
    """Write a file as it is sent, and add the local paths that it contained."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".safetensors":
        probe = Probe.load(source)
        name = redacted(without_paths(probe.name))
        if name != probe.name:
            replace(probe, name=name).save(target)  # the hash is that of the content
            return
    if source.suffix != ".parquet":
        shutil.copyfile(source, target)
        return
    table = read_table(source)
    cleaned = _clean(table, "checkpoint", lambda text: without_path(text, paths))
    for column in ("run", "model", "revision", "module", "reason"):
        cleaned = _clean(cleaned, column, lambda text: redacted(without_paths(text)))
    if cleaned is table:
        shutil.copyfile(source, target)
    else:
        pq.write_table(cleaned, target, write_page_checksum=True)


def _clean(table: pa.Table, column: str, clean: Callable[[str], str]) -> pa.Table:
    """Return a table with a function applied to a column of strings; the same table where that changes nothing."""
    distinct = [value for value in pc.unique(table[column]).to_pylist() if value is not None]
    changed = {value: new for value in distinct if (new := clean(value)) != value}
    if not changed:
        return table
    values = [changed.get(value, value) for value in table[column].to_pylist()]
    index = table.schema.get_field_index(column)
    return table.set_column(index, table.schema.field(index), pa.array(values, pa.string()))


def without_path(checkpoint: str, paths: set[str] | None = None) -> str:
    """Return the name of a checkpoint without the folders it lies in; one of a repository stays as it is.

    >>> without_path("/home/me/runs/step8"), without_path("EleutherAI/pythia-70m@0123456789ab")
    ('step8', 'EleutherAI/pythia-70m@0123456789ab')
    """
    if not checkpoint.startswith((".", "~", "/")) and "@" in checkpoint and _PUBLISHED.fullmatch(checkpoint):
        return redacted(checkpoint)
    name = PurePosixPath(checkpoint.rstrip("/")).name
    if name != checkpoint and paths is not None:
        paths.add(checkpoint)
    return redacted(name)


def without_paths(text: str) -> str:
    """Return a text with absolute paths shortened to their last component.

    >>> without_paths("cannot read /home/me/runs/step8/model.safetensors: no such file")
    'cannot read model.safetensors: no such file'
    >>> without_paths("https://hub.example/a/b and tokens/s and EleutherAI/pythia-70m")
    'https://hub.example/a/b and tokens/s and EleutherAI/pythia-70m'
    """
    return _LOCAL_PATH.sub(lambda found: PurePosixPath(found[0].rstrip("/")).name, text)


def _write_certificate(folder: Path, names: Iterable[str], author: str | None) -> None:
    """Write who measured these files, with which versions; named after its content, so that it is written once."""
    digests, versions, dates, n_rows = {}, set(), [], 0
    for name in names:
        table = read_table(folder / name, [*_VERSIONS, "measured_at"])
        digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        versions |= {tuple(row.values()) for row in table.select(list(_VERSIONS)).to_pylist()}
        dates += [pc.min(table["measured_at"]).as_py(), pc.max(table["measured_at"]).as_py()]
        n_rows += len(table)
    content = {
        "author": None if author is None else redacted(author),
        "measured": [min(dates), max(dates)],
        "versions": [dict(zip(_VERSIONS, version, strict=True)) for version in sorted(versions)],
        "n_rows": n_rows,
        "sha256": digests,
    }
    name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    text = json.dumps(content | {"certificate": 1}, indent=1, sort_keys=True)
    write_atomically(folder / "certificates" / f"{name}.json", lambda temporary: temporary.write_text(text))


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _copy(source: Path, target: Path) -> None:
    write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))
