"""Checkpoints in local folders: a run's own, whatever ``save_pretrained`` wrote, and Lightning's of our module."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from repdyn.hub.errors import CheckpointError, model_errors
from repdyn.hub.local import LIGHTNING, checkpoints_folder, lightning_content, model_folders
from repdyn.hub.revisions import DEFAULT_PATTERN, Revision, parse_revision, whole_number
from repdyn.store.schema import FINISHED
from repdyn.sweep.targets import Target

_LAST = re.compile(r"last(-v\d+)?")
_WEIGHTS = {".safetensors", ".bin", ".json", LIGHTNING}


def find_checkpoints(folder: str | Path, run: str) -> list[Target]:
    """Checkpoints in a folder, by ascending step.

    A checkpoint is a subfolder with a ``config.json`` whose name holds its step (``step512``, ``checkpoint-512``), or,
    where there is none, a Lightning file (``last.ckpt``) of :class:`repdyn.models.LanguageModel`, which knows its step.
    A folder with a ``config.json`` and no such subfolder, or a single file, is one checkpoint; without a step in its
    name it is a finished model.

    Args:
        folder: where they lie. A run's folder is searched in its ``hf_checkpoints``.
        run: their name in the rows.

    Raises:
        ValueError: there is none, two have the same step, one has a name that is not in UTF-8, or a Lightning file is
            damaged and its step not known.
    """
    folder = checkpoints_folder(Path(folder))
    places = {path: place for path in model_folders(folder) if (place := _place(path))}
    if not places and ((folder / "config.json").exists() or folder.suffix == LIGHTNING):
        places = {folder: _place(folder) or Revision(folder.resolve().name, 0, stage=FINISHED)}
    places = places or {path: place for path in _lightning_files(folder) if (place := _place(path))}
    _validate_names(places)
    if not places:
        raise ValueError(
            "expected checkpoints (folders such as step512 with a config.json, or Lightning's .ckpt files) in "
            f"{folder}, found none; give the folder that holds them, for example runs/quickstart/TIME/hf_checkpoints"
        )
    found = sorted(places, key=lambda path: places[path].step)
    for one, other in pairwise(found):
        if places[one].step == places[other].step:
            raise ValueError(f"expected one checkpoint for each step, got {one} and {other}; sweep them apart")
    return [_target(run, path, places[path]) for path in found]


def left_out(folder: str | Path, targets: Iterable[Target]) -> list[str]:
    """Names of models in a folder that are not among its checkpoints, for want of a step or because others are."""
    folder = checkpoints_folder(Path(folder))
    taken = {target.path for target in targets}
    own = [folder] if (folder / "config.json").exists() else []
    files = [] if any(path and path.suffix == LIGHTNING for path in taken) else sorted(folder.glob(f"[!.]*{LIGHTNING}"))
    return [path.name for path in (*own, *model_folders(folder), *files) if path not in taken]


def _validate_names(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"expected names of folders in UTF-8, got {str(path)!r}; rename it") from error


def _target(run: str, path: Path, place: Revision) -> Target:
    return Target(run, place.step, place.name, place.tokens_seen, place.stage, path=path, commit=_fingerprint(path))


def _fingerprint(path: Path) -> str:
    """Tells a checkpoint from one that was saved later, or elsewhere, under the same name: by sizes and times."""
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    found = [(file.name, file.stat() if file.exists() else file.lstat()) for file in files]  # a link may lead nowhere
    stats = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]


def _lightning_files(folder: Path) -> list[Path]:
    """Lightning's files, without the ``last.ckpt`` that repeats the newest of the others."""
    files = sorted(folder.glob(f"[!.]*{LIGHTNING}"))
    others = [path for path in files if not _LAST.fullmatch(path.stem)]
    steps = {place.step for path in others if (place := _place(path))}
    return [path for path in files if path in others or ((place := _place(path)) and place.step not in steps)]


def _place(path: Path) -> Revision | None:
    """Return the step in a checkpoint's name, or for Lightning in its content; None if there is none."""
    by_name = parse_revision(path.resolve().name, DEFAULT_PATTERN)
    if path.suffix != LIGHTNING:
        return by_name
    try:
        with model_errors(f"{path} does not load"):
            return Revision(path.name, whole_number(str(lightning_content(path)["global_step"]), "global_step"))
    except CheckpointError as error:
        if by_name is None:
            raise ValueError(
                f"expected Lightning checkpoints, got one that is damaged and has no step in its name: {error}; move "
                "it away"
            ) from error
        return by_name  # it fails again when it is measured, and is recorded as a failure of this step
