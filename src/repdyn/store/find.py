"""Open a store, at a path or a URL, and find those that a folder contains."""

import os
from collections.abc import Iterable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, TypeAlias

from repdyn.store.files import has_row_files
from repdyn.store.store import RUN_STORE, Store
from repdyn.utils.files import absolute_place, is_url
from repdyn.utils.mistyped import did_you_mean
from repdyn.utils.printing import shorten_list

_MAX_DEPTH = 4  # a store of train.py lies three folders below that of all runs: NAME/TIME/repdyn


def open_store(path: str | Path, *, refresh: bool = True) -> Store:
    """Return the store at a path; its folder is created with the first measurement.

    Args:
        path: a folder, or one with a single store at most four levels below it, such as that of a
            run; or a URL of fsspec such as ``s3://bucket/prefix`` or
            ``hf://datasets/ORG/NAME``. A remote store is read from a copy in the cache folder.
        refresh: whether to download at once what is new in a remote store.

    Raises:
        ValueError: no such filesystem, or its package is not installed.
        OSError: the path is a file or inside one, or the remote store cannot be read.

    >>> open_store("runs/none").runs()
    []
    """
    store = store_at(path, refresh=refresh)
    # an empty store is one to write to, unless the only one with measurements is below
    if not is_url(path) and not _has_measurements(store.path):
        below = find_stores(store.path)
        if len(below) == 1:
            return below[0]
    return store


def store_at(path: str | Path, *, refresh: bool = True) -> Store:
    """Return the store at this path and no other, to write to; arguments and errors as for
    :func:`open_store`.
    """
    if not is_url(path):
        path = Path(path).expanduser()
        _require_no_file(path)
        return Store(path)
    from repdyn.store.remote import RemoteStore  # with the packages of remote filesystems

    store = RemoteStore(str(path))
    if refresh:
        store.refresh()
    return store


def _require_no_file(path: Path) -> None:
    """Raise NotADirectoryError if a path is a file, or inside of one."""
    files = [str(folder) for folder in (path, *path.parents) if folder.is_file()]
    if not files:
        return
    which = f"the file {files[0]!r}"
    if files[0] != str(path):
        which = f"{str(path)!r}, in which {files[0]!r} is a file"
    raise NotADirectoryError(
        f"expected the folder of a store, got {which}; name a folder, which is created if needed"
    )


def find_store(path: str | Path) -> Store:
    """Return the store at a path, in the folder of a run, or below a folder that contains no other.

    Args:
        path: a store, or the URL of one; the folder of a run with the store ``repdyn``; or a folder
            with one store at most four levels below it.

    Raises:
        ValueError: no store with measurements there, or several.
    """
    stores = find_stores(path)
    if len(stores) == 1:
        return stores[0]
    if is_url(path):
        raise ValueError(
            f"expected a store with measurements, found none at {path}; name the folder of the "
            "runs' folders"
        )
    path = Path(path).expanduser()
    if stores:
        listed = shorten_list([str(store.path) for store in stores])
        raise ValueError(f"expected one store in {path}, got {len(stores)}; name one of {listed}")
    # such files are in the folder of one run, which is inside of the store's
    hint = f"; did you mean {path.parent}?" if any(path.glob("step*.parquet")) else ""
    if not path.exists():
        beside = [folder.name for folder in path.parent.glob("[!.]*/")]
        hint = f", which does not exist{did_you_mean(path.name, beside)}"
    raise ValueError(f"expected a store with measurements, found none in {path}{hint}")


StoreLike: TypeAlias = Store | str | Path
"""A store, or a place at which :func:`find_store` finds it."""


def stores_of(places: StoreLike | Iterable[StoreLike]) -> list[Store]:
    """Return one or several stores, each once; errors as for :func:`find_store`.

    Raises:
        TypeError: something that is neither a store nor a place of one.
    """
    # by their real paths: through a link, a store may be named twice
    stores = [_store_at(value) for value in _listed(places)]
    return list({store.path.resolve(): store for store in stores}.values())


def places_named(patterns: Iterable[str | Path]) -> tuple[str, ...]:
    """Return the places that patterns name, with * for any characters in the names of folders, each
    as a URL or an absolute path.

    Raises:
        ValueError: a pattern of which there is no folder.
    """
    places: list[str] = []
    for pattern in patterns:
        place = str(absolute_place(pattern))
        folders = [place] if is_url(place) else sorted(filter(os.path.isdir, glob(place)))
        if not folders:
            raise ValueError(
                "expected folders of earlier runs, with * for any characters, got "
                f"{str(pattern)!r}, which none is named like; name those that there are"
            )
        places += folders
    return tuple(dict.fromkeys(places))


def _listed(places: Any) -> list[Any]:
    """Return one thing as a list of it; a data frame, which is iterable over the names of its
    columns, is one thing.
    """
    is_one = isinstance(places, StoreLike | Mapping) or hasattr(places, "columns")
    return list(places) if isinstance(places, Iterable) and not is_one else [places]


def _store_at(value: Any) -> Store:
    if isinstance(value, Store):
        return value
    if isinstance(value, str | Path):
        return find_store(value)
    raise TypeError(
        "expected a store, its folder or address, or several of these, got "
        f"{type(value).__name__}; give {_place_of(value)}"
    )


def _place_of(value: object) -> str:
    """Return what to write in the place of something that is no store."""
    if isinstance(getattr(value, "store", None), Store):
        return "its .store"
    if hasattr(value, "columns"):
        return "repdyn.open_store(FOLDER), which its rows come from"
    return "repdyn.open_store(FOLDER)"


def find_stores(path: str | Path) -> list[Store]:
    """Return the store at a path or in the folder of a run, otherwise all stores at most four
    levels below the folder.

    Empty if there is none with measurements.
    """
    if is_url(path):
        store = store_at(path)
        return [store] if _has_measurements(store.path) else []
    # as where a store is written: Python has no shell around it that expands the home directory
    path = Path(path).expanduser()
    for folder in (path, path / RUN_STORE):
        if _has_measurements(folder):
            return [Store(folder)]
    return [Store(folder) for folder in sorted(_stores_below(path, _MAX_DEPTH))]


def _has_measurements(folder: Path) -> bool:
    """Return whether a folder has one with files of measurements; links are followed."""
    return any(has_row_files(inside) for inside in folder.glob("*/"))


def _stores_below(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the stores at most ``depth`` levels below a folder; links and hidden folders are not
    followed.
    """
    for child in folder.glob("[!.]*/"):
        # a link may lead out of the folder, or round in a circle
        if child.is_symlink():
            continue
        if _has_measurements(child):
            yield child
        elif depth > 1:
            yield from _stores_below(child, depth - 1)
