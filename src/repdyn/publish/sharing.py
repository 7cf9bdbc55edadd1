"""Stores sent to places that others read, without secrets and local paths, and fetched from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from repdyn.publish.card import write_card
from repdyn.store import Store
from repdyn.store.copied_files import delete_superseded, superseded_files
from repdyn.store.keys import own_folder
from repdyn.store.mirror import Mirror, is_shared
from repdyn.store.published import prepare, write_certificate
from repdyn.store.remote import RemoteStore
from repdyn.utils.files import temporary_folder, write_atomically


@dataclass
class Pushed:
    """The files that a push has sent, or would send."""

    url: str
    files: list[str] = field(default_factory=list)
    n_current: int = 0
    """Files that are there already."""
    n_bytes: int = 0
    paths: list[str] = field(default_factory=list)
    """Local paths that are shortened to their last component."""
    deleted: list[str] = field(default_factory=list)
    """Files there whose rows are in other files now, since the store was made compact or divided."""


@dataclass
class Pulled:
    """The files that a pull has changed in a folder."""

    files: list[str]
    """New and changed ones."""
    deleted: list[str]
    """Files whose rows are in other files now."""


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
        url: of the folder, which is created; files in it that the store lacks are kept, unless the store has their
            rows in another file.
        author: who measured, for the certificate and the citation; nobody is named unless given.
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
        _send_card(target, pushed, licence, author, dry_run)
    return pushed


def _send_card(target: RemoteStore, pushed: Pushed, licence: str | None, author: str | None, dry_run: bool) -> None:
    if dry_run:
        pushed.files.append("README.md")
        return
    with temporary_folder("card") as folder:
        files = {path.name: path for path in write_card(target, folder, target.location, licence, author)}
        target.remote.change(files)
        pushed.files += files
        pushed.n_bytes += sum(path.stat().st_size for path in files.values())


def pull(url: str, folder: Path) -> Pulled:
    """Copy a remote store to a folder.

    Files of the folder that the remote store lacks are kept, unless it has their rows in another file.

    Raises:
        ValueError: there are no measurements, the folder is a file, or it has a symbolic link in place of that of a
            run.
        OSError: the remote store cannot be read, or the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"expected a folder for the copy, got the file {folder}; name another one")
    source = RemoteStore(url)
    source.refresh()
    names = sorted(source.mirror.local_files())
    if not names:
        raise ValueError(f"expected a store with measurements, found none at {source.location}; check the URL")
    for run in {Path(name).parent for name in names}:
        own_folder(folder / run)
    copied = [name for name in names if not _same(source.path / name, folder / name)]
    for name in copied:
        _copy(source.path / name, folder / name)
    superseded = _superseded(folder, source.path)
    delete_superseded(superseded, lambda path, is_deleted: None)
    return Pulled(copied, _names(superseded, folder))


def _fill(store: Store, mirror: Mirror, pushed: Pushed, author: str | None, dry_run: bool) -> None:
    """Put the shared files of a store into the copy of a remote one, to be uploaded."""
    names = sorted(path.relative_to(store.path).as_posix() for path in store.path.rglob("*") if path.is_file())
    # no deeper: steps that a training has gone back from are nobody else's
    names = [name for name in names if is_shared(name) and name.count("/") == 1]
    if not any(name.endswith(".parquet") for name in names):
        raise ValueError(f"expected a store with measurements, found none in {store.location}")
    with temporary_folder("push") as staged:
        paths: set[str] = set()
        runs: dict[str, str] = {}
        for name in names:
            prepare(store.path / name, staged, name, paths, runs)
        sent = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*.parquet"))
        write_certificate(staged, sent, author)
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
        superseded = _superseded(mirror.path, staged)
        pushed.deleted = _names(superseded, mirror.path)
        if not dry_run:
            delete_superseded(
                superseded,
                lambda path, is_deleted: mirror.mark(path.relative_to(mirror.path).as_posix(), is_deleted=is_deleted),
            )


def _superseded(copy: Path, source: Path) -> dict[Path, list[str]]:
    """Return the files of a copy whose rows its source has in other files, with the parts that the source lacks."""
    folders = sorted({path.parent.name for path in source.glob("*/step*.parquet")})
    found = (superseded_files(copy / name, source / name) for name in folders)
    return {path: names for files in found for path, names in files.items()}


def _names(files: Iterable[Path], folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _copy(source: Path, target: Path) -> None:
    write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))
