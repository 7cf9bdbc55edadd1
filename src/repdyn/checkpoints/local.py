"""Local checkpoints: folders of ``save_pretrained``, Lightning's checkpoints of this package's module, GGUF files."""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from repdyn.checkpoints.errors import CheckpointError, model_errors
from repdyn.checkpoints.hub import ADAPTER, GGUF
from repdyn.checkpoints.suites import whole_number
from repdyn.checkpoints.targets import Target, parse_revision
from repdyn.store.schema import FINISHED

LIGHTNING = ".ckpt"
"""Suffix of Lightning's checkpoints."""

_STEP = re.compile(r"(step|checkpoint)[-_]?\d+")
_LAST = re.compile(r"last(-v\d+)?")
_LONGEST_METADATA = 1 << 28
_FILES = (LIGHTNING, GGUF)
_WEIGHTS = {".safetensors", ".bin", ".json", *_FILES}


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
    step in its name or one is there alone. A step without a model beside them counts too, so that a sweep reports it.

    Args:
        folder: folder of the checkpoints, or of a run with a subfolder ``hf_checkpoints``.
        run: name of the run in the rows.
    """
    folder = checkpoints_folder(Path(folder))
    if folder.is_file() and is_model(folder.parent) and folder.suffix not in _FILES:
        folder = folder.parent  # of a single file of weights
    is_one = is_model(folder) or folder.suffix in _FILES
    quantised = sorted(folder.glob(f"[!.]*{GGUF}"))
    found = (
        _with_steps(model_folders(folder))
        or ({folder: _revision(folder) or _finished(folder)} if is_one else {})
        or _lightning_files(folder)
        or _with_steps(quantised)
        or {path: _finished(path) for path in quantised}
    )
    if not found:
        raise ValueError(
            "expected checkpoints (folders such as step512 with a config.json, .ckpt or .gguf files) in "
            f"{folder}, got none; give the folder that contains them, such as runs/quickstart/TIME/hf_checkpoints"
        )
    by_step: dict[int, Path] = {}
    for path, at in found.items():
        if (other := by_step.setdefault(at.step, path)) != path:
            raise ValueError(f"expected one checkpoint for each step, got {other} and {path}; sweep them separately")
    for path, at in _with_steps(_steps_without_model(folder)).items():
        if by_step.setdefault(at.step, path) == path:
            found[path] = at
    return [
        replace(
            found[path],
            run=run,
            path=path,
            commit=_fingerprint(path),
            weights_kind=quantization_of(path) if path.suffix == GGUF else None,
        )
        for _, path in sorted(by_step.items())
    ]


def _steps_without_model(folder: Path) -> list[Path]:
    """Return what is named as a step but holds no model, such as a checkpoint that was not saved to its end."""
    return [path for path in sorted(folder.glob("[!.]*")) if _STEP.fullmatch(path.name) and not is_model(path)]


def _with_steps(paths: Iterable[Path]) -> dict[Path, Target]:
    return {path: at for path in paths if (at := _revision(path))}


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


def ignored_entries(folder: str | Path, targets: Iterable[Target]) -> list[str]:
    """Return the names in a folder that are not used as checkpoints: models without a step, steps without a model."""
    folder, used = checkpoints_folder(Path(folder)), {target.path for target in targets}
    has_lightning = any(path and path.suffix == LIGHTNING for path in used)  # then last.ckpt may repeat one of them
    files = [path for suffix in _FILES[has_lightning:] for path in sorted(folder.glob(f"[!.]*{suffix}"))]
    own = [folder] if is_model(folder) else []
    found = [*own, *model_folders(folder), *files, *_steps_without_model(folder)]
    return [path.name for path in dict.fromkeys(found) if path not in used]


def _fingerprint(path: Path) -> str:
    """Return a digest of file sizes and times, which distinguishes checkpoints saved under the same name."""
    files = [path] if not path.is_dir() else sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    stats = [(file.name, file.stat() if file.exists() else file.lstat()) for file in files]  # links may be broken
    stats = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]


def _lightning_files(folder: Path) -> dict[Path, Target]:
    """Return Lightning's files, without a ``last.ckpt`` that duplicates the newest of the others."""
    found = _with_steps(sorted(folder.glob(f"[!.]*{LIGHTNING}")))
    steps = {at.step for path, at in found.items() if not _LAST.fullmatch(path.stem)}
    return {path: at for path, at in found.items() if not (_LAST.fullmatch(path.stem) and at.step in steps)}


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
    from repdyn.checkpoints.weights import lightning_content  # with torch, which other folders do without

    raw, averaged = [*targets], []
    for number, target in enumerate(raw):
        if target.path is None or target.path.suffix != LIGHTNING:
            continue
        with suppress(CheckpointError), model_errors("unreadable"):  # which measuring records
            if "current_model_state" in lightning_content(target.path):
                raw[number] = replace(target, weights_kind="raw")
                averaged.append(replace(target, run=f"{target.run} (averaged)", weights_kind="averaged"))
    return raw, averaged
