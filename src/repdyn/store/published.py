"""The files of a store as they are published: without secrets and local paths, and with a certificate."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from repdyn.probe import Probe
from repdyn.store.compact_files import compact_parts, generation_of, is_compact, read_parts, write_compact
from repdyn.store.keys import folder_name
from repdyn.store.parquet_files import read_table, write_single
from repdyn.store.schema import COLUMNS
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

_PUBLISHED = re.compile(r"[\w.-]+(/[\w.-]+)?(@[0-9a-f]{7,64}(/.*)?)?")
# the name of a folder may have spaces and apostrophes; it ends at what quotes or separates paths
_EDGE, _INSIDE = r"""[^\s/\\:;"'`<>|*?]""", r"""[^\r\n\t/\\:;"'`<>|*?]"""
_NAME = rf"(?![,)\]}}]){_EDGE}(?:(?:{_INSIDE}|(?<=\w)'(?=\w))*{_EDGE})?"
_LOCAL_PATH = re.compile(
    r"(?P<address>\b(?!file:)[a-z][a-z0-9+.-]*://[^\s\"'<>]+)"
    rf"|(?<![\w/.@~)\]}}])(?:file://)?(?:~[\w.-]*|\.{{1,2}}(?:/\.{{1,2}})*)?(?:/+{_NAME})+/?"
    rf"|(?<![\w\\/.])(?:[a-z]:|\\{{2,}}{_NAME}|~|\.{{1,2}})(?:[\\/]+{_NAME})+[\\/]*",
    re.IGNORECASE,
)
"""An address, which is left as it is, or a path of POSIX or of Windows."""
_SEPARATORS = re.compile(r"[\\/]+")
_VERSIONS = ("repdyn_version", "torch_version", "transformers_version")


def prepare(source: Path, folder: Path, name: str, paths: set[str], runs: dict[str, str]) -> None:
    """Write a file of a store as it is sent, and add the local paths that it contained.

    Args:
        source: the file.
        folder: for the published store; a run whose name is a path gets a folder without it.
        name: of the file in its store, such as "run/step000000008-probe-metrics.parquet".
        paths: to which the local paths are added.
        runs: to which the name of the run is added, by the name of its folder in the published store.

    Raises:
        ValueError: it cannot be read, or two runs have the same name without their paths.
    """
    target = folder / name
    if source.suffix == ".parquet":
        return _prepare_rows(source, folder, target.name, paths, runs)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".safetensors":
        probe = Probe.load(source)
        shown = redacted(without_paths(probe.name))
        if shown != probe.name:
            replace(probe, name=shown).save(target)  # the hash is that of the content
            return
    shutil.copyfile(source, target)


def _prepare_rows(source: Path, folder: Path, filename: str, paths: set[str], runs: dict[str, str]) -> None:
    names = list(compact_parts(source)) if is_compact(filename) else [filename]
    parts = list(read_parts(source, names, COLUMNS)) if is_compact(filename) else [(filename, read_table(source))]
    cleaned = [(name, _cleaned(table, paths)) for name, table in parts]
    run, published = (some[0][1]["run"][0].as_py() for some in (parts, cleaned))
    target = folder / folder_name(published) / filename
    if (other := runs.setdefault(target.parent.name, run)) != run:
        raise ValueError(
            f"expected runs that differ in more than their folders, got two called {published}: {other} and {run}; "
            "push one of them from a store of its own, to another URL"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if all(new is old for (_, new), (_, old) in zip(cleaned, parts, strict=True)):
        shutil.copyfile(source, target)
    elif is_compact(filename):
        write_compact(target.parent, iter(cleaned), generation_of(source))  # named after its content
    else:
        write_single(target, cleaned[0][1])


def _cleaned(table: pa.Table, paths: set[str]) -> pa.Table:
    """Return rows without local paths and secrets; the same table where there are none."""
    table = _clean(table, "checkpoint", lambda text: without_path(text, paths))
    for column in ("run", "model", "stage", "revision", "module", "settings", "same_as", "mixed_with", "reason"):
        table = _clean(table, column, lambda text: redacted(without_paths(text)))
    return table


def _clean(table: pa.Table, column: str, clean: Callable[[str], str]) -> pa.Table:
    """Return a table with a function applied to a column of strings; the same table where that changes nothing."""
    distinct = [value for value in table[column].unique().to_pylist() if value is not None]
    changed = {value: new for value in distinct if (new := clean(value)) != value}
    if not changed:
        return table
    values = [changed.get(value, value) for value in table[column].to_pylist()]
    index = table.schema.get_field_index(column)
    return table.set_column(index, table.schema.field(index), pa.array(values, pa.string()))


def without_path(checkpoint: str, paths: set[str] | None = None) -> str:
    r"""Return the name of a checkpoint without the folders it lies in; one of a repository stays as it is.

    >>> without_path("/home/me/runs/step8"), without_path(r"C:\runs\step8")
    ('step8', 'step8')
    >>> without_path("EleutherAI/pythia-70m@0123456789ab")
    'EleutherAI/pythia-70m@0123456789ab'
    """
    if not checkpoint.startswith((".", "~", "/")) and "@" in checkpoint and _PUBLISHED.fullmatch(checkpoint):
        return redacted(checkpoint)
    name = _last_component(checkpoint)
    if name != checkpoint and paths is not None:
        paths.add(checkpoint)
    return redacted(name)


def without_paths(text: str) -> str:
    r"""Return a text with local paths shortened to their last component.

    Where the end of a path is not clear, because folders may have spaces in their names, rather more than less is
    removed.

    >>> without_paths("cannot read /home/me/runs/step8/model.safetensors: no such file")
    'cannot read model.safetensors: no such file'
    >>> without_paths(r"C:\Users\me\x.txt, '../../home/me/y'"), without_paths("/my disk/a b/z")
    ("x.txt, 'y'", 'z')
    >>> without_paths("https://hub.example/a/b and tokens/s and EleutherAI/pythia-70m")
    'https://hub.example/a/b and tokens/s and EleutherAI/pythia-70m'
    """
    return _LOCAL_PATH.sub(lambda found: found["address"] or _last_component(found[0]), text)


def _last_component(path: str) -> str:
    return _SEPARATORS.split(path.rstrip("/\\"))[-1]


def write_certificate(folder: Path, names: Iterable[str], author: str | None) -> None:
    """Write who measured these files, with which versions; named after its content, so that it is written once."""
    digests, versions, dates, n_rows = {}, set(), [], 0
    for name in names:
        table = read_table(folder / name, [*_VERSIONS, "measured_at"])
        digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        versions |= {tuple(row.values()) for row in table.select(list(_VERSIONS)).to_pylist()}
        dates += table["measured_at"].to_pylist()
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
