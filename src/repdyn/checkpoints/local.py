"""The checkpoints in a local folder: their steps, by their names or what is in them, and what
distinguishes two that were saved under one name.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from repdyn.checkpoints.errors import CheckpointError, model_errors
from repdyn.checkpoints.hub import ADAPTER, GGUF
from repdyn.checkpoints.suites import require_distinct_steps
from repdyn.checkpoints.targets import Selection, Target, parse_revision
from repdyn.store.schema import FINISHED
from repdyn.utils.printing import shorten_list
from repdyn.utils.steps import DEFAULT_PATTERN, step_of, whole_number

LIGHTNING = ".ckpt"
"""Suffix of Lightning's checkpoints."""
_LAST = re.compile(r"last(-v\d+)?\.ckpt")
_LONGEST_METADATA = 1 << 28
_FILES = (LIGHTNING, GGUF)
_LOADED = {".pt", ".pth", ".bin", ".safetensors"}
"""Suffixes of files that a function of the user's may load, beside Lightning's."""
_WEIGHTS = {".safetensors", ".bin", ".json", *_FILES}


def checkpoints_folder(folder: Path) -> Path:
    """Return the absolute path of the checkpoints in a run's folder; any other path unchanged."""
    inside = folder / "hf_checkpoints"
    return inside.absolute() if inside.is_dir() else folder.absolute()


def is_model(folder: Path) -> bool:
    """Return whether a folder has the configuration of a model, or of an adapter of one."""
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


def find_checkpoints(
    folder: str | Path, run: str | None = None, pattern: str | None = None
) -> Selection:
    """Return the checkpoints in a folder, by ascending step, and the names of what is not used as
    one.

    A checkpoint is a subfolder with a ``config.json``, or an adapter's, and its step in the name
    (``step512``, ``checkpoint-512``). A folder with such a file but without such subfolders, or a
    single file, is one checkpoint; without a step in its name it is a finished model. Where there
    is neither, Lightning files (``last.ckpt``) of :class:`repdyn.models.LanguageModel` are used,
    which contain their step, or else GGUF files, of which each has a step in its name or one is
    there alone. A step without a model beside them counts too, so that a sweep reports it.

    Args:
        folder: folder of the checkpoints, or of a run with a subfolder ``hf_checkpoints``.
        run: name of the run in the rows; by default the last two parts of the path.
        pattern: of the names of folders and GGUF files, as for :func:`parse_revision`.
    """
    with_steps = partial(_with_steps, pattern=pattern or DEFAULT_PATTERN)
    folder = checkpoints_folder(Path(folder))
    run = run or "/".join(folder.resolve().parts[1:][-2:])
    if folder.is_file() and is_model(folder.parent) and folder.suffix not in _FILES:
        folder = folder.parent  # of a single file of weights
    inside = sorted(folder.glob("[!.]*"))  # others are unfinished
    links_first = sorted(filter(is_model, inside), key=lambda path: not path.is_symlink())
    # no links to others of them
    models = sorted({path.resolve(): path for path in links_first}.values())
    lightning, quantised = ([path for path in inside if path.suffix == suffix] for suffix in _FILES)
    without_model = [path for path in inside if path.is_dir() and _is_named_by_step(path)]
    own = [folder] if is_model(folder) or folder.suffix in _FILES else []
    found = (
        with_steps(models)
        or with_steps(own)
        or _finished(own)
        or _without_repetition(with_steps(lightning))
        or with_steps(quantised)
        or _finished(quantised)
    )
    if not found and models:
        raise ValueError(
            "expected the steps of checkpoints in their names, got "
            f"{shorten_list([path.name for path in models])} in {folder}; say where the number is, "
            "as in pattern='.*?(?P<step>[0-9]+).*', or give one of the folders"
        )
    # of Lightning's version_0, of accelerate's project
    if not found and (folder / "checkpoints").is_dir():
        return find_checkpoints(folder / "checkpoints", run, pattern)
    if not found:
        raise ValueError(
            "expected checkpoints (folders such as step512 with a config.json, .ckpt or .gguf "
            f"files) in {folder}, got none; give the folder that contains them, such as "
            "runs/quickstart/TIME/hf_checkpoints; weights without a configuration are measured by "
            "repdyn.sweep([(step, load), ...], probe=...)"
        )
    require_distinct_steps([(at.step, str(at.path)) for at in found], "sweep them separately")
    by_step = {at.step: at for at in [*with_steps(without_model), *found]}
    used = {at.path for at in by_step.values()}
    if used & {*lightning}:
        lightning = []  # last.ckpt may repeat one of them
    unused = [
        path.name
        for path in [*own, *models, *lightning, *quantised, *without_model]
        if path not in used
    ]
    targets = [
        replace(at, run=run, commit=_fingerprint(Path(at.origin)))
        for _, at in sorted(by_step.items())
    ]
    return Selection(run, tuple(targets), unmatched=tuple(dict.fromkeys(unused)))


def find_own_files(
    folder: str | Path, run: str | None = None, pattern: str | None = None
) -> Selection:
    """Return the checkpoints in a folder that a function of the user's loads: Lightning files, else
    files of weights and folders with a step in their names; or a single file.

    The arguments are those of :func:`find_checkpoints`.
    """
    folder = Path(folder).absolute()
    run = run or "/".join(folder.resolve().parts[1:][-2:])
    inside = [folder] if folder.is_file() else sorted(folder.glob("[!.]*"))
    lightning = [path for path in inside if path.suffix == LIGHTNING]
    named = (
        parse_revision(path.stem if path.is_file() else path.name, pattern or DEFAULT_PATTERN)
        for path in inside
    )
    targets = _without_repetition([_lightning(path) for path in lightning]) or [
        replace(target, path=path, revision=path.name)
        for path, target in zip(inside, named, strict=True)
        if target is not None and (path.is_dir() or path.suffix in _LOADED)
    ]
    if not targets and (folder / "checkpoints").is_dir():
        return find_own_files(folder / "checkpoints", run, pattern)
    if not targets:
        raise ValueError(
            f"expected .ckpt files, or files of weights or folders with a step in their names, in "
            f"{folder}, got none; give the folder that contains them, or say where the number is, "
            "as in pattern='.*?(?P<step>[0-9]+).*'"
        )
    require_distinct_steps([(at.step, str(at.path)) for at in targets], "sweep them separately")
    return Selection(
        run,
        tuple(
            replace(at, run=run, weights_kind=None, commit=_fingerprint(Path(str(at.path))))
            for at in sorted(targets, key=lambda at: at.step)
        ),
    )


def _is_named_by_step(folder: Path) -> bool:
    """Return whether a folder is named as a checkpoint and has no model, not saved to its end."""
    return step_of(folder.name) is not None and not is_model(folder)


def _finished(paths: Iterable[Path]) -> list[Target]:
    return [
        Target("", 0, path.resolve().name, stage=FINISHED, path=path, weights_kind=_kind(path))
        for path in paths
    ]


def _with_steps(paths: Iterable[Path], *, pattern: str) -> list[Target]:
    """Return the checkpoints that have a step in their names, or in the content of a Lightning
    file.
    """
    found = []
    for path in paths:
        if path.suffix == LIGHTNING:
            found.append(_lightning(path))
        elif at := parse_revision(path.resolve().name, pattern):
            found.append(replace(at, path=path, weights_kind=_kind(path)))
    return found


def _without_repetition(found: Sequence[Target]) -> list[Target]:
    """Leave out a ``last.ckpt`` that duplicates the newest of the other Lightning files."""
    steps = {at.step for at in found if not _LAST.fullmatch(at.revision)}
    return [at for at in found if not (_LAST.fullmatch(at.revision) and at.step in steps)]


def _lightning(path: Path) -> Target:
    """Return the step in the content of a Lightning file, and whether it has raw weights beside
    averaged ones, as Lightning's WeightAveraging saves it."""
    # with torch, which other folders do without
    from repdyn.checkpoints.weights import (
        lightning_content,
    )

    try:
        with model_errors(f"{path} does not load"):
            content = lightning_content(path)
            step = whole_number(str(content["global_step"]), "global_step")
    except CheckpointError as error:
        if (by_name := parse_revision(path.resolve().name)) is None:
            raise ValueError(
                "expected Lightning checkpoints, got a damaged one without a step in its name: "
                f"{error}; move it away"
            ) from error
        # measuring stores the failure for this step
        return replace(by_name, revision=path.name, path=path)
    return Target(
        "",
        step,
        path.name,
        path=path,
        weights_kind="raw" if "current_model_state" in content else None,
    )


def _kind(path: Path) -> str | None:
    """Return the name of a GGUF file's quantisation, such as "Q4_K_M"; "GGUF" where the file does
    not say.
    """
    if path.suffix != GGUF:
        return None
    try:
        from gguf import LlamaFileType
    except ImportError as error:
        raise ValueError(
            f"expected the package gguf for {path.name}; pip install 'repdyn[gguf]'"
        ) from error
    key = b"general.file_type"
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            # of all its metadata this alone, since the strings of a vocabulary take seconds to read
            at = content.find(key, 0, _LONGEST_METADATA)
            _type_of_value, number = struct.unpack_from("<II", content, at + len(key))
        return LlamaFileType(number).name.removeprefix("MOSTLY_") if at >= 0 else "GGUF"
    # damaged, or newer than the package: measuring it says more
    except (
        OSError,
        ValueError,
        struct.error,
    ):
        return "GGUF"


def _fingerprint(path: Path) -> str:
    """Return a digest of file sizes and times, which distinguishes checkpoints saved under the same
    name.
    """
    files = (
        [path]
        if not path.is_dir()
        else sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    )
    stats = [
        (file.name, file.stat() if file.exists() else file.lstat()) for file in files
    ]  # links may be broken
    stats = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]
