"""Local checkpoints: folders of ``save_pretrained``, Lightning's checkpoints of this package's module, GGUF files."""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from repdyn.checkpoints.errors import CheckpointError, model_errors
from repdyn.checkpoints.hub import ADAPTER, GGUF, RemoteFile, weight_files
from repdyn.checkpoints.revisions import Target, parse_revision, whole_number
from repdyn.store.schema import FINISHED
from repdyn.utils.printing import shorten_list

LIGHTNING = ".ckpt"
"""Suffix of Lightning's checkpoints."""

_STEP = re.compile(r"(step|checkpoint)[-_]?\d+")
_LAST = re.compile(r"last(-v\d+)?")
_LONGEST_METADATA = 1 << 28
_WEIGHTS = {".safetensors", ".bin", ".json", LIGHTNING, GGUF}


def checkpoints_folder(folder: Path) -> Path:
    """Return the absolute path of the checkpoints in a run's folder; any other path unchanged."""
    inside = folder / "hf_checkpoints"
    return inside.absolute() if inside.is_dir() else folder.absolute()


def is_model(folder: Path) -> bool:
    """Return whether a folder has the configuration of a model, or of an adapter of one."""
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


def model_folders(folder: Path) -> list[Path]:
    """List the subfolders with a model; without symbolic links to others of them, and without unfinished ones."""
    found = [path for path in folder.glob("[!.]*/") if is_model(path)]
    return sorted({path.resolve(): path for path in sorted(found, key=lambda path: not path.is_symlink())}.values())


def find_checkpoints(folder: str | Path, run: str) -> list[Target]:
    """Return the checkpoints in a folder, by ascending step.

    A checkpoint is a subfolder with a ``config.json``, or an adapter's, and its step in the name (``step512``,
    ``checkpoint-512``). A folder with such a file but without such subfolders, or a single file, is one checkpoint;
    without a step in its name it is a finished model. Where there is neither, Lightning files (``last.ckpt``) of
    :class:`repdyn.models.LanguageModel` are used, which contain their step, or else GGUF files, of which each has a
    step in its name or one is there alone. Next to any of these, incomplete checkpoints of other steps count too, so
    that a sweep reports them: what has such a name, or has a step in its name and holds weights, but no
    ``config.json``.

    Args:
        folder: folder of the checkpoints, or of a run with a subfolder ``hf_checkpoints``.
        run: name of the run in the rows.
    """
    folder = checkpoints_folder(Path(folder))
    if folder.is_file() and is_model(folder.parent) and folder.suffix not in (LIGHTNING, GGUF):
        folder = folder.parent  # of a single file of weights
    revisions = {path: revision for path in model_folders(folder) if (revision := _revision(path))}
    if not revisions and (is_model(folder) or folder.suffix in (LIGHTNING, GGUF)):
        revisions = {folder: _revision(folder) or _finished(folder)}
    if not revisions:
        revisions = {path: revision for path in _lightning_files(folder) if (revision := _revision(path))}
    if not revisions:
        files = sorted(folder.glob(f"[!.]*{GGUF}"))
        revisions = {path: revision for path in files if (revision := _revision(path))}
        if not revisions and len(files) > 1:
            raise ValueError(
                f"expected one GGUF file, or a step in the name of each, in {folder}, got "
                f"{shorten_list([path.name for path in files])}; give one of the files"
            )
        revisions = revisions or {path: _finished(path) for path in files}
    incomplete = _incomplete(folder)
    _validate_names([*revisions, *incomplete])
    if not revisions:
        raise ValueError(
            "expected checkpoints (folders such as step512 with a config.json, .ckpt or .gguf files) in "
            f"{folder}, got none; give the folder that contains them, such as runs/quickstart/TIME/hf_checkpoints"
        )
    paths = sorted(revisions, key=lambda path: revisions[path].step)
    for one, other in pairwise(paths):
        if revisions[one].step == revisions[other].step:
            raise ValueError(f"expected one checkpoint for each step, got {one} and {other}; sweep them separately")
    by_step = {at.step: path for path, at in [*reversed(incomplete.items()), *revisions.items()]}
    revisions |= incomplete
    kinds = {path: quantization_of(path) for path in revisions if path.suffix == GGUF}
    return [
        replace(revisions[path], run=run, path=path, commit=_fingerprint(path), weights_kind=kinds.get(path))
        for _, path in sorted(by_step.items())
    ]


def _finished(path: Path) -> Target:
    return Target("", 0, path.resolve().name, stage=FINISHED)


def quantization_of(path: Path) -> str:
    """Return the name of a GGUF file's quantisation, such as "Q4_K_M"; "GGUF" where the file does not say."""
    try:
        from gguf import LlamaFileType
    except ImportError as error:
        raise ValueError(f"expected the package gguf for {path.name}; pip install 'repdyn[gguf]'") from error
    key = b"general.file_type"
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # of all its metadata this alone, since the strings of a vocabulary take seconds to read
            at = content.find(key, 0, _LONGEST_METADATA)
            _type_of_value, number = struct.unpack_from("<II", content, at + len(key))
        return LlamaFileType(number).name.removeprefix("MOSTLY_") if at >= 0 else "GGUF"
    except (OSError, ValueError, struct.error):  # damaged, or newer than the package: measuring it says more
        return "GGUF"


def _incomplete(folder: Path) -> dict[Path, Target]:
    """Return the entries of a folder that look like checkpoints without a ``config.json``, such as broken links."""
    found = {path: parse_revision(path.name) for path in sorted(folder.glob("[!.]*"))}
    return {
        path: at
        for path, at in found.items()
        if at and not is_model(path) and (_STEP.fullmatch(path.name) or _holds_weights(path))
    }


def _holds_weights(path: Path) -> bool:
    return path.is_dir() and bool(weight_files({file.name: RemoteFile(0) for file in path.iterdir()}))


def ignored_models(folder: str | Path, targets: Iterable[Target]) -> list[str]:
    """Return the names of models in a folder that are not used as checkpoints: those without a step, for example."""
    folder = checkpoints_folder(Path(folder))
    used = {target.path for target in targets}
    own = [folder] if is_model(folder) else []
    files = [] if any(path and path.suffix == LIGHTNING for path in used) else sorted(folder.glob(f"[!.]*{LIGHTNING}"))
    incomplete = [
        f"{path.name} (incomplete, and another has its step)" for path in _incomplete(folder) if path not in used
    ]
    files += sorted(folder.glob(f"[!.]*{GGUF}"))
    return [path.name for path in (*own, *model_folders(folder), *files) if path not in used] + incomplete


def _validate_names(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"expected names of folders in UTF-8, got {str(path)!r}; rename it") from error


def _fingerprint(path: Path) -> str:
    """Return a digest of file sizes and times, which distinguishes checkpoints saved under the same name."""
    files = [path] if not path.is_dir() else sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    stats = [(file.name, file.stat() if file.exists() else file.lstat()) for file in files]  # links may be broken
    stats = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]


def _lightning_files(folder: Path) -> list[Path]:
    """Return Lightning's files, without a ``last.ckpt`` that duplicates the newest of the others."""
    files = sorted(folder.glob(f"[!.]*{LIGHTNING}"))
    others = [path for path in files if not _LAST.fullmatch(path.stem)]
    steps = {revision.step for path in others if (revision := _revision(path))}
    return [path for path in files if path in others or ((at := _revision(path)) and at.step not in steps)]


def _revision(path: Path) -> Target | None:
    """Return the step in the name of a checkpoint, or in the content of a Lightning file; None if there is none."""
    by_name = parse_revision(path.resolve().name)
    if path.suffix != LIGHTNING:
        return by_name
    from repdyn.checkpoints.weights import lightning_content  # with torch, which other folders do without

    try:
        with model_errors(f"{path} does not load"):
            return Target("", whole_number(str(lightning_content(path)["global_step"]), "global_step"), path.name)
    except CheckpointError as error:
        if by_name is None:
            raise ValueError(
                f"expected Lightning checkpoints, got a damaged one without a step in its name: {error}; move it away"
            ) from error
        return by_name  # measuring fails too, and the failure is stored for this step


def with_averaged(targets: Iterable[Target]) -> tuple[list[Target], list[Target]]:
    """Return targets, and those of the averaged weights in Lightning files that hold both, as its WeightAveraging
    saves.

    ``weights_kind`` says which weights each is, where a file has both; the averaged ones are in a run "NAME
    (averaged)".
    """
    from repdyn.checkpoints.weights import lightning_content

    raw, averaged = [], []
    for target in targets:
        has_both = False
        if target.path is not None and target.path.suffix == LIGHTNING:
            with suppress(CheckpointError), model_errors("unreadable"):  # which measuring records
                has_both = "current_model_state" in lightning_content(target.path)
        if has_both:
            averaged.append(replace(target, run=f"{target.run} (averaged)", weights_kind="averaged"))
        raw.append(replace(target, weights_kind="raw") if has_both else target)
    return raw, averaged
